"""Horizontal packs. In: groups of calls, each one kernel. Out: the same grouping with like, independent groups joined.

Groups are alike where one packed kernel can stand for all of theirs (lower/pack.py), independent where no path leads
from one to another. A pack waits for all that its members read and makes all of their results at once, so it is formed
only where the plan needs no more memory at once for it; and only where one launch with its table is predicted to be
faster than a launch a member.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from interfuse.base.errors import UnsupportedError
from interfuse.cost.model import pack_estimate
from interfuse.cost.traffic import kernel_bytes
from interfuse.lower.kernel import Kernel
from interfuse.lower.pack import ALIGNED, likeness
from interfuse.lower.target import Target
from interfuse.plan.candidates import Context, fused
from interfuse.plan.memory import eager_peak, peak
from interfuse.plan.regions import Grouping

Part = frozenset[int]
"""The calls of one member."""

MOST_BYTES = 256 << 20
"""Traffic of one pack at most: beyond it a launch more costs nothing that could be measured, and a race of the pack
would need memory for all of its members at once."""


def unit_of(target: Target) -> int:
    """What sizes must be multiples of to be written as such: vectors on a GPU need to know, on a CPU they do not."""
    return ALIGNED if target.backend == "triton" else 1


def form(
    groups: Grouping, context: Context, fusable: Callable[[int], bool], reject: Callable[[Part, str], None]
) -> dict[Part, tuple[Part, ...]]:
    """Join like groups into packs; what comes out is the members of each, in program order. `reject` hears what stays
    apart and why.
    """
    if context.target is None:
        return {}
    classes: dict[Hashable, dict[Part, Kernel]] = {}
    for calls in sorted(groups.members.values(), key=min):
        kernel = _kernel(calls, context) if all(map(fusable, calls)) else None
        if kernel is not None and kernel_bytes(kernel, context.sizes) <= MOST_BYTES:
            classes.setdefault(likeness(kernel, unit_of(context.target)), {})[calls] = kernel
    found: dict[Part, tuple[Part, ...]] = {}
    several = [kernels for kernels in classes.values() if len(kernels) > 1]
    eager = eager_peak(context.flow) if several else 0
    for kernels in several:
        for parts in _independent(groups, list(kernels)):
            for some in _portions(parts, kernels, context):
                for members in _fitting(groups, some, kernels, context, eager, reject):
                    _join(groups, members)
                    found[frozenset().union(*members)] = tuple(members)
    return found


def _kernel(calls: Part, context: Context) -> Kernel | None:
    try:
        return fused(calls, context).kernel
    except UnsupportedError:
        return None


def _independent(groups: Grouping, parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Lists of at least two of `parts` without a path between any two; each is looked for after the last was joined."""
    left, below = list(parts), _below(groups)
    while len(left) > 1:
        chosen, rest = [left[0]], []
        first = groups.group_of[min(left[0])]
        mine, reached = 1 << first, below[first]
        for part in left[1:]:
            g = groups.group_of[min(part)]
            if reached >> g & 1 or below[g] & mine:
                rest.append(part)
            else:
                chosen.append(part)
                mine, reached = mine | 1 << g, reached | below[g]
        if len(chosen) > 1:
            yield chosen
            below = _below(groups)
        left = rest


def _below(groups: Grouping) -> dict[int, int]:
    """The groups that each group leads to, as bits."""
    below: dict[int, int] = {}
    for calls in reversed(groups.ordered()):
        g = groups.group_of[min(calls)]
        below[g] = 0
        for s in groups.successors(g):
            below[g] |= below[s] | 1 << s
    return below


def _portions(parts: Sequence[Part], kernels: dict[Part, Kernel], context: Context) -> Iterator[list[Part]]:
    """The parts in runs of at most MOST_BYTES."""
    run: list[Part] = []
    total = 0
    for part in parts:
        moved = kernel_bytes(kernels[part], context.sizes)
        if run and total + moved > MOST_BYTES:
            yield run
            run, total = [], 0
        run.append(part)
        total += moved
    yield run


def _fitting(
    groups: Grouping,
    parts: list[Part],
    kernels: dict[Part, Kernel],
    context: Context,
    eager: int,
    reject: Callable[[Part, str], None],
) -> Iterator[list[Part]]:
    """`parts` whole where that pays and fits in memory, in halves where only that fits; nothing of fewer than two."""
    if len(parts) < 2:
        return
    together = pack_estimate([kernels[p] for p in parts], context.profile, context.sizes).seconds
    apart = sum(context.estimate(kernels[p]).seconds for p in parts)
    union: Part = frozenset().union(*parts)
    if together >= apart:
        reject(union, f"predicted {together * 1e6:.1f} us as a pack, {apart * 1e6:.1f} us apart")
        return
    trial = groups.copy()
    _join(trial, parts)
    limit = max(eager, peak(groups.ordered(), context.flow).bytes)
    needed = peak(trial.ordered(), context.flow).bytes
    if needed <= limit:
        yield parts
        return
    reject(union, f"as a pack {needed} bytes would be held at once, {limit} otherwise")
    half = len(parts) // 2
    yield from _fitting(groups, parts[:half], kernels, context, eager, reject)
    yield from _fitting(groups, parts[half:], kernels, context, eager, reject)


def _join(groups: Grouping, parts: Sequence[Part]) -> None:
    first = groups.group_of[min(parts[0])]
    for part in parts[1:]:
        groups.merge(first, groups.group_of[min(part)])
