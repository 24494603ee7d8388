"""A region on its own, ready to be tried. In: a region of a plan. Out: a program a candidate, and inputs to run it on.

Inputs are made up from a seeded generator, in the captured types, shapes and layouts: normal numbers for tensors,
numbers around one for vectors (weights, scales, variances), 0 or 1 for integers, and for indices any place of what they
pick from: a table's few first rows would all lie in caches. Sizes that change between calls are
those of the example that was captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from interfuse.base.keys import digest
from interfuse.base.record import Record
from interfuse.capture.torch_types import to_torch
from interfuse.ir.dtypes import I64
from interfuse.ir.evaluate import known
from interfuse.ir.graph import Call, Graph, Input, Literal, Output
from interfuse.ir.index import Dim, at_sizes, minimum, symbols, unwrap
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node, make, topological
from interfuse.ir.ops import JOINS, MOVES, REDUCES, SCANS
from interfuse.lower.axes import power
from interfuse.lower.canonical import canonical
from interfuse.lower.vectors import VECTOR_BYTES
from interfuse.lower.windows import places, windows
from interfuse.plan.plan import KernelStep, LibraryStep, PackStep, Plan, Region
from interfuse.run.launch import Launcher
from interfuse.run.program import Program
from interfuse.run.views import Sizes, chain_to, concrete, layout_through, moved, relaid

SEED = 20

_HOST = {"bf16": np.float32, "f8e4m3": np.float32, "f8e5m2": np.float32}
"""In what numpy hands PyTorch types that it lacks."""

_WIDE = {
    "torch.float16": "torch.float64",
    "torch.bfloat16": "torch.float64",
    "torch.float32": "torch.float64",
    "torch.complex64": "torch.complex128",
}


def sizes_of(region: Region, graph: Graph) -> dict[str, int] | None:
    """The example's values of the size symbols in the region's shapes, by name; None where one has none."""
    hints = dict(graph.hints)
    names = sorted({s.name for n in (*region.inputs, *region.outputs) for d in n.shape for s in symbols(d)})
    return {n: hints[n] for n in names} if all(n in hints for n in names) else None


def unwritten(region: Region, graph: Graph) -> Region:
    """The region with results of its own where it writes inputs of the graph: that can be run again and compared."""
    over = dict.fromkeys(value for c in region.candidates for value, _ in c.over)
    if not over:
        return region
    writes = {k for k in region.calls if graph.calls[k].effect == "mutation"}

    def pure(step: Any) -> Any:
        if isinstance(step, PackStep):
            return dataclasses.replace(step, members=tuple(map(pure, step.members)))
        return dataclasses.replace(step, over=()) if isinstance(step, KernelStep) else step

    candidates = tuple(
        dataclasses.replace(
            c, steps=tuple(pure(s) for s in c.steps if not (isinstance(s, LibraryStep) and s.call in writes))
        )
        for c in region.candidates
    )
    calls = tuple(k for k in region.calls if k not in writes)
    outputs = tuple(dict.fromkeys((*region.outputs, *over)))
    return dataclasses.replace(region, calls=calls, outputs=outputs, candidates=candidates)


def in_place(region: Region, graph: Graph) -> tuple[Region, Graph]:
    """The region with the graph that it is timed in: `unwritten` and `alone`, but where it writes inputs of the graph.
    These have a copy here that is written in their stead: so nothing is allocated, and it can be run again.
    """
    over = {value: place for c in region.candidates for value, place in c.over}
    if not over:
        return unwritten(region, graph), alone(region, graph)
    places = dict.fromkeys(over.values())
    copies = {n: make("input", (), n.dtype, n.shape, name=f"copy_{k}") for k, n in enumerate(places)}
    writes = {k for k in region.calls if graph.calls[k].effect == "mutation"}

    def moved(step: Any) -> Any:
        if isinstance(step, PackStep):
            return dataclasses.replace(step, members=tuple(map(moved, step.members)))
        if isinstance(step, KernelStep):
            return dataclasses.replace(step, over=tuple((value, copies[place]) for value, place in step.over))
        return step

    def written(call: Call) -> Call:
        first, *rest = call.operands
        return dataclasses.replace(call, operands=(copies.get(first, first), *rest))

    candidates = tuple(dataclasses.replace(c, steps=tuple(map(moved, c.steps))) for c in region.candidates)
    outputs = tuple(n for n in region.outputs if n not in over)
    known, own = graph.layouts(), alone(region, graph)
    own = dataclasses.replace(
        own,
        calls=tuple(written(c) if k in writes else c for k, c in enumerate(graph.calls)),
        inputs=(*own.inputs, *(Input(copy, Layout(known[n].strides)) for n, copy in copies.items())),
        outputs=tuple(o for o in own.outputs if o.node in outputs),
    )
    return dataclasses.replace(region, outputs=outputs, candidates=candidates), own


def alone(region: Region, graph: Graph) -> Graph:
    """The graph that gives the region's outputs from its inputs and the sizes. Calls keep their positions."""
    region, known = unwritten(region, graph), graph.layouts()

    def layout(node: Node) -> Layout:
        found = chain_to(node, known)
        seen = None if found is None else layout_through(known[found[0]], found[1])
        return contiguous(node.shape) if seen is None else Layout(seen.strides)

    sizes = [make("input", (), I64, (), name=f"size_{s}", python=True, symbol=s) for s, _ in graph.hints]
    return dataclasses.replace(
        graph,
        inputs=(*(Input(n, layout(n)) for n in region.inputs), *(Input(n, contiguous(())) for n in sizes)),
        symbols=(),
        outputs=tuple(Output(n, layout(n)) for n in region.outputs),
    )


def codes(graph: Graph) -> frozenset[int]:
    """The positions of the outputs of `graph` that are integers or 8-bit floats rounded from a float that came through
    a reduction or a scan: where a sum in another order may put a value just beyond the middle between two codes.
    """
    outputs = [o.node for o in graph.outputs]
    leaves = {i.node for i in graph.inputs}
    summed, coded = set[Node](), set[Node]()
    for n in topological([n for n in outputs if n is not None], leaves):
        if n in leaves:
            continue
        wide = n.dtype.is_float and n.dtype.bytes > 1
        rounds = n.op == "cast" and n.dtype.kind != "bool" and not summed.isdisjoint(n.inputs)
        passes = n.op in MOVES | JOINS | {"copy", "cast"} and not coded.isdisjoint(n.inputs)
        if wide and (n.op in REDUCES | SCANS or not summed.isdisjoint(n.inputs)):
            summed.add(n)
        elif not wide and (rounds or passes):
            coded.add(n)
    return frozenset(k for k, n in enumerate(outputs) if n in coded)


def program(
    region: Region, graph: Graph, chosen: int, launchers: Mapping[str, Launcher], pool_bytes: int = 0
) -> Program:
    """The program of one candidate of the region, without a backup: what fails raises. Region and graph are those of
    `unwritten` and `alone`, or of `in_place`.
    """
    one = dataclasses.replace(region, chosen=chosen)
    return Program(Plan(graph, (one,)), launchers, Record(), guarded=False, pool_bytes=pool_bytes)


def made_up(graph: Graph, device: torch.device) -> list[Any]:
    """A tensor for each input of `graph`, and the example's number for a size. They are drawn on the device, for a
    processor takes seconds for gigabytes.
    """
    generator, sizes = torch.Generator(device).manual_seed(SEED), dict(graph.hints)
    names = [i.node.attr("symbol") for i in graph.inputs]
    ends = {n: at_sizes(end, sizes) for n, end in index_ends(graph.roots(), {i.node for i in graph.inputs}).items()}
    drawn = {
        i.node: _tensor(i, sizes, ends.get(i.node, 2), generator) if name is None else sizes[name]
        for i, name in zip(graph.inputs, names, strict=True)
    }
    _agree(drawn, {i.node: i.layout for i in graph.inputs}, sizes)
    return [drawn[i.node] for i in graph.inputs]


def _agree(drawn: dict[Node, Any], layouts: Mapping[Node, Layout], sizes: Sizes) -> None:
    """Give inputs that are other inputs, moved or rounded, the values of these, and those that are known, such as masks
    made of positions, theirs: one way to run a region may read what another knows or reads elsewhere. What is rounded
    somewhere is drawn as what it is rounded to.
    """
    for node, tensor in drawn.items():
        if isinstance(tensor, torch.Tensor) and (held := known(node)) is not None:
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(held.astype(_HOST.get(node.dtype.name, held.dtype)))))
    chains: dict[Node, tuple[Node, tuple[Node, ...]]] = {}
    for node in drawn:
        found = _behind(node, drawn)
        while found is not None:
            source, chain = chains[node] = found[0], (*found[1], *(chains[node][1] if node in chains else ()))
            found = _behind(source, drawn)
    for source, chain in chains.values():
        for step in chain:
            if step.op == "cast":
                drawn[source].copy_(drawn[source].to(to_torch(step.dtype)))
    for node, (source, chain) in chains.items():
        tensor = drawn[source]
        for step in chain:
            if step.op in MOVES:
                tensor = moved(tensor, (step,), sizes)
            elif step.op == "cast":
                tensor = tensor.to(to_torch(step.dtype))
        drawn[node] = relaid(tensor.contiguous(), concrete(layouts[node].strides, sizes))


def _behind(node: Node, inputs: Mapping[Node, Any]) -> tuple[Node, tuple[Node, ...]] | None:
    """The input that `node`, another one, is a movement, copy or floating type of, and the steps from there."""
    chain: list[Node] = []
    at = node
    while at.op in MOVES or at.op == "copy" or (at.op == "cast" and at.dtype.is_float and at.inputs[0].dtype.is_float):
        chain.append(at)
        at = at.inputs[0]
        if at in inputs:
            return at, tuple(reversed(chain))
    return None


def index_ends(roots: Sequence[Node], inputs: Collection[Node]) -> dict[Node, Dim]:
    """The integer inputs that tell gathers under `roots` their places, with the extent that these may have."""
    ends: dict[Node, Dim] = {}
    for gather in topological(roots, inputs):
        if gather.op == "gather" and gather not in inputs:
            source, index = gather.inputs
            end = source.shape[gather.attr("axis")]
            for leaf in set(topological([index], inputs)) & set(inputs):
                if not leaf.dtype.is_float:
                    ends[leaf] = unwrap(minimum(ends.get(leaf, end), end))
    return ends


def _tensor(given: Input, sizes: Sizes, end: int, generator: torch.Generator) -> torch.Tensor:
    """`end`: what its values stay below where they are integers."""
    shape, strides = concrete(given.node.shape, sizes), concrete(given.layout.strides, sizes)
    dtype = to_torch(given.node.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        many = len(shape) > 1
        drawn = (torch.randn if many else torch.rand)(shape, generator=generator, device=generator.device)
        values = drawn if many else drawn + 0.5
    else:
        values = torch.randint(0, max(end, 1), shape, generator=generator, device=generator.device)
    return relaid(values.to(dtype), strides)


def widened(graph: Graph) -> Graph:
    """The graph with every floating type named in its calls, and every constant, made float64."""
    calls = tuple(dataclasses.replace(c, args=_wide(c.args), kwargs=_wide(c.kwargs)) for c in graph.calls)
    return dataclasses.replace(graph, calls=calls, opaque=tuple(map(wide_tensor, graph.opaque)))


def wide_tensor(value: Any) -> Any:
    """A floating tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _wide(template: Any) -> Any:
    if isinstance(template, Literal) and template.kind == "dtype":
        return Literal("dtype", _WIDE.get(template.text, template.text))
    return tuple(map(_wide, template)) if isinstance(template, tuple) else template


def bucket(size: int) -> int:
    """The bucket of a size that changes between calls, named by its largest: the next power of two."""
    return power(size)


def region_key(region: Region, graph: Graph, device_key: str) -> str:
    """A key that equal regions on equal devices share, in any model: shapes, types, layouts, calls, candidates. Sizes
    that change between calls share it within a bucket, and so do regions that read other parts of a buffer.
    """
    over = any(c.over for c in region.candidates)
    region, own = unwritten(region, graph), alone(region, graph)
    calls = [graph.calls[k] for k in sorted({s.call for s in region.library.steps if isinstance(s, LibraryStep)})]
    roots = [*region.inputs, *(n for c in calls for n in (*c.operands, *c.outs) if n is not None), *region.outputs]
    # A narrow buffer also stands for the f32 value that was rounded into it: what made that value is not the region's.
    wide = {n.inputs[0]: n for n in region.inputs if n.op == "cast" and n.dtype.is_narrow}
    leaves = {*region.inputs, *wide}
    number = {n: k for k, n in enumerate(topological(roots, leaves))}
    whole = {i.node: Layout(i.layout.strides) for i in own.inputs if i.node in leaves}
    vector = 1 if graph.device == "cpu" else VECTOR_BYTES
    begun = windows(roots[len(region.inputs) :], frozenset(leaves), whole, (), vector)
    place = places((n for n in number if n not in leaves), whole | begun)

    def at(n: Node) -> str:
        return f"{number[n]} {place[n].strides} {place[n].offset}" if n in place else f"{number[n]}"

    lines = [
        f"{k} {n.dtype} {n.shape}" if n in leaves else f"{k} {n.op} {n.dtype} {n.shape}" for n, k in number.items()
    ]
    lines += [
        f"{k} of {number[n.inputs[0]]}"
        if n in place and n.op in MOVES
        # Where what it reads lies is said by whoever reads that.
        else f"{k} {[p for p in n.attrs if p[0] != 'name']} of {[number[i] if n in place else at(i) for i in n.inputs]}"
        for n, k in number.items()
        if n not in leaves
    ]
    lines += [f"{number[w]} behind {number[n]}" for w, n in wide.items() if w in number]
    lines += [f"in {number[i.node]} {i.layout.strides}" for i in own.inputs if i.node in number]
    lines += [f"measured at about {[(name, bucket(size)) for name, size in graph.hints]}"] if graph.hints else []
    lines += [f"out {at(o.node)} {o.layout and o.layout.strides}" for o in own.outputs if o.node is not None]
    lines += [f"{c.target} {c.args} {c.kwargs} {[at(n) for n in c.operands]}" for c in calls]
    lines += [f"{c.label} {[_step_text(s) for s in c.steps]}" for c in region.candidates]
    lines += ["timed in place"] if over else []
    return digest(device_key, *lines)


def _step_text(step: Any) -> str:
    if isinstance(step, KernelStep):
        return repr(canonical(step.kernel))
    if isinstance(step, PackStep):
        return f"{canonical(step.kernel)!r} {step.sizes}"
    return "captured call" if isinstance(step, LibraryStep) else f"{step.provider} {step.attrs}"
