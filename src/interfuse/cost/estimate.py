"""A prediction. In: seconds and their parts. Out: the frozen Estimate that candidates carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds, and the relative error bar: 0.3 is plus or minus 30 %.

    parts   seconds that each thing takes by itself: launch, memory, cache, arithmetic, waiting; they overlap, so they
            add up to more than `seconds`
    floor   seconds that moving the bytes alone would take, launch included
    flops   operations
    factor  what races have shown that the prediction must be multiplied by; it is in `seconds`
    """

    seconds: float
    error: float = 0.3
    parts: tuple[tuple[str, float], ...] = ()
    floor: float = 0.0
    flops: float = 0.0
    factor: float = 1.0

    @property
    def uncorrected(self) -> float:
        """Seconds without the factor."""
        return self.seconds / self.factor

    def times(self, factor: float) -> Estimate:
        """The prediction corrected by a factor."""
        return self if factor == 1.0 else replace(self, seconds=self.seconds * factor, factor=self.factor * factor)


def in_turn(estimates: Sequence[Estimate], launch: float = 0.0, gap: float = 0.0) -> Estimate:
    """All of them one after the other: what follows starts `gap` after the one before it ends, and not by a `launch` of
    its own. What launches nothing (a part of an earlier call on lists) takes no part in that.
    """
    if len(estimates) == 1:
        return estimates[0]
    launching = sum(dict(e.parts).get("launch", launch) > 0 for e in estimates)
    saved = (launch - gap) * max(launching - 1, 0)
    parts: Counter[str] = Counter()
    for e in estimates:
        parts.update(dict(e.parts))
    if "launch" in parts:
        parts["launch"] -= saved  # type: ignore[assignment]
    total = sum(e.seconds for e in estimates)
    return Estimate(
        total - saved,
        sum(e.error * e.seconds for e in estimates) / total if total else 0.3,
        tuple(parts.items()),
        sum(e.floor for e in estimates) - saved,
        sum(e.flops for e in estimates),
        total / sum(e.uncorrected for e in estimates) if total else 1.0,
    )
