"""Candidates of a region. In: a set of calls, the flow and the target. Out: ways to run it, each with estimate and
bytes.

Every region has its library candidate. A fused kernel is one where the lowering accepts it. What routines do for matrix
products is in plan/routines.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from interfuse.base.errors import UnsupportedError
from interfuse.cost.estimate import Estimate, in_turn
from interfuse.cost.library import asked, library_estimate
from interfuse.cost.model import kernel_estimate, pack_estimate
from interfuse.cost.traffic import call_bytes, kernel_bytes
from interfuse.device.profile import DeviceProfile
from interfuse.ir.graph import Call
from interfuse.ir.layout import Layout, laid_over
from interfuse.ir.node import Node
from interfuse.lower.early import awaiting, in_a_row
from interfuse.lower.families import lower
from interfuse.lower.in_place import check_over
from interfuse.lower.kernel import Kernel
from interfuse.lower.mixed import mixed
from interfuse.lower.products import FAMILY as PRODUCT
from interfuse.lower.rows_first import rows_first
from interfuse.lower.rows_turned import rows_turned
from interfuse.lower.schedule import Schedule
from interfuse.lower.slices import slices_first
from interfuse.lower.split import split
from interfuse.lower.target import Target
from interfuse.lower.team import team
from interfuse.lower.totals import totals
from interfuse.lower.vectors import VECTOR_BYTES
from interfuse.lower.windows import windows
from interfuse.lower.work import Work
from interfuse.plan.alike import Likeness
from interfuse.plan.flow import OUTPUT, Flow, cut, library_calls
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, PackStep

T = TypeVar("T")

NO_TARGET = "no kernels are generated for this device"
"""Why there is no kernel where whoever asks for a plan does not know better."""


@dataclass
class Context:
    """What candidate making needs: the flow, layouts, target (None: no kernels on this device), profile, memo of
    kernels.

    `unavailable` holds the providers that cannot be used here, with the reason; `why` is the reason for no target.
    """

    flow: Flow
    layouts: Mapping[Node, Layout]
    target: Target | None
    profile: DeviceProfile
    unavailable: Mapping[str, str]
    works: dict[frozenset[int], Work] = field(default_factory=dict)
    tried: dict[frozenset[int], KernelStep | str] = field(default_factory=dict)
    parted: dict[frozenset[int], tuple[KernelStep, ...]] = field(default_factory=dict)
    others: dict[frozenset[int], Mapping[str, KernelStep]] = field(default_factory=dict)
    multiplied: dict[frozenset[int], KernelStep | None] = field(default_factory=dict)
    likeness: Likeness = field(default_factory=Likeness)
    lowered: dict[Hashable, tuple[Kernel, tuple[int, ...]] | str] = field(default_factory=dict)
    predicted: dict[tuple[int, frozenset[str]], tuple[Kernel, Estimate]] = field(default_factory=dict)
    spare: dict[int, int] = field(default_factory=dict)
    refused: set[Hashable] = field(default_factory=set)
    named: dict[tuple[int, tuple[str, ...]], tuple[Kernel, Kernel]] = field(default_factory=dict)
    why: str = NO_TARGET

    @property
    def sizes(self) -> Mapping[str, int]:
        """The size symbols' values in the example: what is predicted of a dynamic graph is predicted for these."""
        return dict(self.flow.graph.hints)

    def estimate(self, kernel: Kernel, near: frozenset[str] = frozenset()) -> Estimate:
        """What is predicted of one launch of a kernel, right behind others that had the parameters `near`; of the same
        kernel again, what was predicted before.
        """
        found = self.predicted.get((id(kernel), near))
        if found is None:  # the kernel is kept beside its estimate, so that no other one gets its id
            seconds = kernel_estimate(kernel, self.profile, self.sizes, near)
            found = self.predicted[id(kernel), near] = kernel, seconds
        return found[1]


def outputs_of(calls: frozenset[int], flow: Flow) -> tuple[Node, ...]:
    """The anchors of `calls` that someone else reads."""
    found = [n for k in sorted(calls) for n in flow.graph.calls[k].outs if n is not None and flow.producer.get(n) == k]
    return tuple(n for n in dict.fromkeys(found) if any(r == OUTPUT or r not in calls for r in flow.readers.get(n, ())))


def fused(calls: frozenset[int], context: Context) -> KernelStep:
    """One kernel for `calls`. UnsupportedError says why there is none."""
    known = context.tried.get(calls)
    if isinstance(known, str):
        raise UnsupportedError(known)
    if known is not None:
        return known
    try:
        work = work_of(calls, context)
        kernel, reads = lowered(work, context)
        over = _over(calls, context.flow)
        check_over(kernel, reads, work.outputs, over)
    except UnsupportedError as error:
        context.tried[calls] = str(error)
        raise
    step = context.tried[calls] = KernelStep(
        kernel, reads, work.outputs, tuple(over.items()), work, work.skipped(reads)
    )
    return step


def lowered(work: Work, context: Context, schedule: Schedule | None = None) -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel for `work` and what it reads; where a work like it was lowered before, that one's kernel.
    UnsupportedError as of `lower`.
    """
    if context.target is None:
        raise UnsupportedError(context.why)
    key, leaves = context.likeness.of(work, schedule)
    found = context.lowered.get(key)
    if found is None:
        try:
            kernel, reads = lower("kernel", work, context.target, schedule=schedule)
            found = kernel, tuple(leaves.index(n) for n in reads)
        except UnsupportedError as error:
            found = str(error)
        context.lowered[key] = found
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found[0], tuple(leaves[k] for k in found[1])


def _over(calls: frozenset[int], flow: Flow) -> dict[Node, Node]:
    """The values of `calls` that are written over inputs, and these inputs."""
    return {flow.writes[k][1]: flow.writes[k][0] for k in sorted(calls & flow.writes.keys())}


def work_of(calls: frozenset[int], context: Context) -> Work:
    """What a kernel for `calls` is asked for."""
    known = context.works.get(calls)
    if known is not None:
        return known
    pure = calls - context.flow.writes.keys()
    outputs = outputs_of(pure, context.flow)
    if not outputs:
        raise UnsupportedError("nothing that anyone reads")
    roots, inputs = cut(outputs, pure, context.flow)
    over = _over(calls, context.flow)
    vector = VECTOR_BYTES if context.target is not None and context.target.backend == "triton" else 1
    roots = slices_first(roots, inputs)
    own = windows(roots, inputs, context.layouts, over.values(), vector)
    own |= {value: context.layouts[place] for value, place in over.items()}
    work = Work(outputs, inputs, laid_over(own, context.layouts), roots, sizes=context.sizes)
    context.works[calls] = work
    return work


def in_parts(calls: frozenset[int], context: Context) -> tuple[KernelStep, ...]:
    """Kernels that compute `calls` one after the other, rows before their products, rows and columns together, rows
    before totals or each reduction in parts; none where that is not to be had.

    What is written over inputs stays one kernel: were the second of several to fail, there would be no going back.
    """
    if calls not in context.parted and context.target is not None and not calls & context.flow.writes.keys():
        context.parted[calls] = _made(_parts, calls, context.target, context) or ()
    return context.parted.get(calls, ())


def _parts(whole: Work, target: Target) -> tuple[KernelStep, ...]:
    """The kernels of `in_parts`; UnsupportedError, or none, where there are none."""
    steps: list[KernelStep] = []
    works = rows_first(whole, target) or mixed(whole, target) or totals(whole, target)
    works = works or rows_turned(whole, target) or split(whole, target)
    works = awaiting(works, whole.inputs)
    if any(len(set(w.outputs)) < len(w.outputs) for w in works):
        raise UnsupportedError("a value would be written twice")  # its first buffer would be gone by then
    for k, work in enumerate(works):
        kernel, reads = lower("kernel", work, target)
        if target.backend == "triton":
            kernel = in_a_row(kernel, reads, work, k, len(works))
        steps.append(KernelStep(kernel, reads, work.outputs, work=work, skipped=work.skipped(reads)))
    return tuple(steps)


def others(calls: frozenset[int], context: Context) -> Mapping[str, KernelStep]:
    """Kernels that compute `calls` another way: a "team" of programs shares each row, or rows go by way of a "ring" in
    shared memory. What is written over inputs stays with programs that wait for nobody.
    """
    target = context.target
    if target is None or context.profile.kind != "cuda" or calls & context.flow.writes.keys():
        return {}
    if calls not in context.others:
        made = {way: _made(make, calls, target, context) for way, make in (("team", _team), ("ring", _ring))}
        context.others[calls] = {way: step for way, step in made.items() if step is not None}
    return context.others[calls]


def _team(whole: Work, target: Target) -> KernelStep | None:
    """Rows that teams share; UnsupportedError, or None, where they do not."""
    work = team(whole, target)
    return None if work is None else _step(work, target)


def _ring(whole: Work, target: Target) -> KernelStep:
    """Rows by way of a ring; UnsupportedError where they cannot go that way."""
    return _step(replace(whole, ring=True), target)


def _step(work: Work, target: Target) -> KernelStep:
    kernel, reads = lower("kernel", work, target)
    return KernelStep(kernel, reads, work.outputs, work=work, skipped=work.skipped(reads))


def _made(make: Callable[[Work, Target], T], calls: frozenset[int], target: Target, context: Context) -> T | None:
    """What `make` makes of the work for `calls`; None where that is nothing, or was nothing of a work like it."""
    try:
        work = work_of(calls, context)
    except UnsupportedError:
        return None
    like, made = (make, context.likeness.of(work)[0]), None
    if like not in context.refused:
        with contextlib.suppress(UnsupportedError):
            made = make(work, target)
        if not made:
            context.refused.add(like)
    return made


def seconds_of(calls: frozenset[int], context: Context) -> float:
    """Predicted seconds of the kernel for `calls`, or of those that do it another way where these are faster.

    UnsupportedError says why there is none.
    """
    parts = in_parts(calls, context)
    ways = [parted_candidate(parts, context)] if parts else []
    ways += [fused_candidate(step, context) for step in others(calls, context).values()]
    try:
        ways.append(fused_candidate(fused(calls, context), context))
    except UnsupportedError:
        if not ways:
            raise
    return min(c.estimate.seconds for c in ways)


def near_of(steps: Sequence[KernelStep]) -> list[frozenset[str]]:
    """For each of kernels that follow each other, the parameters that those before it have read or written."""
    before, found = set[Node](), list[frozenset[str]]()
    for s in steps:
        found.append(frozenset(p.name for n, p in zip(s.inputs, s.kernel.params, strict=False) if n in before))
        before |= {*s.inputs, *s.outputs}
    return found


def one_after_other(estimates: Sequence[Estimate], profile: DeviceProfile) -> Estimate:
    """All of them in turn, as the nodes of one CUDA graph, or as calls on a CPU."""
    launch = profile.replay or profile.launch
    return in_turn(estimates, launch, profile.gap or launch)


def parted_candidate(steps: Sequence[KernelStep], context: Context) -> Candidate:
    """The candidate that reduces in parts: one kernel after the other."""
    each = [context.estimate(s.kernel, near) for s, near in zip(steps, near_of(steps), strict=True)]
    families = [s.kernel.family for s in steps]
    family = PRODUCT if PRODUCT in families else families[0].split(",")[0]
    return Candidate(
        f"fused: {family}, in parts",
        tuple(steps),
        one_after_other(each, context.profile).times(context.profile.correction(f"{family}, in parts")),
        sum(kernel_bytes(s.kernel, context.sizes) for s in steps),
        len(steps),
        f"{family}, in parts",
    )


def fused_candidate(step: KernelStep, context: Context) -> Candidate:
    """The candidate that runs one generated kernel."""
    sizes = context.sizes
    return Candidate(
        f"fused: {step.kernel.family}",
        (step,),
        context.estimate(step.kernel).times(context.profile.correction(step.kernel.family)),
        kernel_bytes(step.kernel, sizes),
        1,
        step.kernel.family,
    )


def packed_candidate(step: PackStep, context: Context) -> Candidate:
    """The candidate that runs like kernels in one launch."""
    kernels, sizes = [m.kernel for m in step.members], context.sizes
    return Candidate(
        f"packed: {step.kernel.family}",
        (step,),
        pack_estimate(kernels, context.profile, sizes).times(context.profile.correction(step.kernel.family)),
        sum(kernel_bytes(k, sizes) for k in kernels),
        1,
        step.kernel.family,
    )


def call_estimate(call: Call, profile: DeviceProfile, sizes: Mapping[str, int]) -> Estimate:
    """Predicted seconds of one captured call; `sizes` gives the size symbols."""
    return library_estimate(asked(call, sizes), profile).times(profile.correction("library"))


def library_candidate(calls: frozenset[int], context: Context) -> tuple[Candidate, frozenset[Node]]:
    """The candidate that runs the captured calls, and the buffers that it reads."""
    run, reads = library_calls(calls, context.flow)
    graph, sizes = context.flow.graph, context.sizes
    parts = [call_estimate(graph.calls[k], context.profile, sizes) for k in run]
    total = one_after_other([p for p in parts if p.seconds], context.profile)
    moved = sum(call_bytes(graph.calls[k], sizes) for k in run)
    launches = sum(graph.calls[k].launches for k in run)
    label = "library: " + "+".join(dict.fromkeys(short_name(graph.calls[k].target) for k in sorted(calls)))
    return Candidate(label, tuple(LibraryStep(k) for k in run), total, moved, launches), reads


def short_name(target: str) -> str:
    """aten.native_layer_norm.default -> layer_norm."""
    name = target.split(".")[1] if target.count(".") >= 1 else target
    name = name.strip("_")
    return _PLAIN.get(name, name)


_PLAIN = {
    "native_layer_norm": "layer_norm",
    "addmm": "linear",
    "mm": "linear",
    "scaled_dot_product_flash_attention_for_cpu": "attention",
    "scaled_dot_product_flash_attention": "attention",
    "scaled_dot_product_efficient_attention": "attention",
    "scaled_dot_product_cudnn_attention": "attention",
    "to_copy": "cast",
    "fused_rms_norm": "rms_norm",
}


def linear_of(call: Call) -> Node | None:
    """The `linear` node that the call computes, or None."""
    out = call.outs[0] if call.outs else None
    return out if out is not None and out.op == "linear" else None
