"""The space of schedules of one kernel. In: what a kernel is asked for, a target and a device profile. Out: every legal
schedule with its kernel, the best predicted first.

A candidate may be had again with another schedule for each of its kernels, which is how a measured choice comes back.

The families' own schedule is always among them, and leads those that are predicted alike: the nearer a schedule is to
it, the earlier it stands. Nothing depends on anything but the arguments, so every process ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from interfuse.base.errors import UnsupportedError
from interfuse.cost.estimate import Estimate
from interfuse.cost.model import kernel_estimate, pack_estimate
from interfuse.cost.traffic import kernel_bytes
from interfuse.device.profile import DeviceProfile
from interfuse.ir.index import wrap
from interfuse.ir.node import Node
from interfuse.lower.early import early
from interfuse.lower.families import lower
from interfuse.lower.in_place import check_over
from interfuse.lower.kernel import Kernel, Role
from interfuse.lower.pack import pack
from interfuse.lower.schedule import FAR, Schedule, distance, neighbours, schedule_of
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from interfuse.plan.packs import unit_of
from interfuse.plan.plan import Candidate, KernelStep, PackStep, Step

SHORT = 256
"""Elements of a reduction up to which nothing but holding them is thought of."""

OTHER_FORM = 2.0
"""How far a domain that is held is from one that is streamed, as `distance` counts."""


Asked = tuple[Schedule | None, ...]
"""A schedule for each kernel of a candidate in order; None leaves it to the family."""


@dataclass(frozen=True)
class Place:
    """Where kernels are to run: what they are made for, what is predicted by, and the example's sizes."""

    target: Target | None
    profile: DeviceProfile
    sizes: Mapping[str, int]


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


def rescheduled(candidate: Candidate, asked: Sequence[Schedule | None], name: str, device: Place) -> Candidate:
    """The candidate with its kernels in the schedules `asked`, one a kernel in order, None for the family's own.

    UnsupportedError where a kernel cannot have its schedule.
    """
    steps, wanted = [], iter(asked)
    for step in candidate.steps:
        schedule = next(wanted, None) if isinstance(step, (KernelStep, PackStep)) else None
        if isinstance(step, KernelStep) and schedule is not None:
            step = _step(step, schedule, device)
        elif isinstance(step, PackStep) and schedule is not None:
            step = _pack(step, schedule, device)
        steps.append(step)
    if next(wanted, None) is not None:
        raise UnsupportedError(f"{candidate.label} has fewer than {len(asked)} kernels")
    gained = sum(_seconds(s, device) for s in steps) - sum(_seconds(s, device) for s in candidate.steps)
    seconds = max(candidate.estimate.seconds + gained * candidate.estimate.factor, 0.0)
    return replace(
        candidate, label=name, steps=tuple(steps), estimate=replace(candidate.estimate, seconds=seconds, parts=())
    )


def _step(step: KernelStep, schedule: Schedule, device: Place) -> KernelStep:
    """The step with its kernel in the schedule. What is written over inputs must be safe there too."""
    if step.work is None or device.target is None:
        raise UnsupportedError(f"{step.kernel.name} was made by hand: no other schedule")
    of = step.kernel
    kernel, reads = lower(_named(of.name, schedule), step.work, device.target, of.doc, schedule)
    check_over(kernel, reads, step.outputs, dict(step.over))
    kernel = early(kernel, reads, step.work) if of.follows else kernel
    return replace(
        step, kernel=replace(kernel, follows=of.follows, leads=of.leads), inputs=reads, skipped=step.work.skipped(reads)
    )


def _pack(step: PackStep, schedule: Schedule, device: Place) -> PackStep:
    """The pack of its members in the schedule."""
    if device.target is None:
        raise UnsupportedError("there are no packs on this device")
    members = tuple(_step(m, schedule, device) for m in step.members)
    name, unit = _named(step.kernel.name, schedule), unit_of(device.target)
    kernel, sizes = pack([m.kernel for m in members], name, step.kernel.doc, unit)
    return PackStep(kernel, members, tuple(sizes))


def _seconds(step: Step, device: Place) -> float:
    """Predicted seconds of a step that launches a generated kernel; 0 for any other."""
    if isinstance(step, PackStep):
        return pack_estimate([m.kernel for m in step.members], device.profile, device.sizes).seconds
    return kernel_estimate(step.kernel, device.profile, device.sizes).seconds if isinstance(step, KernelStep) else 0.0


def alternatives(candidate: Candidate, device: Place, most: int) -> list[tuple[Candidate, Asked]]:
    """The candidate in at most `most` other schedules, the best predicted first, each with what was asked of it.

    One launch's schedule is changed at a time, that of the launch which is predicted to take longest; all members of a
    pack have one schedule, ranked by what it does for the largest.
    """
    steps = [s for s in candidate.steps if isinstance(s, (KernelStep, PackStep))]
    if device.target is None or not steps:
        return []
    seconds = [_seconds(s, device) for s in steps]
    longest = seconds.index(max(seconds))
    step = steps[longest]
    if isinstance(step, PackStep):
        step = max(step.members, key=lambda m: kernel_bytes(m.kernel, device.sizes))
    if step.work is None:
        return []
    found: list[tuple[Candidate, Asked]] = []
    for s in schedules(step.work, device.target, device.profile, device.sizes):
        if s.far == 0 or len(found) == most:
            continue
        asked = tuple(s.schedule if k == longest else None for k in range(len(steps)))
        try:
            other = rescheduled(candidate, asked, label_of(candidate.label, asked), device)
        except UnsupportedError:
            continue  # some member of a pack cannot have it, or it is not safe in place
        found.append((other, asked))
    return found


def label_of(label: str, asked: Asked) -> str:
    """What a candidate in other schedules is called."""
    said = "; ".join(str(s) for s in asked if s is not None)
    return f"{label} ({said})" if said else label


def _named(name: str, schedule: Schedule) -> str:
    """The name of a kernel in a schedule: equal kernels in equal schedules share it."""
    return f"{name}_as_" + "_".join(str(schedule).replace(",", "").split())
