"""A prediction. In: seconds and their parts. Out: the frozen Estimate that candidates carry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds, the relative error bar (0.3 is plus or minus 30 %), and the parts: memory, compute, launch."""

    seconds: float
    error: float = 0.3
    parts: tuple[tuple[str, float], ...] = ()
