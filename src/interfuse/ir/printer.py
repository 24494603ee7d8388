"""The printer. In: nodes or a graph. Out: stable text, one line a node, that people read, tests keep and keys can be
made of.

The node form is static single assignment and can be read back (`parse`):

    symbol s0 in [2, 512]
    %0 = input(name='x') : f32[s0, 8]
    %1 = sum(%0, axes=(1,)) : f32[s0]  # norm at model.py:12
    return %1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from interfuse.base.text import Writer
from interfuse.ir.graph import Call, Graph, Input, Literal, Output, Ref
from interfuse.ir.index import INF, Dim, symbols
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node, expressions, topological

Numbers = Mapping[Node, int]


def _value(value: Any) -> str:
    """A plain value as text: Python's own form, with index expressions written out."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _dims(dims: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _typed(node: Node) -> str:
    return f"{node.dtype}{_dims(node.shape)}"


def _bound(value: int) -> str:
    return "inf" if value >= INF else "-inf" if value <= -INF else str(value)


def _symbol_lines(nodes: Iterable[Node]) -> list[str]:
    """One line a size symbol in the nodes' shapes and attributes, with the interval that it lies in."""
    found = {s for n in nodes for e in expressions((n.shape, n.attrs)) for s in symbols(e)}
    in_order = sorted(found, key=lambda s: (s.name, s.lo, s.hi))
    return [f"symbol {s.name} in [{_bound(s.lo)}, {_bound(s.hi)}]" for s in in_order]


def _node_line(node: Node, number: Numbers, for_key: bool, leaf: int | None = None) -> str:
    if leaf is not None:
        return f"%{number[node]} = input(name='{leaf}') : {_typed(node)}"
    parts = [f"%{number[i]}" for i in node.inputs] + [f"{k}={_value(v)}" for k, v in node.attrs]
    token = "" if node.token is None else f" @{node.token}"
    hint = "" if node.hint in (node.op, node.attr("name")) else node.hint
    said = " at ".join(" ".join(word.split()) for word in (hint, node.source) if word)
    comment = f"  # {said}" if said and not for_key else ""
    return f"%{number[node]} = {node.op}({', '.join(parts)}){token} : {_typed(node)}{comment}"


def show_nodes(roots: Sequence[Node], for_key: bool = False, leaves: Sequence[Node] = ()) -> str:
    """The expressions of `roots` as lines, inputs before users, then `return`.

    `for_key` leaves out hints and source lines, so that equal work gives equal text, as keys need it. Nodes
    in `leaves` print as inputs named by their place in it, whatever computes them: a region's text from its own inputs.
    """
    place = {node: k for k, node in reversed(list(enumerate(leaves)))}
    nodes = topological(roots, place)
    number = {node: k for k, node in enumerate(nodes)}
    lines = _symbol_lines(nodes) + [_node_line(n, number, for_key, place.get(n)) for n in nodes]
    return "\n".join([*lines, " ".join(["return", ", ".join(f"%{number[r]}" for r in roots)]).rstrip()]) + "\n"


def _template(value: Any, call: Call, number: Numbers) -> str:
    """An argument template of a call, with operands by number."""
    if isinstance(value, Ref):
        return f"%{number[call.operands[value.k]]}"
    if isinstance(value, Literal):
        return f"<{value.kind} {value.text}>" if value.kind == "opaque" else value.text
    if isinstance(value, tuple | list):
        return f"[{', '.join(_template(v, call, number) for v in value)}]"
    return _value(value)


def _layout(layout: Layout | None, shape: tuple[Dim, ...]) -> str:
    if layout is None:
        return "no layout"
    offset = "" if layout.offset == 0 else f" offset {layout.offset}"
    return ("contiguous" if layout.is_contiguous(shape) else f"strides {_dims(layout.strides)}") + offset


def _input_line(given: Input, number: Numbers) -> str:
    name = f"  # {given.name}" if given.name else ""
    return f"%{number[given.node]} : {_typed(given.node)} {_layout(given.layout, given.node.shape)}, {given.kind}{name}"


def _result(node: Node | None, layout: Layout | None, number: Numbers) -> str:
    return "none" if node is None else f"%{number[node]} {_layout(layout, node.shape)}"


def _call_line(k: int, call: Call, number: Numbers) -> str:
    given = [_template(a, call, number) for a in call.args]
    given += [f"{name}={_template(v, call, number)}" for name, v in call.kwargs]
    outs = ", ".join(_result(o, layout, number) for o, layout in zip(call.outs, call.layouts, strict=True))
    facts = [f"launches {call.launches}"]
    facts += [f"view of %{number[call.operands[call.view_of]]}"] if call.view_of is not None else []
    facts += [call.effect] if call.effect else []
    facts += [f"library: {call.reason}"] if call.reason else []
    source = f"  # {call.source}" if call.source else ""
    return f"{k}: {call.target}({', '.join(given)}) -> {outs or 'nothing'}; {'; '.join(facts)}{source}"


def _output_line(output: Output, number: Numbers) -> str:
    return _result(output.node, output.layout, number) if output.node is not None else f"value {_value(output.value)}"


def show(graph: Graph) -> str:
    """The whole graph: inputs with layouts, calls one a line, the nodes' expressions, outputs."""
    nodes = topological(graph.roots())
    number = {node: k for k, node in enumerate(nodes)}
    w = Writer("  ")
    w.line(f"graph {graph.name} on {graph.device}")
    sections = (
        ("symbols", _symbol_lines(nodes)),
        ("inputs", [_input_line(i, number) for i in graph.inputs]),
        ("calls", [_call_line(k, c, number) for k, c in enumerate(graph.calls)]),
        ("nodes", [_node_line(n, number, for_key=False) for n in nodes]),
        ("outputs", [_output_line(o, number) for o in graph.outputs]),
    )
    for title, lines in sections:
        if lines:
            with w.block(f"{title}:"):
                for line in lines:
                    w.line(line)
    return w.text()
