"""Schedules: what a family leaves open. In: axes that a family chose, or a kernel. Out: the axes as a schedule wants
them, and the schedules that may be tried.

A schedule changes how a kernel walks its domain and never what it computes: how many indices of an axis a program takes
at once, its warps, the steps of a loop under way, and whether the domain is held on chip or read again in each pass.
What it does not say is the family's to choose. A family names its axes, so that a schedule fits any family.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import wrap
from interfuse.lower.kernel import Axis, Kernel, Role
from interfuse.lower.target import MOST_STAGES

HELD = 1 << 16
"""Elements that a GPU program may be asked to hold at most: beyond it registers cannot, whatever the warps."""

FEWEST, MOST = 128, HELD
"""Elements that a GPU program may be asked to take at once."""

VECTORS = 64
"""Vectors that a CPU kernel may be asked to take at once."""

EACH = (2, 64)
"""Elements of a thread at once, at least and at most; a program has a warp at least."""

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4)
FIXED = (Role.TILE, Role.TEAM)
"""Roles of axes of which a program has what it has."""

FAR = 3
"""Doublings or halvings of blocks and warps, and steps of stages, in all: what lies farther away is not tried."""


@dataclass(frozen=True)
class Schedule:
    """What a family leaves open; nothing said is the family's choice.

    blocks    indices of an axis that a program takes at once, by the axis's name
    warps     of a GPU program
    stages    steps of a serial axis under way at once on a GPU
    streamed  True reads the domain again in each pass, False holds it on chip
    """

    blocks: tuple[tuple[str, int], ...] = ()
    warps: int | None = None
    stages: int | None = None
    streamed: bool | None = None

    def placed(self, axes: tuple[Axis, ...], backend: str, lanes: int) -> tuple[Axis, ...]:
        """The axes with the blocks of this schedule. UnsupportedError for one that these axes cannot have."""
        wanted, names = dict(self.blocks), {a.name for a in axes}
        if self.warps is not None and self.warps not in WARPS:
            raise UnsupportedError(f"the schedule {self}: a program has {', '.join(map(str, WARPS))} warps")
        if self.stages is not None and not 1 <= self.stages <= MOST_STAGES:
            raise UnsupportedError(f"the schedule {self}: a loop has 1 to {MOST_STAGES} stages")
        if not names.issuperset(wanted):
            raise UnsupportedError(f"the schedule {self} names other axes than {', '.join(a.name for a in axes)}")
        for a in axes:
            block = wanted.get(a.name, a.block)
            if block != a.block and not _allowed(a, block, axes, backend, lanes):
                raise UnsupportedError(f"the schedule {self}: {a.name} cannot be taken {block} at once")
        return tuple(replace(a, block=wanted.get(a.name, a.block)) for a in axes)

    def to_json(self) -> dict[str, Any]:
        """The schedule as JSON values, without what it does not say."""
        said = {"warps": self.warps, "stages": self.stages, "streamed": self.streamed}
        blocks = {"blocks": [[name, block] for name, block in self.blocks]} if self.blocks else {}
        return {**blocks, **{k: v for k, v in said.items() if v is not None}}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote. ValueError for anything else."""
        blocks = tuple((name, block) for name, block in value.get("blocks", ()))
        warps, stages, streamed = (value.get(name) for name in ("warps", "stages", "streamed"))
        counts = [block for _, block in blocks] + [n for n in (warps, stages) if n is not None]
        if any(type(n) is not int for n in counts) or not all(isinstance(name, str) for name, _ in blocks):
            raise ValueError(f"no schedule: {value}")
        if streamed not in (None, True, False) or set(value) - {"blocks", "warps", "stages", "streamed"}:
            raise ValueError(f"no schedule: {value}")
        return Schedule(blocks, warps, stages, streamed)

    def __str__(self) -> str:
        said = [f"{name} {block}" for name, block in self.blocks]
        said += [f"{self.warps} warp{'s' if self.warps > 1 else ''}"] if self.warps else []
        said += [f"{self.stages} stage{'s' if self.stages > 1 else ''}"] if self.stages else []
        said += ["streamed" if self.streamed else "held"] if self.streamed is not None else []
        return ", ".join(said) or "as the family chooses"


def schedule_of(kernel: Kernel, backend: str) -> Schedule:
    """The schedule that a kernel has: what may be asked of its family to get the same kernel again."""
    blocks = tuple((a.name, a.block) for a in kernel.axes if a.role not in FIXED)
    streamed = kernel.family.endswith("streamed") if kernel.reduction_order else None
    if backend != "triton":
        return Schedule(blocks, streamed=streamed)
    stages = kernel.stages if any(a.role in (Role.SERIAL, Role.TEAM) for a in kernel.axes) else None
    return Schedule(blocks, kernel.warps, stages, streamed)


def neighbours(kernel: Kernel, backend: str, lanes: int) -> list[Schedule]:
    """The schedules of a kernel's own form that may be tried: blocks, warps and stages a few steps from the kernel's,
    with some elements for each thread of a GPU and not too many. The nearest come first, the kernel's own leads.
    """
    own, axes, gpu = schedule_of(kernel, backend), kernel.axes, backend == "triton"
    blocks = [[b for b in _blocks(a) if b == a.block or _allowed(a, b, axes, backend, lanes)] for a in kernel.own_axes]
    found = []
    for chosen in itertools.product(*blocks):
        elements = math.prod(chosen)
        named = tuple((a.name, b) for a, b in zip(kernel.own_axes, chosen, strict=True) if a.role not in FIXED)
        for warps, stages in itertools.product(WARPS if gpu else (None,), STAGES if own.stages else (None,)):
            each = elements // (32 * (warps or 1))
            fits = (warps == 1 or EACH[0] <= each) and each <= EACH[1] and FEWEST <= elements <= MOST
            schedule = replace(own, blocks=named, warps=warps, stages=stages)
            if distance(own, schedule) <= FAR and (fits or not gpu):
                found.append(schedule)
    return sorted({own, *found}, key=lambda s: (distance(own, s), str(s)))


def distance(one: Schedule, other: Schedule) -> float:
    """How far two schedules of one form are apart: doublings of blocks and warps, and steps of stages."""
    before = dict(one.blocks)
    far = sum(abs(math.log2(block / before.get(name, block))) for name, block in other.blocks)
    far += abs(math.log2((other.warps or 1) / (one.warps or 1)))
    return far + abs((other.stages or 0) - (one.stages or 0))


def _allowed(axis: Axis, block: int, axes: tuple[Axis, ...], backend: str, lanes: int) -> bool:
    """Whether an axis may be taken so many at once: a power of two on a GPU, but all of a tile; on a CPU, whose lanes
    are the vector's, several vectors beside a serial axis. What an axis is shared out among is taken one by one, as
    is what a team takes.
    """
    if any(a.among == axis.name or a.role is Role.TEAM for a in axes):
        return block == axis.block
    if backend == "triton":
        return axis.role not in FIXED and 0 < block <= HELD and block & (block - 1) == 0
    beside = axis.role is Role.GRID and axis.block > 1 and axes[-1].role is Role.SERIAL
    return beside and 0 < block <= VECTORS * lanes and block % lanes == 0


def _blocks(axis: Axis) -> list[int]:
    """Blocks to try for an axis: what it has, doubled and halved, no wider than the axis."""
    widest = max(axis.block, 1 << max(wrap(axis.extent).hi - 1, 0).bit_length())
    tried = [axis.block << k for k in range(FAR + 1)] + [axis.block >> k for k in range(1, FAR + 1)]
    return sorted({b for b in tried if 1 <= b <= widest})
