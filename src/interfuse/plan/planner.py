"""The planner. In: a rewritten graph, a target and a device profile. Out: a Plan: regions with ranked candidates.

It forms regions greedily by predicted saving, gives each its candidates, and chooses by prediction; the race may choose
otherwise later. Every refusal is recorded with its reason.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.base.record import Record
from interfuse.device.profile import DeviceProfile
from interfuse.device.table import find
from interfuse.ir.graph import Graph
from interfuse.ir.index import wrap
from interfuse.ir.layout import base_of
from interfuse.ir.node import Node
from interfuse.lower.canonical import canonical
from interfuse.lower.kernel import Kernel
from interfuse.lower.pack import pack
from interfuse.lower.target import Target
from interfuse.plan.attention import Attention, attention_candidates
from interfuse.plan.candidates import (
    NO_TARGET,
    Context,
    fused,
    fused_candidate,
    in_parts,
    library_candidate,
    linear_of,
    one_after_other,
    others,
    outputs_of,
    packed_candidate,
    parted_candidate,
    seconds_of,
    short_name,
)
from interfuse.plan.flow import Flow, analyse
from interfuse.plan.joined import Joined, form_joined
from interfuse.plan.memory import eager_peak, peak, suspects
from interfuse.plan.notes import note, region_name
from interfuse.plan.packs import form, unit_of
from interfuse.plan.plan import Candidate, KernelStep, PackStep, Plan, ProviderStep, Region
from interfuse.plan.products import in_turn, join_products, product_candidates, products_among
from interfuse.plan.regions import Former, Grouping
from interfuse.plan.spelled import spelled_out

MOST_APART = 4
"""Kernels to build at most so that the members of a pack could also run one by one."""


def plan(
    graph: Graph,
    target: Target | None,
    profile: DeviceProfile,
    record: Record,
    off: tuple[str, ...] = (),
    unavailable: Mapping[str, str] | None = None,
    why: str = NO_TARGET,
) -> Plan:
    """The plan for `graph` on the device of `profile`.

    target       what kernels are generated for; None plans library calls and providers only
    off          region names, or parts of them, that stay on the library path
    unavailable  providers that cannot be used here, with the reason
    why          the reason where there is no target
    """
    flow = analyse(graph)
    context = Context(flow, graph.layouts(), target, profile, unavailable or {}, why=why)
    rejected: list[tuple[frozenset[int], str]] = []
    attended = spelled_out(flow, context.layouts) if profile.kind == "cuda" else {}
    apart = frozenset().union(*attended)
    former = _former(context, rejected, lambda k: k not in apart and _fusable(flow, k))
    for calls in attended:
        former.groups.merge_all(calls)
    groups = former.run()
    join_products(groups, context, lambda k: k not in apart and _fusable(flow, k))
    _keep_to_eagers_memory(former, flow, rejected)
    _join_writes(groups, context, rejected)
    in_kernels = {k for k in flow.needed if (_fusable(flow, k) or k in flow.writes) and k not in apart}
    joined = form_joined(groups, context, in_kernels.__contains__, lambda union, why: rejected.append((union, why)))
    packs = form(groups, context, in_kernels.__contains__, lambda union, why: rejected.append((union, why)))
    kernels: dict[Kernel, str] = {}
    regions = tuple(
        _region(calls, packs.get(calls, ()), joined.get(calls), attended.get(calls), context, off, kernels)
        for calls in groups.ordered()
    )
    note(graph, regions, rejected, record)
    needed = set(flow.needed)
    dropped = tuple((k, _why_dropped(graph, k)) for k in range(len(graph.calls)) if k not in needed)
    return Plan(graph, regions, dropped)


def _former(context: Context, rejected: list[tuple[frozenset[int], str]], fusable: Callable[[int], bool]) -> Former:
    return Former(
        context.flow,
        fusable,
        lambda calls: _judge(calls, context, rejected),
        lambda union, why: rejected.append((union, why)),
    )


def library_plan(graph: Graph, profile: DeviceProfile | None = None, record: Record | None = None) -> Plan:
    """The plan that runs every needed call as captured, one region a call; without a profile nothing is predicted."""
    flow = analyse(graph)
    context = Context(flow, {}, None, profile or find("CPU portable"), {})
    regions = []
    for k in flow.needed:
        calls = frozenset((k,))
        candidate, reads = library_candidate(calls, context)
        regions.append(
            Region(
                short_name(graph.calls[k].target),
                (k,),
                _sorted(reads),
                outputs_of(calls, flow),
                (candidate,),
                reason=graph.calls[k].reason or "library path asked for",
            )
        )
    if record is not None:
        note(graph, tuple(regions), [], record)
    return Plan(graph, tuple(regions))


def _fusable(flow: Flow, k: int) -> bool:
    call = flow.graph.calls[k]
    return not call.opaque and not call.effect and linear_of(call) is None


def _judge(calls: frozenset[int], context: Context, rejected: list[tuple[frozenset[int], str]]) -> float | None:
    try:
        return seconds_of(calls, context)
    except UnsupportedError as error:
        rejected.append((calls, str(error)))
        return None


def _join_writes(groups: Grouping, context: Context, rejected: list[tuple[frozenset[int], str]]) -> None:
    """Let a kernel write its results straight into inputs of the graph, where nothing else reads these any more."""
    flow = context.flow
    for k, (_, value) in flow.writes.items():
        maker = groups.group_of[flow.producer[value]]
        calls = groups.members[maker]
        if k not in groups.group_of or not all(_fusable(flow, c) or c in flow.writes for c in calls):
            continue
        try:
            if groups.would_loop(maker, groups.group_of[k]):
                raise UnsupportedError("the input that would be written is still read")
            fused(calls | {k}, context)
        except UnsupportedError as error:
            rejected.append((calls | {k}, str(error)))
        else:
            groups.merge(maker, groups.group_of[k])


def _keep_to_eagers_memory(former: Former, flow: Flow, rejected: list[tuple[frozenset[int], str]]) -> None:
    """Break regions up until running them needs no more memory at once than the calls one by one. Each time the parts
    are smaller, so this ends.
    """
    groups = former.groups
    eager = eager_peak(flow)
    order = groups.ordered()
    while (found := peak(order, flow)).bytes > eager:
        merged = suspects(found, order, flow)
        # One of them; or all, where several hold as much at once.
        choices: tuple[list[tuple[frozenset[int], ...]], ...] = ([(calls,) for calls in merged], [tuple(merged)])
        trials = (_relief(each, groups, flow) for each in choices)
        best = next((parts for held, parts in trials if held < found.bytes), None)
        if best is None:
            return
        for calls in best:
            rejected.append((calls, f"together {found.bytes} bytes would be held at once, eager holds {eager}"))
            former.break_up(calls)
        order = groups.ordered()


def _relief(
    choices: Sequence[tuple[frozenset[int], ...]], groups: Grouping, flow: Flow
) -> tuple[float, tuple[frozenset[int], ...]]:
    """The choice of regions that, split, leaves the fewest bytes held at once, fewer calls first; and these bytes."""
    trials = [(peak(groups.without(*c).ordered(), flow).bytes, sum(map(len, c)), c) for c in choices]
    held, _, best = min(trials, default=(math.inf, 0, ()), key=lambda trial: trial[:2])
    return held, best


def _region(
    calls: frozenset[int],
    members: Sequence[frozenset[int]],
    joined: Joined | None,
    attention: Attention | None,
    context: Context,
    off: tuple[str, ...],
    kernels: dict[Kernel, str],
) -> Region:
    """The region of `calls`; of a pack where it has `members`, of one that writes a joined value or is an attention
    that they spell out where that is given.
    """
    graph = context.flow.graph
    name = f"{_pure_name(members[0], context)} x{len(members)}" if members else _pure_name(calls, context)
    if joined is not None:
        name = f"{region_name(joined.first, graph)} x{len(joined.step.members)}+cat"
    if attention is not None:
        name = "attention"
    library, reads = library_candidate(calls, context)
    outputs = outputs_of(calls, context.flow)
    candidates: list[Candidate] = [library]
    reason = ""
    if any(part and part in name for part in off):
        reason = "switched off by name"
    else:
        try:
            if joined is not None:
                faster = [packed_candidate(_named_pack(joined.step, name, calls, context, kernels), context)]
            elif attention is not None:
                faster = [
                    *attention_candidates(calls, context, attention),
                    _in_pieces(calls, context, kernels),
                ]
            else:
                faster = _packed(members, context, kernels) if members else _faster(calls, name, context, kernels)
            candidates = [*faster, library]
        except UnsupportedError as error:
            reason = str(error)
    pure = calls - context.flow.writes.keys() or calls
    alone = len(candidates) == 1
    opaque = next((graph.calls[k].reason for k in sorted(pure) if graph.calls[k].opaque and alone), "")
    read = set(reads)
    for c in candidates:
        own = {n for step in c.steps if isinstance(step, KernelStep) for n in step.outputs}
        for step in c.steps:
            if isinstance(step, ProviderStep):
                bases = {base_of(n, context.flow.producer) for n in step.operands}
                read |= {n for n in bases if n not in own and context.flow.producer.get(n) not in calls}
            if isinstance(step, (KernelStep, PackStep)):
                read |= {n for n in step.inputs if n not in own and context.flow.producer.get(n) not in calls}
    ranked = tuple(sorted(candidates, key=lambda c: c.estimate.seconds))
    best = "only the library can run it" if len(ranked) == 1 else f"predicted {ranked[0].estimate.seconds * 1e6:.1f} us"
    best = "; ".join(filter(None, (ranked[0].note, best)))
    return Region(name, tuple(sorted(calls)), _sorted(read), outputs, ranked, 0, opaque or reason or best)


def _faster(calls: frozenset[int], name: str, context: Context, kernels: dict[Kernel, str]) -> list[Candidate]:
    """The candidates beside the library's."""
    graph = context.flow.graph
    linears = products_among(calls, context)
    if not linears and any(graph.calls[k].opaque for k in calls - context.flow.writes.keys() or calls):
        return attention_candidates(calls, context)
    if not linears:
        steps = [
            _renamed(s, f"{name}_{k + 1}", calls, context, kernels) for k, s in enumerate(in_parts(calls, context))
        ]
        found = [parted_candidate(steps, context)] if steps else []
        for way, step in others(calls, context).items():
            found.append(fused_candidate(_renamed(step, f"{name}_{way}", calls, context, kernels), context))
        try:
            return [fused_candidate(_kernel(calls, name, context, kernels), context), *found]
        except UnsupportedError:
            if not found:
                raise
            return found
    return product_candidates(calls, name, context, lambda step, some, own: _renamed(step, own, some, context, kernels))


def _in_pieces(calls: frozenset[int], context: Context, kernels: dict[Kernel, str]) -> Candidate:
    """The attention that `calls` spell out as they are, what stands between its products in kernels."""
    flow = context.flow
    former = _former(context, [], lambda k: _fusable(flow, k))
    former.join_makers(calls)
    parts = []
    for some in (g for g in former.groups.ordered() if g <= calls):
        part, _ = library_candidate(some, context)
        if all(_fusable(flow, k) for k in some):
            with contextlib.suppress(UnsupportedError):
                part = fused_candidate(_kernel(some, region_name(some, flow.graph), context, kernels), context)
        parts.append(part)
    return in_turn(parts, context)


def _kernel(calls: frozenset[int], name: str, context: Context, kernels: dict[Kernel, str]) -> KernelStep:
    """The region's kernel under a name of its own; equal kernels share one."""
    return _renamed(fused(calls, context), name, calls, context, kernels)


def _renamed(
    step: KernelStep, name: str, calls: frozenset[int], context: Context, kernels: dict[Kernel, str]
) -> KernelStep:
    """The step with its kernel under a name that equal kernels share; what was named alike before is that kernel."""
    kernel, doc = step.kernel, _doc(step, calls, context)
    known = context.named.get((id(kernel), doc))
    if known is None:  # the kernel is kept beside the named one, so that no other one gets its id
        named = replace(kernel, name=_named(kernel, name, kernels), doc=doc)
        known = context.named[id(kernel), doc] = kernel, named
    return replace(step, kernel=known[1])


def _named(kernel: Kernel, name: str, kernels: dict[Kernel, str]) -> str:
    """A name like `name` that equal kernels share."""
    plain = canonical(kernel)
    found = kernels.get(plain)
    if found is None:
        wish = "".join(ch if ch.isalnum() else "_" for ch in name)
        taken = sum(1 for n in kernels.values() if n == wish or n.startswith(wish + "_v"))
        found = kernels[plain] = wish if not taken else f"{wish}_v{taken + 1}"
    return found


def _packed(members: Sequence[frozenset[int]], context: Context, kernels: dict[Kernel, str]) -> list[Candidate]:
    """All members in one launch; and one launch each, where few kernels serve them."""
    assert context.target is not None
    steps = [fused(m, context) for m in members]
    name = _pure_name(members[0], context)
    kernel, sizes = pack([s.kernel for s in steps], "kernel", unit=unit_of(context.target))
    step = _named_pack(PackStep(kernel, tuple(steps), tuple(sizes)), name, members[0], context, kernels)
    found = [packed_candidate(step, context)]
    # What is written over cannot be computed again, so all of it has to happen in the one launch that may fail.
    if any(s.over for s in steps) or len({canonical(s.kernel) for s in steps}) > MOST_APART:
        return found
    each = [fused_candidate(_kernel(m, name, context, kernels), context) for m in members]
    return [
        *found,
        Candidate(
            f"fused: {kernel.family}, one by one",
            tuple(s for c in each for s in c.steps),
            one_after_other([c.estimate for c in each], context.profile),
            sum(c.bytes for c in each),
            len(each),
            kernel.family,
        ),
    ]


def _named_pack(
    step: PackStep, name: str, calls: frozenset[int], context: Context, kernels: dict[Kernel, str]
) -> PackStep:
    """The step with its kernel's name and what a reader of the generated file wants to know first."""
    sources = sorted({context.flow.graph.calls[k].source for k in calls} - {""})
    doc = (
        "A pack: one launch for any number of members that differ in sizes alone.",
        f"Family: {step.kernel.family}.",
        f"From: {', '.join(sources)}" if sources else "",
    )
    return replace(step, kernel=replace(step.kernel, name=_named(step.kernel, f"pack_{name}", kernels), doc=doc))


def _doc(step: KernelStep, calls: frozenset[int], context: Context) -> tuple[str, ...]:
    """What a reader of the generated file wants to know first."""
    graph = context.flow.graph
    sources = dict.fromkeys(
        f"{graph.calls[k].source} ({short_name(graph.calls[k].target)})" for k in sorted(calls) if graph.calls[k].source
    )
    shapes = [f"{p.name}: {list(p.shape)} {p.dtype}" for p in step.kernel.params if p.mode != "scratch"]
    reads, writes = (sum((wrap(n.size) * n.dtype.bytes for n in ns), wrap(0)) for ns in (step.inputs, step.outputs))
    return (
        "; ".join(shapes),
        f"Family: {step.kernel.family}. Reads {reads} bytes, writes {writes} bytes.",
        "From: " + ", ".join(sources) if sources else "",
    )


def _pure_name(calls: frozenset[int], context: Context) -> str:
    """The name of a region, without what it only writes back."""
    return region_name(calls - context.flow.writes.keys() or calls, context.flow.graph)


def _sorted(nodes: set[Node] | frozenset[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda n: (n.hint, repr(n))))


def _why_dropped(graph: Graph, k: int) -> str:
    call = graph.calls[k]
    if call.view_of is not None:
        return "view: index arithmetic of its reader"
    return "its value is not needed, or is computed inside its readers"
