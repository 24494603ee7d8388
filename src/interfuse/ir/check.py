"""One check shared by constructors and the verifier. In: a condition and a sentence. Out: nothing, or GraphError."""
from __future__ import annotations

from interfuse.base.errors import GraphError


def require(condition: bool, sentence: str) -> None:
    """Raise GraphError with `sentence` unless `condition` holds."""
    if not condition:
        raise GraphError(sentence + ".")
