"""Many joined parts in one launch. In: groups of calls. Out: the same grouping, a concat in one group with what makes
its parts.

A kernel that joins parts itself tests at each element which part it is in, so it takes few of them (lower/joins.py).
Here each part is a member of a pack: a kernel of its own that writes where the joined value has it. What makes a part
for the concat alone is computed on the way; other parts are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.cost.model import pack_estimate
from interfuse.ir import build as b
from interfuse.ir.index import Dim, Expr, sym, unwrap, wrap
from interfuse.ir.layout import base_of
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel
from interfuse.lower.pack import Sizes, likeness, pack
from interfuse.lower.schedule import Schedule, schedule_of
from interfuse.lower.work import Work
from interfuse.plan.candidates import Context, fused, library_candidate, lowered, outputs_of
from interfuse.plan.flow import cut
from interfuse.plan.memory import eager_peak, peak
from interfuse.plan.packs import Part, unit_of
from interfuse.plan.plan import KernelStep, PackStep
from interfuse.plan.regions import Grouping

START = "start"
"""The size symbol by which a member is told where its part begins."""


@dataclass(frozen=True)
class _Source:
    """A part of a joined value and the calls that are computed for it; none where it is copied from a buffer."""

    node: Node
    calls: Part


@dataclass(frozen=True)
class Joined:
    """The step that writes a joined value, and the calls that make the first part made for it."""

    step: PackStep
    first: Part


def form_joined(
    groups: Grouping, context: Context, fusable: Callable[[int], bool], reject: Callable[[Part, str], None]
) -> dict[Part, Joined]:
    """Join each concat that no kernel holds with the makers of its parts; what comes of it, by its group. `reject`
    hears what stays apart and why.
    """
    found: dict[Part, Joined] = {}
    for k in context.flow.needed if context.target is not None else ():
        whole = next(iter(context.flow.graph.calls[k].outs), None)
        if not _parts(whole) or not fusable(k) or len(groups.members[groups.group_of[k]]) > 1:
            continue
        assert whole is not None
        try:
            fused(frozenset((k,)), context)
        except UnsupportedError:
            sources = _sources(k, whole, groups, context, fusable)
            calls = frozenset((k,)).union(*(s.calls for s in sources))
            try:
                if len(calls) > 1:
                    first = next(s.calls for s in sources if s.calls)
                    found[calls] = Joined(_joined(k, whole, sources, groups, context), first)
            except UnsupportedError as error:
                reject(calls, str(error))
    return found


def _parts(whole: Node | None) -> tuple[Node, ...]:
    """What a concat joins, as it lies there; nothing for anything else."""
    if whole is not None and whole.op == "concat":
        return whole.inputs
    if whole is not None and whole.op == "cast" and whole.inputs[0].op == "concat":
        return tuple(b.cast(part, whole.dtype) for part in whole.inputs[0].inputs)
    return ()


def _sources(k: int, whole: Node, groups: Grouping, context: Context, fusable: Callable[[int], bool]) -> list[_Source]:
    flow, taken, found = context.flow, set[int](), list[_Source]()
    for part in _parts(whole):
        made = base_of(part, flow.producer)  # stacked parts are what was made, with a dimension more
        maker = flow.producer.get(made) if made.size == part.size else None
        calls: Part = frozenset()
        if maker is not None and flow.readers.get(made) == (k,) and maker not in taken:
            group = groups.members[groups.group_of[maker]]
            if all(map(fusable, group)) and not group & flow.writes.keys() and outputs_of(group, flow) == (made,):
                calls = group
                taken |= group
        found.append(_Source(part, calls))
    return found


def _joined(k: int, whole: Node, sources: list[_Source], groups: Grouping, context: Context) -> PackStep:
    """The step for the concat of call k, whose group then holds all makers. UnsupportedError says why there is none."""
    assert context.target is not None
    trial = groups.copy()
    for source in sources:
        if source.calls:
            mine, other = trial.group_of[k], trial.group_of[min(source.calls)]
            if trial.would_loop(mine, other):
                raise UnsupportedError("something between a concat and the makers of its parts runs elsewhere")
            trial.merge(mine, other)
    steps, kernel, sizes = _packed(k, whole, sources, context)
    kernels = [s.kernel for s in steps]
    together = pack_estimate(kernels, context.profile, context.sizes).seconds
    apart = library_candidate(frozenset((k,)), context)[0].estimate.seconds
    apart += sum(context.estimate(fused(s.calls, context).kernel).seconds for s in sources if s.calls)
    if together >= apart:
        raise UnsupportedError(f"predicted {together * 1e6:.1f} us as a pack, {apart * 1e6:.1f} us apart")
    limit = max(eager_peak(context.flow), peak(groups.ordered(), context.flow).bytes)
    needed = peak(trial.ordered(), context.flow).bytes
    if needed > limit:
        raise UnsupportedError(f"as a pack {needed} bytes would be held at once, {limit} otherwise")
    groups.members, groups.group_of = trial.members, trial.group_of
    return PackStep(kernel, tuple(steps), tuple(sizes))


def _packed(
    k: int, whole: Node, sources: list[_Source], context: Context
) -> tuple[list[KernelStep], Kernel, list[Sizes]]:
    """The members' steps, the packed kernel and each member's sizes: told that all sizes divide by a vector's where
    they do. UnsupportedError where the parts are computed in different ways.
    """
    assert context.target is not None
    starts, unit = _starts(whole, context), unit_of(context.target)
    even = all(isinstance(s, int) and s % unit == 0 for s in starts)
    for step in dict.fromkeys((unit if even else 1, 1)):
        steps = [_member(k, whole, s, step, context) for s in sources]
        widest = max((s.kernel for s in steps), key=lambda kernel: kernel.axes[-1].block)
        schedule = schedule_of(widest, context.target.backend)
        steps = [
            s
            if schedule_of(s.kernel, context.target.backend) == schedule
            else _member(k, whole, p, step, context, schedule)
            for s, p in zip(steps, sources, strict=True)
        ]
        kernels = [s.kernel for s in steps]
        if len({likeness(kernel, step) for kernel in kernels}) == 1:
            kernel, sizes = pack(kernels, "kernel", unit=step)
            told = [unwrap(wrap(s) // step) for s in starts]
            return steps, kernel, [_told(row, s) for row, s in zip(sizes, told, strict=True)]
    raise UnsupportedError("parts of a concat that are computed in different ways: one pack takes one way")


def _starts(whole: Node, context: Context) -> list[Dim]:
    """Where each part begins in the joined value's buffer, in elements."""
    axis = (whole if whole.op == "concat" else whole.inputs[0]).attr("axis")
    at, found = wrap(0), list[Dim]()
    for part in _parts(whole):
        found.append(unwrap(at * context.layouts[whole].strides[axis]))
        at = at + part.shape[axis]
    return found


def _member(
    k: int, whole: Node, source: _Source, step: int, context: Context, schedule: Schedule | None = None
) -> KernelStep:
    """The kernel of one part, told where it writes by the symbol START, in `step` elements."""
    roots, inputs = cut((source.node,), source.calls or frozenset((k,)), context.flow)
    if not source.calls:
        roots = tuple(b.apply("copy", r) for r in roots)
    start = unwrap(sym(START, 0) * step)
    work = Work((whole,), inputs, context.layouts, roots, starts=(start,), sizes=context.sizes)
    kernel, reads = lowered(work, context, schedule)
    return KernelStep(kernel, reads, (whole,))


def _told(row: Sizes, start: Dim) -> Sizes:
    """A member's sizes with its start in place of the symbol."""
    return tuple(start if isinstance(d, Expr) and d.op == "sym" and d.name == START else d for d in row)
