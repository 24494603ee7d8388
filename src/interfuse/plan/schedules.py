"""The space of schedules of one kernel. In: what a kernel is asked for, a target and a device profile. Out: every legal
schedule with its kernel, the best predicted first.

The families' own schedule is always among them, and leads those that are predicted alike: the nearer a schedule is to
it, the earlier it stands. Nothing depends on anything but the arguments, so every process ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.cost.estimate import Estimate
from interfuse.cost.model import kernel_estimate
from interfuse.device.profile import DeviceProfile
from interfuse.ir.index import wrap
from interfuse.ir.node import Node
from interfuse.lower.families import Target, Work, lower
from interfuse.lower.kernel import Kernel, Role
from interfuse.lower.schedule import FAR, Schedule, distance, neighbours, schedule_of

SHORT = 256
"""Elements of a reduction up to which nothing but holding them is thought of."""

OTHER_FORM = 2.0
"""How far a domain that is held is from one that is streamed, as `distance` counts."""


@dataclass(frozen=True)
class Scheduled:
    """One schedule, its kernel, the nodes behind the kernel's inputs, what is predicted, how far it is from the
    family's own.
    """

    schedule: Schedule
    kernel: Kernel
    reads: tuple[Node, ...]
    estimate: Estimate
    far: float


def schedules(
    work: Work, target: Target, profile: DeviceProfile, sizes: Mapping[str, int] | None = None
) -> tuple[Scheduled, ...]:
    """Every legal schedule for `work`, the best predicted first. UnsupportedError where no kernel can do it."""
    own, _ = lower("kernel", work, target)
    found: dict[Kernel, Scheduled] = {}
    for schedule, far in _tried(own, work, target):
        try:
            kernel, reads = lower("kernel", work, target, schedule=schedule)
        except UnsupportedError:
            continue
        if kernel not in found:
            found[kernel] = Scheduled(schedule, kernel, reads, kernel_estimate(kernel, profile, sizes), far)
    return tuple(sorted(found.values(), key=lambda s: (s.estimate.seconds, s.far, str(s.schedule))))


def _tried(own: Kernel, work: Work, target: Target) -> Iterator[tuple[Schedule, float]]:
    """Schedules of the family's own form, and of the other one where it reduces; not all of them may be had."""
    for kernel, apart in _forms(own, work, target):
        base = schedule_of(kernel, target.backend)
        for schedule in neighbours(kernel, target.backend, target.lanes):
            if apart + distance(base, schedule) <= FAR:
                yield schedule, apart + distance(base, schedule)


def _forms(own: Kernel, work: Work, target: Target) -> Iterator[tuple[Kernel, float]]:
    """The kernel as the family makes it, and held on chip where that one is streamed, or the other way round."""
    yield own, 0.0
    streamed = schedule_of(own, target.backend).streamed
    if streamed is not None and any(a.role is not Role.GRID and wrap(a.extent).hi > SHORT for a in own.axes):
        try:
            yield lower("kernel", work, target, schedule=Schedule(streamed=not streamed))[0], OTHER_FORM
        except UnsupportedError:
            return
