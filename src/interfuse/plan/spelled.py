"""Attention that is spelled out. In: a flow and layouts. Out: the sets of calls that are attentions, and what of.

Under a mask PyTorch may hand over an attention as products of batches around a softmax of scores in memory, and many
models write theirs so. Where none of the values between is read by anyone else, the calls are one attention, which a
routine may compute without scores in memory. A mask that is 0, by `passes.bounds` as a rule, is none, and one made of
positions may be that of causality. Another one is added by the routine where the softmax gives 0 to a row that sees
nothing, as routines do; a plain softmax gives NaN, and stays as it is.

Scales, widenings, copies and movements before the first product and after the second one belong to it: query, key and
value are taken as the model made them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from interfuse.ir import build as b
from interfuse.ir.dtypes import DType
from interfuse.ir.index import Dim, product
from interfuse.ir.layout import Layout, base_of, contiguous, view_of
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES
from interfuse.passes.simplify import apply_rules, constant_of
from interfuse.plan.attention import HEADS_FIRST, TURNED, Attention, captured, hides_later, number_of
from interfuse.plan.flow import OUTPUT, Flow

PRODUCT = "aten.bmm.default"


@dataclass(frozen=True)
class _Scores:
    """The first product, what it is multiplied by, (batch, heads, rows, keys), and what is added then;
    `safe` where rows that see nothing give 0.
    """

    product: Node
    scale: float
    shape: tuple[Dim, ...]
    mask: Node | None = None
    safe: bool = False


def spelled_out(flow: Flow, layouts: Mapping[Node, Layout]) -> dict[frozenset[int], Attention]:
    """The attentions of the graph by their calls."""
    found: dict[frozenset[int], Attention] = {}
    for k in flow.needed:
        target = flow.graph.calls[k].target
        one = _ending_with(k, flow, layouts) if target == PRODUCT else _and_a_copy(k, flow)
        if one is not None:
            found[one[0]] = one[1]
    return found


def _and_a_copy(k: int, flow: Flow) -> tuple[frozenset[int], Attention] | None:
    """The attention that call k runs a kernel of PyTorch's for, with the copy after it that turns its result: where
    queries lie heads first, so does the result, which kernels write turned as soon.
    """
    one = captured(k, flow)
    if one is None or one.form != HEADS_FIRST:
        return None
    output, form = _result(one.output, one.output.shape, flow)
    if form != TURNED:
        return None
    return frozenset((k, flow.producer[output])), replace(one, output=output, form=form, captured="")


def _ending_with(k: int, flow: Flow, layouts: Mapping[Node, Layout]) -> tuple[frozenset[int], Attention] | None:
    """The attention whose second product is call k."""
    last = flow.graph.calls[k].outs[0]
    scores = _scores(last.inputs[0]) if last is not None and last.op == "library" else None
    if last is None or scores is None:
        return None
    first = flow.producer.get(scores.product)
    if first is None or flow.graph.calls[first].target != PRODUCT:
        return None
    batch, heads, rows, keys = scores.shape
    if not scores.product.shape == last.inputs[0].shape == (product((batch, heads)), rows, keys):
        return None  # scores or weights go into a product by other rows than the softmax has
    head, wide = scores.product.inputs[0].shape[-1], last.shape[-1]
    if not isinstance(head, int) or head != wide:
        return None
    output, form = _result(last, scores.shape, flow)
    few, many = (batch, heads, rows, head), (batch, heads, keys, head)
    plain = ((n, times) for n, times in _origins(last.inputs[1], flow) if times == 1.0)
    given = [
        _given(_origins(scores.product.inputs[0], flow), few, False, output.dtype, flow, layouts),
        _given(_origins(scores.product.inputs[1], flow), many, True, output.dtype, flow, layouts),
        _given(plain, many, False, output.dtype, flow, layouts),
    ]
    causal = scores.mask is not None and scores.mask.shape[-2:] == (rows, keys) and hides_later(scores.mask)
    if scores.mask is not None and not causal:  # as it was made last: row by row
        added = reversed([(n, times) for n, times in _origins(scores.mask, flow) if times == 1.0])
        given.append(_given(added, scores.shape, False, output.dtype, flow, layouts) if scores.safe else None)
    if None in given:
        return None
    (query, by_query), (key, by_key), (value, _), *masks = (g for g in given if g is not None)
    operands = (query, key, value, *(m for m, _ in masks))
    calls = _between(flow.producer[output], (first, k), operands, flow)
    scale = scores.scale * by_query * by_key
    if first not in calls or not math.isfinite(scale) or _read_elsewhere(calls, flow) != {output}:
        return None
    return calls, Attention(operands, scale, causal, output, form)


def _plain(node: Node) -> Node:
    """What is behind movements that keep the order, copies, and changes of floating type."""
    while node.op == "reshape" or _stays(node):
        node = node.inputs[0]
    return node


def _stays(node: Node) -> bool:
    """True for copies and changes of floating type: a rounding of 16 bits may be left out, one to codes may not."""
    wide = all(n.dtype.is_float and n.dtype.bytes > 1 for n in (node, *node.inputs))
    if node.op == "round":
        return node.attr("to") in ("f16", "bf16")
    return node.op == "copy" or (node.op == "cast" and wide)


def _of_rows(node: Node) -> Node:
    """The reduction along the last dimension that stands beside each element of its row; the node itself where it is
    none that stands so.
    """
    kept = node
    while kept.op == "expand":
        kept = kept.inputs[0]
    found = kept
    while found.op == "reshape":
        found = found.inputs[0]
    beside = found.op in ("max", "sum") and kept.shape == (*found.shape, 1)
    return found if beside and found.attr("axes") == (len(found.shape),) else node


def _scores(weights: Node) -> _Scores | None:
    """What the weights are a softmax of, along the last dimension, where that is a product times a number."""
    node, seen = _plain(weights), None
    if node.op == "where" and constant_of(node.inputs[1]) == 0:  # for rows that see nothing
        hidden = node.inputs[0]
        while hidden.op == "expand":
            hidden = hidden.inputs[0]
        if hidden.op != "eq" or constant_of(hidden.inputs[1]) != -math.inf:
            return None
        node, seen = _plain(node.inputs[2]), _of_rows(hidden.inputs[0])
    if node.op != "div":
        return None
    weight, total = node.inputs[0], _of_rows(node.inputs[1])
    if weight.op != "exp" or weight.inputs[0].op != "sub" or total.op != "sum" or total.inputs[0] is not weight:
        return None
    scores, most = weight.inputs[0].inputs[0], _of_rows(weight.inputs[0].inputs[1])
    if most.op != "max" or most.inputs[0] is not scores or seen not in (None, most):
        return None
    shape = scores.shape if len(scores.shape) == 4 else (scores.shape[0], 1, *scores.shape[1:])
    scale, node = _times(scores)
    mask = None
    if node.op == "add" and scale == 1.0:
        sides = [_times(n) for n in node.inputs]
        at = next((k for k, (_, n) in enumerate(sides) if n.op == "library"), None)
        if at is not None:
            mask, (scale, node) = node.inputs[1 - at], sides[at]
    return _Scores(node, scale, shape, mask, seen is not None) if node.op == "library" and len(shape) == 4 else None


def _times(node: Node) -> tuple[float, Node]:
    """The number that a node is a multiple by, and of what."""
    times, node = 1.0, _plain(node)
    while (number := _number(node)) is not None:
        at, by = number
        times, node = times * by, _plain(node.inputs[at])
    return times, node


def _number(node: Node) -> tuple[int, float] | None:
    """Of a product with a number, a quotient by one, and a sum with 0: the other operand's place, and what it is
    multiplied by.
    """
    if node.op not in ("mul", "div", "add"):
        return None
    for at in (0, 1) if node.op != "div" else (0,):
        number = number_of(node.inputs[1 - at])
        if number is not None and node.op == "add":
            return (at, 1.0) if number == 0 else None
        if number is not None and (node.op == "mul" or number != 0):
            return at, float(number) if node.op == "mul" else 1 / float(number)
    return None


def _given(
    origins: Iterator[tuple[Node, float]],
    shape: tuple[Dim, ...],
    across: bool,
    dtype: DType,
    flow: Flow,
    layouts: Mapping[Node, Layout],
) -> tuple[Node, float] | None:
    """The first of the `origins` of an operand that is a view of a buffer, of `shape` and `dtype`, and the number that
    comes with it. An operand that lies `across` has its last two dimensions the other way round.
    """
    batch, heads, rows, head = shape
    lying = (batch, heads, head, rows) if across else shape
    for origin, times in origins:
        node = origin
        if node.op == "reshape" and node.inputs[0].shape == lying:  # before batch and heads became one dimension
            node = node.inputs[0]
        elif node.shape == (product(lying[:2]), *lying[2:]):
            node = _simple(b.reshape(node, lying))
        if node.shape == lying and node.dtype is dtype:
            view = _simple(b.permute(node, (0, 1, 3, 2))) if across else node
            if _is_view(view, flow, layouts):
                return view, times
    return None


def _origins(node: Node, flow: Flow) -> Iterator[tuple[Node, float]]:
    """What the node is a number of times of, in another type perhaps, and this number: what was made first is first."""
    below: Iterator[tuple[Node, float]] = iter(())
    if node.op in MOVES:
        below = ((_moved(node, n), times) for n, times in _origins(node.inputs[0], flow))
    elif _stays(node):
        below = _origins(node.inputs[0], flow)
    elif (number := _number(node)) is not None:
        at, by = number
        below = ((n, times * by) for n, times in _origins(node.inputs[at], flow))
    yield from below
    if node in flow.stands_for:
        yield flow.stands_for[node], 1.0
    yield node, 1.0


def _moved(movement: Node, node: Node) -> Node:
    """The same movement of another value."""
    attrs = dict(movement.attrs)
    if movement.op == "permute":
        return _simple(b.permute(node, attrs["order"]))
    if movement.op == "slice":
        return _simple(b.take_slice(node, attrs["starts"], movement.shape, attrs["steps"]))
    return _simple((b.reshape if movement.op == "reshape" else b.expand)(node, movement.shape))


def _simple(node: Node) -> Node:
    while (better := apply_rules(node)) is not None:
        node = better
    return node


def _is_view(node: Node, flow: Flow, layouts: Mapping[Node, Layout]) -> bool:
    """True where the node is a view of a buffer that somebody else makes."""
    base = base_of(node, flow.producer)
    chain = [node]
    while chain[-1] is not base:
        chain.append(chain[-1].inputs[0])
    if base not in flow.producer and base not in flow.inputs:
        return False
    layout: Layout | None = layouts.get(base, contiguous(base.shape))
    for moved in reversed(chain[:-1]):
        layout = None if layout is None else view_of(moved, layout)
    return layout is not None


def _result(last: Node, shape: tuple[Dim, ...], flow: Flow) -> tuple[Node, str]:
    """The buffer that is wanted of the second product, and how its elements lie: what alone reads the product may only
    narrow, copy or turn it.
    """
    split = (*shape[:3], last.shape[-1])
    output, form = last, HEADS_FIRST
    while form != TURNED:
        readers = flow.readers.get(output, ())
        call = flow.graph.calls[readers[0]] if len(readers) == 1 and readers[0] != OUTPUT else None
        after = call.outs[0] if call is not None and len(call.outs) == 1 and not call.effect else None
        if after is None or after.op not in ("copy", "cast") or flow.producer.get(after) != readers[0]:
            break
        node, lies = after.inputs[0], HEADS_FIRST
        if node.op == "permute" and node.attr("order") == (0, 2, 1, 3):
            node, lies = node.inputs[0], TURNED
        if _plain(node) is not last or node.shape not in (split, last.shape) or not after.dtype.is_float:
            break
        output, form = after, lies
    return output, form


def _between(end: int, products: tuple[int, int], given: tuple[Node, ...], flow: Flow) -> frozenset[int]:
    """The calls that lead from `given` to call `end` and whose values nobody else reads."""
    kept = {base_of(n, flow.producer) for n in given}
    calls = {end}
    while True:
        leaves = {leaf for k in calls for leaf in flow.leaves[k]} - kept
        makers = {flow.producer[n]: n for n in leaves if n in flow.producer}
        more = {
            k
            for k in makers.keys() - calls
            if (k in products or not flow.graph.calls[k].opaque)
            and not flow.graph.calls[k].effect
            and all(set(flow.readers.get(o, ())) <= calls for o in _made(k, flow))
        }
        if not more:
            return frozenset(calls)
        calls |= more


def _made(k: int, flow: Flow) -> list[Node]:
    return [o for o in flow.graph.calls[k].outs if o is not None and flow.producer.get(o) == k]


def _read_elsewhere(calls: frozenset[int], flow: Flow) -> set[Node]:
    """The buffers of `calls` that others read."""
    return {o for k in calls for o in _made(k, flow) if not set(flow.readers.get(o, ())) <= calls}
