"""How values flow between calls. In: a rewritten graph. Out: who makes each buffer, who reads it, which calls are
needed.

An anchor is a value that a call puts into a buffer: a result that is neither a graph input nor a view of something. The
leaves of an expression are the anchors and graph inputs that it starts from. A narrow anchor cast(f16)(e) also stands
for e in f32: where e is wanted and the anchor is in a buffer, reading the buffer is what eager does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interfuse.base.errors import GraphError
from interfuse.ir import build as b
from interfuse.ir.graph import Graph, Ref
from interfuse.ir.layout import base_of
from interfuse.ir.node import Node, with_inputs
from interfuse.ir.ops import MOVES


@dataclass(frozen=True)
class Flow:
    """Facts of one graph, worked out once.

    producer  anchor -> the call that makes it         inputs  the graph's input nodes
    stands_for  f32 expression -> the narrow anchor that holds it
    leaves    call -> the anchors and inputs it reads  needed  the calls that outputs or effects need, in order
    readers   anchor -> the calls that read it; -1 is the graph's output
    made_by   any result, also of views and constants -> the first call that gives it
    writes    call that only puts a value of the graph into an input -> (input, value)
    """

    graph: Graph
    producer: dict[Node, int]
    inputs: frozenset[Node]
    stands_for: dict[Node, Node]
    leaves: dict[int, tuple[Node, ...]]
    needed: tuple[int, ...]
    readers: dict[Node, tuple[int, ...]]
    made_by: dict[Node, int]
    writes: dict[int, tuple[Node, Node]]


OUTPUT = -1
"""The reader that stands for the graph's outputs."""


def analyse(graph: Graph) -> Flow:
    """The flow of `graph`."""
    inputs = frozenset(i.node for i in graph.inputs)
    producer: dict[Node, int] = {}
    for k, call in enumerate(graph.calls):
        # An opaque view (of complex numbers, say) is no movement that readers could follow: its result is a buffer too.
        if call.view_of is None or call.opaque:
            for out in call.outs:
                # Capture makes a result that only moves something a `copy`, but for constants.
                if out is not None and out not in inputs and out.op not in MOVES and out.op not in ("const", "iota"):
                    producer.setdefault(out, k)
    for wide in _widened(graph, producer, inputs):
        del producer[wide]
    made_by = _made_by(graph)
    for output in graph.outputs:
        if output.node is not None and base_of(output.node).op in ("const", "iota") and output.node in made_by:
            producer.setdefault(output.node, made_by[output.node])
    stands_for: dict[Node, Node] = {}
    for anchor in producer:
        if anchor.op == "cast" and anchor.dtype.is_narrow:
            wide = anchor.inputs[0]
            held = base_of(wide, producer)
            # What is a view of a wide buffer is read there, by outputs above all.
            if held not in producer and held not in inputs and wide.op != "const":
                stands_for.setdefault(wide, anchor)
    leaves = {k: _call_leaves(graph, k, producer, inputs, stands_for, made_by) for k in range(len(graph.calls))}
    needed = _needed(graph, producer, leaves, inputs, stands_for)
    readers: dict[Node, list[int]] = {}
    for k in needed:
        for leaf in leaves[k]:
            readers.setdefault(leaf, []).append(k)
    for output in graph.outputs:
        if output.node is not None:
            for leaf in find_leaves((output.node,), producer, inputs, stands_for):
                readers.setdefault(leaf, []).append(OUTPUT)
    once = {n: tuple(dict.fromkeys(r)) for n, r in readers.items()}
    writes = _writes(graph, producer, inputs)
    return Flow(graph, producer, inputs, stands_for, leaves, needed, once, made_by, writes)


def _widened(graph: Graph, producer: dict[Node, int], inputs: frozenset[Node]) -> list[Node]:
    """Buffers that only hold a narrow buffer's values in a wider type, as eager's casts before a norm make them: their
    readers take the narrow one, which is half as long. Results of the graph stay, and what opaque calls read.
    """
    read = {base_of(o, producer) for c in graph.calls if c.opaque for o in c.operands}
    read |= {base_of(o.node, producer) for o in graph.outputs if o.node is not None}
    found = []
    for wide, k in producer.items():
        call = graph.calls[k]
        if len(call.operands) != 1 or call.outs != (wide,) or call.opaque or wide in read:
            continue
        (narrow,) = call.operands
        casts = (narrow.op == "cast" and narrow.inputs[0] is wide) or (wide.op == "cast" and wide.inputs[0] is narrow)
        if casts and narrow.dtype.is_narrow and wide.dtype.is_float and (narrow in producer or narrow in inputs):
            found.append(wide)
    return found


def _writes(graph: Graph, producer: dict[Node, int], inputs: frozenset[Node]) -> dict[int, tuple[Node, Node]]:
    """The copies by which a functional graph ends where the model mutates its inputs.

    Only those that are the one write of their input, and the first of their value: others stay plain calls.
    """
    changed = [n for c in graph.calls if c.effect == "mutation" for n in dict.fromkeys(c.operands)]
    found: dict[int, tuple[Node, Node]] = {}
    for k, call in enumerate(graph.calls):
        if call.target != "aten.copy_.default" or call.args != (Ref(0), Ref(1)) or len(call.operands) != 2:
            continue
        place, value = call.operands
        alike = (place.dtype, place.shape) == (value.dtype, value.shape)
        once = changed.count(place) == 1 and all(value is not v for _, v in found.values())
        if place in inputs and value in producer and alike and once:
            found[k] = (place, value)
    return found


def _made_by(graph: Graph) -> dict[Node, int]:
    """Each result and the first call that gives it, views and constants included."""
    found: dict[Node, int] = {}
    for k, call in enumerate(graph.calls):
        for out in call.outs:
            if out is not None:
                found.setdefault(out, k)
    return found


def find_leaves(
    roots: Iterable[Node],
    producer: dict[Node, int],
    inputs: frozenset[Node],
    stands_for: dict[Node, Node],
    own: int | None = None,
) -> tuple[Node, ...]:
    """The anchors and inputs under `roots`; anchors of call `own` and of later ones are looked through.

    A later call may give what an earlier one computes on its way: y.float() of y = (x * 2).half() is x * 2 itself.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        held = node if node in producer or node in inputs else stands_for.get(node)
        if held is not None and (held in inputs or own is None or producer[held] < own):
            found[held] = None
        else:
            stack.extend(node.inputs)
    return tuple(found)


def _operands(
    graph: Graph, k: int, producer: dict[Node, int], inputs: frozenset[Node], made_by: dict[Node, int]
) -> list[Node]:
    """The operands of call k, and those of the calls that the library path runs again for its constant operands."""
    found: dict[Node, None] = {}
    stack = list(graph.calls[k].operands)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        base = base_of(node, producer)
        if base not in producer and base not in inputs and node in made_by:
            stack += graph.calls[made_by[node]].operands
    return list(found)


def _call_leaves(
    graph: Graph,
    k: int,
    producer: dict[Node, int],
    inputs: frozenset[Node],
    stands_for: dict[Node, Node],
    made_by: dict[Node, int],
) -> tuple[Node, ...]:
    call = graph.calls[k]
    operands = find_leaves(_operands(graph, k, producer, inputs, made_by), producer, inputs, stands_for, k)
    if call.opaque:
        return operands
    # Both are read: the expression by a kernel, the operands by the library path.
    outs = find_leaves([o for o in call.outs if o is not None], producer, inputs, stands_for, k)
    return tuple(dict.fromkeys((*outs, *operands)))


def _needed(
    graph: Graph,
    producer: dict[Node, int],
    leaves: dict[int, tuple[Node, ...]],
    inputs: frozenset[Node],
    stands_for: dict[Node, Node],
) -> tuple[int, ...]:
    wanted: set[int] = {k for k, c in enumerate(graph.calls) if c.effect in ("mutation", "collective")}
    outs = find_leaves([o.node for o in graph.outputs if o.node is not None], producer, inputs, stands_for)
    stack = [producer[n] for n in outs if n in producer] + list(wanted)
    while stack:
        k = stack.pop()
        wanted.add(k)
        stack += [p for leaf in leaves[k] if (p := producer.get(leaf)) is not None and p not in wanted]
    return tuple(sorted(wanted))


def cut(outputs: tuple[Node, ...], calls: frozenset[int], flow: Flow) -> tuple[tuple[Node, ...], frozenset[Node]]:
    """The expressions of `outputs` cut where other calls or the graph's inputs hold a buffer, and those buffers' nodes.

    Inside, a value that a narrow buffer of another call stands for becomes a read of that buffer, widened.
    """
    memo: dict[Node, Node] = {}
    read: dict[Node, None] = {}
    leaves = frozenset().union(*(flow.leaves[k] for k in calls))

    def leaf(node: Node) -> Node | None:
        if node in flow.inputs or (node in leaves and flow.producer[node] not in calls):
            read[node] = None
            return node
        held = flow.stands_for.get(node)
        if held in leaves and flow.producer[held] not in calls:
            read[held] = None
            return b.cast(held, node.dtype)
        return None

    for root in outputs:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in memo:
                stack.pop()
                continue
            end = leaf(node)
            if end is not None:
                memo[node] = end
                continue
            missing = [i for i in node.inputs if i not in memo]
            if missing:
                stack += missing
                continue
            parts = tuple(memo[i] for i in node.inputs)
            memo[node] = with_inputs(node, parts)
    return tuple(memo[o] for o in outputs), frozenset(read)


def library_calls(calls: frozenset[int], flow: Flow) -> tuple[tuple[int, ...], frozenset[Node]]:
    """The calls to run, in order, so that eager's way computes `calls`, and the buffers of others that they read.

    Operands that no buffer holds (constants, positions) are made by their own calls, which are added.
    """
    run: set[int] = set(calls)
    read: set[Node] = set()
    stack = [(k, o) for k in sorted(calls) for o in flow.graph.calls[k].operands]
    while stack:
        reader, node = stack.pop()
        base = base_of(node, flow.producer)
        held = base if base in flow.producer or base in flow.inputs else None
        if held is None:
            k = flow.made_by.get(node)
            if k is None:
                target = flow.graph.calls[reader].target
                raise GraphError(f"call {reader} ({target}) reads {node}, which no call and no buffer gives.")
            if k not in run:
                run.add(k)
                stack += [(k, o) for o in flow.graph.calls[k].operands]
        elif held in flow.inputs or flow.producer[held] not in run:
            read.add(held)
    return tuple(sorted(run)), frozenset(n for n in read if n in flow.inputs or flow.producer[n] not in run)
