"""The verifier. In: a node or a graph. Out: nothing, or GraphError naming the node or call that breaks a rule.

The rules are those of the operator table and of the graph's own docstrings. The pipeline runs it
on what the passes hand on, tests on what capture does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from interfuse.base.errors import GraphError
from interfuse.ir.check import (
    check_concat,
    check_operands,
    check_pad,
    check_value,
    picks_from,
    require,
    row_of,
    slice_fits,
)
from interfuse.ir.dtypes import ALL, I64
from interfuse.ir.graph import Call, Graph, Literal, Ref
from interfuse.ir.index import Expr, product, wrap
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import (
    CONTRACTION,
    ELEMENTWISE,
    INDIRECT,
    JOIN,
    LIBRARY,
    MOVEMENT,
    REDUCE,
    SCAN,
    SOURCE,
    TABLE,
    result_type,
)

EFFECTS = ("", "random", "mutation", "collective")


def check_node(node: Node) -> None:
    """Every rule that one node can break by itself: operator, operands, types, shape, attributes, token."""
    try:
        row = row_of(node.op)
        given = len(node.inputs)
        require(row.arity in (None, given), f"it takes {row.arity} operands, not {given}")
        require(ALL.get(node.dtype.name) is node.dtype, f"{node.dtype} is not an element type")
        sizes = all(type(d) is int or isinstance(d, Expr) for d in node.shape)
        require(sizes, f"shape {node.shape} is not made of sizes")
        require(all(wrap(d).hi >= 0 for d in node.shape), f"shape {node.shape} has a negative size")
        require(node.token is None or row.band == LIBRARY, "only library and item nodes carry a token")
        require(node.op != "library" or node.token is not None, "a library node needs a token: it is never merged")
        if row.band != LIBRARY:
            check_operands(node.op, tuple(i.dtype for i in node.inputs))
            stated = result_type(row, tuple(i.dtype for i in node.inputs))
            require(stated in (None, node.dtype), f"its type must be {stated}")
        _BANDS.get(row.band, _nothing)(node)
    except GraphError as error:
        where = f" ({node.source})" if node.source else ""
        raise GraphError(f"{node}{where}: {error}") from None


def _nothing(node: Node) -> None:
    """Library nodes keep what PyTorch says of them."""


def _elementwise(node: Node) -> None:
    for i in node.inputs:
        require(i.shape == node.shape, f"operand shape {i.shape} is not its own {node.shape}")
    if node.op == "round":
        to = ALL.get(node.attr("to"))
        require(to is not None and to.is_narrow, f"round needs the name of a narrow type, not {node.attr('to')!r}")


def _source(node: Node) -> None:
    if node.op == "const":
        require(node.shape == (), "a constant has no dimensions: expand it")
        check_value(node.attr("value"), node.dtype)
    elif node.op == "iota":
        require(len(node.shape) == 1, "iota has one dimension")
    else:
        require(isinstance(node.attr("name"), str), "an input needs a name")


def _movement(node: Node) -> None:
    source = node.inputs[0].shape
    if node.op == "reshape":
        require(product(source) == product(node.shape), f"{source} and {node.shape} have different numbers of elements")
    elif node.op == "permute":
        order = node.attr("order")
        ordered = isinstance(order, tuple) and sorted(order) == list(range(len(source)))
        require(ordered, f"{order} does not order {source}")
        require(tuple(source[p] for p in order) == node.shape, f"{source} by {order} is not {node.shape}")
    elif node.op == "expand":
        same = len(source) == len(node.shape) and all(a in (b, 1) for a, b in zip(source, node.shape, strict=True))
        require(same, f"{source} does not expand to {node.shape}")
    else:
        starts, steps = node.attr("starts", ()), node.attr("steps", ())
        same = len(starts) == len(steps) == len(source) == len(node.shape)
        require(same, "starts, steps and shapes differ in length")
        for size, start, step, count in zip(source, starts, steps, node.shape, strict=True):
            fits = slice_fits(size, start, step, count)
            require(fits, f"{count} elements from {start} by {step} leave a dimension of {size}")


def _join(node: Node) -> None:
    if node.op == "concat":
        shape = check_concat(node.attr("axis"), [i.shape for i in node.inputs])
    else:
        check_value(node.attr("value"), node.dtype)
        shape = check_pad(node.inputs[0].shape, node.attr("lo"), node.attr("hi"))
    require(shape == node.shape, f"its shape must be {shape}")


def _gather(node: Node) -> None:
    source, index = node.inputs[0].shape, node.inputs[1].shape
    fits = picks_from(source, index, node.attr("axis"))
    require(fits, f"an index of shape {index} does not pick along axis {node.attr('axis')} of {source}")
    require(index == node.shape, "a gather has its index's shape")
    require(isinstance(node.attr("wraps"), bool), "a gather says whether negative indices count from the end")


def _reduction(node: Node) -> None:
    axes, source = node.attr("axes"), node.inputs[0].shape
    require(
        isinstance(axes, tuple) and sorted(set(axes)) == list(axes) and all(0 <= a < len(source) for a in axes),
        f"axes {axes} of {source} must be sorted, distinct and in range",
    )
    kept = tuple(d for k, d in enumerate(source) if k not in axes)
    require(kept == node.shape, f"{source} without {axes} is not {node.shape}")
    arg = node.op in ("argmax", "argmin")
    require(not arg or (len(axes) == 1 and node.dtype is I64), "an arg-reduction takes one axis and gives i64")
    require(node.op != "variance" or isinstance(node.attr("correction"), int | float), "variance needs a correction")
    empty = any(source[a] == 0 for a in axes)
    require(not (empty and (arg or node.op in ("max", "min"))), "there is no largest or smallest of no elements")


def _scan(node: Node) -> None:
    axis = node.attr("axis")
    require(isinstance(axis, int) and 0 <= axis < len(node.shape), f"axis {axis} of {node.shape}")
    require(node.inputs[0].shape == node.shape, "a scan keeps its operand's shape")
    require(isinstance(node.attr("reverse"), bool), "a scan says whether it runs in reverse")


def _contraction(node: Node) -> None:
    a, b = node.inputs[0].shape, node.inputs[1].shape if len(node.inputs) > 1 else ()
    if node.op == "matmul":
        require(len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-2], f"{a} by {b} is no matrix product")
        require(node.shape == (*a[:-1], b[-1]), f"{a} by {b} does not give {node.shape}")
        return
    require(len(node.inputs) in (2, 3) and len(a) == len(b) == 2 and a[1] == b[1], f"linear of {a} by {b}")
    require(all(i.shape == (b[0],) for i in node.inputs[2:]), f"the bias must have shape {(b[0],)}")
    require(node.shape == (a[0], b[0]), f"linear of {a} by {b} does not give {node.shape}")


_BANDS: dict[str, Callable[[Node], None]] = {
    ELEMENTWISE: _elementwise,
    SOURCE: _source,
    MOVEMENT: _movement,
    JOIN: _join,
    INDIRECT: _gather,
    REDUCE: _reduction,
    SCAN: _scan,
    CONTRACTION: _contraction,
}


def _check_known(what: str, nodes: Iterable[Node], known: set[Node]) -> None:
    """Expressions may start from known nodes, constants and iotas only."""
    for node in topological(list(nodes), known):
        loose = node not in known and (node.op == "input" or TABLE[node.op].band == LIBRARY)
        require(not loose, f"{what} needs {node}{node.attrs or ''}, which nothing before it gives")


def _check_layout(what: str, node: Node | None, layout: Layout | None) -> None:
    if node is None or layout is None:
        require(layout is None, f"{what} has a layout but no node")
    else:
        require(len(layout.strides) == len(node.shape), f"{what}: strides {layout.strides} for shape {node.shape}")


def _check_template(what: str, value: Any, operands: int, opaque: int) -> None:
    if isinstance(value, tuple | list):
        for v in value:
            _check_template(what, v, operands, opaque)
    elif isinstance(value, Ref):
        require(0 <= value.k < operands, f"{what} refers to operand {value.k} of {operands}")
    elif isinstance(value, Literal) and value.kind == "opaque":
        held = value.text.isdigit() and int(value.text) < opaque
        require(held, f"{what} refers to opaque object {value.text} of {opaque}")


def _check_call(k: int, call: Call, graph: Graph, known: set[Node]) -> None:
    what = f"call {k} ({call.target}{' at ' + call.source if call.source else ''})"
    _check_known(what, call.operands, known)
    _check_template(what, (call.args, tuple(v for _, v in call.kwargs)), len(call.operands), len(graph.opaque))
    require(len(call.outs) == len(call.layouts), f"{what} has {len(call.outs)} results and {len(call.layouts)} layouts")
    for out, layout in zip(call.outs, call.layouts, strict=True):
        _check_layout(what, out, layout)
    viewed = call.view_of is None or 0 <= call.view_of < len(call.operands)
    require(viewed, f"{what} is a view of operand {call.view_of}")
    require(call.effect in EFFECTS, f"{what} has the unknown effect {call.effect!r}")
    require(call.launches >= 0, f"{what} has {call.launches} launches")
    made = any(o is None or (TABLE[o.op].band == LIBRARY and o not in known) for o in call.outs)
    require(call.opaque or not made, f"{what} is not lowered and must say why")
    given = {o for o in call.outs if o is not None}
    own = {o for o in given if TABLE[o.op].band == LIBRARY}
    _check_known(what, (i for o in own for i in o.inputs), known | set(call.operands))
    _check_known(what, given - own, known | own | set(call.operands))
    known |= given


def verify(graph: Graph) -> None:
    """GraphError, naming the node or call, unless the graph keeps every rule of the tensor IR."""
    for node in topological(graph.roots()):
        check_node(node)
    names = [i.node.attr("name") for i in graph.inputs]
    require(len(set(names)) == len(names), f"two inputs share a name among {names}")
    for given in graph.inputs:
        require(given.node.op == "input", f"input {given.name or given.node} must be an input node")
        _check_layout(f"input {given.node.attr('name')}", given.node, given.layout)
    known = {i.node for i in graph.inputs}
    for k, call in enumerate(graph.calls):
        _check_call(k, call, graph, known)
    for k, output in enumerate(graph.outputs):
        if output.node is not None:
            _check_known(f"output {k}", [output.node], known)
        _check_layout(f"output {k}", output.node, output.layout)
