"""The printer of plans. In: a Plan. Out: stable text: each region with its calls, buffers, candidates and the choice.

The candidate that runs is marked with *. Predicted times are left out unless they are asked for: they depend on the
device's profile, and everything else on the graph alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from interfuse.base.text import Writer
from interfuse.ir.graph import Graph
from interfuse.ir.node import Node
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, PackStep, Plan, Region, Step


def _node(node: Node) -> str:
    """A value as people know it: its name where it has one, then its type and shape."""
    name = node.attr("name") or node.hint or node.op
    return f"{name}:{node.dtype}[{', '.join(map(str, node.shape))}]"


def _nodes(nodes: Iterable[Node]) -> str:
    return ", ".join(map(_node, nodes)) or "nothing"


def _reads(step: KernelStep) -> str:
    """What a kernel reads, and from which element of it on."""
    starts = (f" from {start}" if start != 0 else "" for start in step.skipped or (0,) * len(step.inputs))
    return ", ".join(f"{_node(n)}{start}" for n, start in zip(step.inputs, starts, strict=True)) or "nothing"


def _over(step: KernelStep) -> str:
    """What is written over inputs of the graph."""
    return f", written over {_nodes(place for _, place in step.over)}" if step.over else ""


def _step(step: Step, graph: Graph) -> str:
    if isinstance(step, LibraryStep):
        return f"call {step.call} {graph.calls[step.call].target}"
    if isinstance(step, KernelStep):
        return f"kernel {step.kernel.name}({_reads(step)}) -> {_nodes(step.outputs)}{_over(step)}"
    if isinstance(step, PackStep):
        return f"pack {step.kernel.name} of {len(step.members)} members"
    attrs = "".join(f", {name}={value}" for name, value in step.attrs)
    return f"provider {step.provider}({_nodes(step.operands)}{attrs}) -> {_node(step.output)}"


def _candidate(candidate: Candidate, chosen: bool, graph: Graph, times: bool, w: Writer) -> None:
    launches = f"{candidate.launches} launch{'' if candidate.launches == 1 else 'es'}"
    e = candidate.estimate
    predicted = f", predicted {e.seconds * 1e6:.1f} us +- {e.error:.0%}" if times else ""
    with w.block(f"{'*' if chosen else '-'} {candidate.label}: {launches}, {candidate.bytes} bytes{predicted}"):
        for step in candidate.steps:
            if not isinstance(step, PackStep):
                w.line(_step(step, graph))
                continue
            with w.block(_step(step, graph)):
                for member, sizes in zip(step.members, step.sizes, strict=True):
                    named = [f"{name} = {size}" for name, size in zip(step.kernel.symbols, sizes, strict=True)]
                    given = f" with {', '.join(named)}" if named else ""
                    w.line(f"({_reads(member)}) -> {_nodes(member.outputs)}{_over(member)}{given}")


def _region(number: int, region: Region, graph: Graph, times: bool, w: Writer) -> None:
    with w.block(f"region {number} {region.name}: calls {', '.join(map(str, region.calls))}"):
        w.line(f"reads {_nodes(region.inputs)}")
        w.line(f"gives {_nodes(region.outputs)}")
        for k, candidate in enumerate(region.candidates):
            _candidate(candidate, k == region.chosen, graph, times, w)
        if times and region.reason:
            w.line(f"because: {region.reason}")


def show(plan: Plan, times: bool = True, only: Collection[int] | None = None) -> str:
    """The whole plan as text, or the regions at the positions `only`. `times=False` leaves predicted and measured times
    (and the reasons that quote them) out.
    """
    w = Writer("  ")
    with w.block(f"plan of {plan.graph.name} on {plan.graph.device}"):
        for number, region in enumerate(plan.regions):
            if only is None or number in only:
                _region(number, region, plan.graph, times, w)
        for call, why in plan.dropped if only is None else ():
            w.line(f"call {call} {plan.graph.calls[call].target} does not run: {why}")
    return w.text()
