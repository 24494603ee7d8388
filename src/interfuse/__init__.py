"""Interfuse: operator fusion for PyTorch. In: a model. Out: the same model in fewer kernels, and the ledger.

`compile(model)` gives a model that behaves as the original; `explain(model, inputs)` runs both and says what each fused
region saved, measured, with the reason for every decision.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interfuse.driver.api import compile, explain
    from interfuse.report.ledger import Ledger

__version__ = "0.1.0"
__all__ = ["Ledger", "__version__", "compile", "explain"]

_HOMES = {"compile": "interfuse.driver.api", "explain": "interfuse.driver.api", "Ledger": "interfuse.report.ledger"}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for: compile workers import this package and must stay free of
    torch.
    """
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'interfuse' has no attribute {name!r}")
