"""Matrix products and what follows them. In: groups of calls, their kernels. Out: products joined with what alone reads
them; the ways to run such a group.

A product is a routine's, with the activation that follows it where that knows it, and a kernel of ours does the rest. A
product of few rows is one kernel of ours with all that follows it element by element (lower/products.py), where such a
kernel is to be had: the matrix takes as long to be read as the rest takes all together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import wrap
from interfuse.ir.node import Node
from interfuse.lower.domain import inside
from interfuse.lower.early import awaiting, in_a_row
from interfuse.lower.product_parts import product_parts
from interfuse.lower.products import FAMILY, KINDS, MOST
from interfuse.lower.split import replaced
from interfuse.lower.split_products import can_split
from interfuse.passes.few_rows import summed
from interfuse.plan.candidates import (
    Context,
    fused,
    fused_candidate,
    library_candidate,
    linear_of,
    lowered,
    one_after_other,
    outputs_of,
    parted_candidate,
    work_of,
)
from interfuse.plan.flow import OUTPUT
from interfuse.plan.memory import spare
from interfuse.plan.notes import region_name
from interfuse.plan.plan import Candidate, KernelStep
from interfuse.plan.regions import Grouping
from interfuse.plan.routines import activation_of, provider_candidates

Calls = frozenset[int]

Named = Callable[[KernelStep, Calls, str], KernelStep]
"""Gives the kernel of some calls its name, that of the region or one of its own."""


def products_among(calls: Calls, context: Context) -> dict[int, Node]:
    """The calls that are matrix products, and their results."""
    found = {k: linear_of(context.flow.graph.calls[k]) for k in sorted(calls)}
    return {k: n for k, n in found.items() if n is not None}


def join_products(groups: Grouping, context: Context, fusable: Callable[[int], bool]) -> None:
    """Join a matrix product with the activation that alone reads it, and one of few rows with the group that does,
    where one kernel for both is predicted to be faster.
    """
    flow = context.flow
    # What makes a value that is copied into an input may write that input itself.
    written = {flow.producer[value] for _, value in flow.writes.values()}
    for k, linear in products_among(frozenset(flow.needed), context).items():
        readers = flow.readers.get(linear, ())
        there = {OUTPUT if r == OUTPUT else groups.group_of[r] for r in readers}
        if len(there) != 1 or OUTPUT in there:
            continue
        (group,) = there
        calls = groups.members[group]
        active = activation_of(flow.graph.calls[readers[0]]) is not None and flow.leaves[readers[0]] == (linear,)
        if (calls == {readers[0]} and active) or (
            all(fusable(c) or linear_of(flow.graph.calls[c]) is not None for c in calls)
            and written.isdisjoint(calls)
            and not groups.would_loop(groups.group_of[k], group)
            and _pays(k, calls, context)
        ):
            groups.merge(groups.group_of[k], group)


def _pays(k: int, calls: Calls, context: Context) -> bool:
    """True where the product k and `calls`, which read it, are predicted to be faster as one kernel."""
    together = _own(calls | {k}, context, _as_it_is, "")
    if not together:
        return False
    (linear,) = products_among(frozenset((k,)), context).values()
    library, _ = library_candidate(frozenset((k,)), context)
    ways = [library, *provider_candidates(linear, linear, "none", context)]
    ways += _own(frozenset((k,)), context, _as_it_is, "")
    alone = min(ways, key=lambda c: c.estimate.seconds)
    own = multiplied(calls, context) if products_among(calls, context) else None
    try:
        rest = fused_candidate(fused(calls, context) if own is None else own, context)
    except UnsupportedError:
        return False
    apart = one_after_other([alone.estimate, rest.estimate], context.profile).seconds
    return min(c.estimate.seconds for c in together) <= apart


def _as_it_is(step: KernelStep, calls: Calls, name: str) -> KernelStep:
    """The kernel without a name of its own: only its time is asked for."""
    return step


def multiplied(calls: Calls, context: Context) -> KernelStep | None:
    """The kernel that multiplies the few rows of the products among `calls` on tensor cores, and computes what follows;
    None where that is not to be had.
    """
    target = context.target
    if target is None or context.profile.kind != "cuda":
        return None
    linears = products_among(calls, context).values()
    if not all(can_split(n, target) for n in linears) and (len(linears) == len(calls) or not all(map(_few, linears))):
        return None
    if calls not in context.multiplied:
        context.multiplied[calls] = None
        try:
            work = work_of(calls, context)
            sums = {n: summed(n) for n in inside(work.roots, work.inputs) if n.op == "linear"}
            work = replace(work, roots=replaced(work.roots, work.inputs, sums))
            kernel, reads = lowered(work, context)
        except UnsupportedError:
            return None
        if kernel.family == FAMILY:
            context.multiplied[calls] = KernelStep(kernel, reads, work.outputs, work=work, skipped=work.skipped(reads))
    return context.multiplied[calls]


def _in_parts(calls: Calls, context: Context) -> tuple[KernelStep, ...]:
    """The kernels that multiply parts of the product among `calls`, and do the rest; none where that is not to be had,
    or would need more memory than eager.
    """
    if calls in context.parted or context.target is None:
        return context.parted.get(calls, ())
    if not context.spare:
        context.spare.update(spare(context.flow))
    context.parted[calls] = ()
    room = min(context.spare[k] for k in products_among(calls, context))
    with contextlib.suppress(UnsupportedError):
        whole = work_of(calls, context)
        works = awaiting(product_parts(whole, context.target, room), whole.inputs)
        made = [(w, *lowered(w, context)) for w in works]
        if made and made[0][1].family == FAMILY:
            context.parted[calls] = tuple(
                KernelStep(in_a_row(kernel, reads, w, k, len(made)), reads, w.outputs, work=w, skipped=w.skipped(reads))
                for k, (w, kernel, reads) in enumerate(made)
            )
    return context.parted[calls]


def _few(linear: Node) -> bool:
    """True for a product of few rows of a narrow type."""
    return linear.dtype in KINDS and wrap(linear.shape[0]).hi <= MOST


def product_candidates(calls: Calls, name: str, context: Context, named: Named) -> list[Candidate]:
    """The ways to run `calls`, products and what follows them, beside the library's; `name` is the region's. One kernel
    for all is none of them where it is predicted to be slower by more than such predictions are off.
    """
    linears = products_among(calls, context)
    if len(linears) == len(calls):
        (linear,) = linears.values()
        found = provider_candidates(linear, linear, "none", context)
    else:
        found = _of_routines(calls, linears, context, named)
    best = min((c.estimate.seconds for c in found), default=math.inf)
    own = _own(calls, context, named, name)
    return [*(c for c in own if c.estimate.seconds * (1 - c.estimate.error) <= best), *found]


def _own(calls: Calls, context: Context, named: Named, name: str) -> list[Candidate]:
    """The ways to multiply on tensor cores and compute what follows, in one kernel or in parts."""
    found = []
    if (whole := multiplied(calls, context)) is not None:
        found.append(fused_candidate(named(whole, calls, name), context))
        if steps := _in_parts(calls, context):
            found.append(parted_candidate([named(s, calls, f"{name}_{k + 1}") for k, s in enumerate(steps)], context))
    return found


def _of_routines(calls: Calls, linears: Mapping[int, Node], context: Context, named: Named) -> list[Candidate]:
    """The ways to run `calls` in which routines compute the products `linears`."""
    graph, found, rest = context.flow.graph, list[Candidate](), calls - frozenset(linears)
    if len(linears) == len(rest) == 1:
        (linear,), (after,), (output,) = linears.values(), rest, outputs_of(calls, context.flow)
        found += provider_candidates(linear, output, activation_of(graph.calls[after]) or "none", context)
    try:
        step = fused(rest, context)
    except UnsupportedError:
        return found
    second = fused_candidate(named(step, rest, region_name(rest, graph)), context)
    library = [library_candidate(frozenset((k,)), context)[0] for k in linears]
    ways = [provider_candidates(n, n, "none", context) for n in linears.values()]
    for k in range(max(map(len, ways)) if all(ways) else 0):  # the first routine for each product, then the second
        found.append(in_turn((*(w[min(k, len(w) - 1)] for w in ways), second), context))
    return [*found, in_turn((*library, second), context)]


def in_turn(parts: Sequence[Candidate], context: Context) -> Candidate:
    """The candidate that runs several, one after the other."""
    return Candidate(
        ", then ".join(dict.fromkeys(c.label for c in parts)),
        tuple(s for c in parts for s in c.steps),
        one_after_other([c.estimate for c in parts], context.profile),
        sum(c.bytes for c in parts),
        sum(c.launches for c in parts),
        next((c.family for c in parts if c.family != "library"), "library"),
    )
