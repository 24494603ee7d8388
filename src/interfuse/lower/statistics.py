"""Means and variances as sums. In: the outputs of a region that stays on chip. Out: the same with plain sums only.

While a row is on chip a second pass over it costs no memory traffic, so the variance is the mean of squared distances
from the mean: no cancellation, as exact as Welford's form. Streamed rows will keep the operators whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from interfuse.ir import build as b
from interfuse.ir.node import Node, make, topological
from interfuse.lower.domain import static


def _mean(x: Node, axes: tuple[int, ...]) -> Node:
    count = math.prod(static(x.shape)[a] for a in axes)
    total = b.reduce("sum", x, axes, hint="total")
    return b.apply("div", total, b.broadcast(b.constant(count, x.dtype), total.shape), hint="mean")


def _variance(x: Node, axes: tuple[int, ...], correction: float) -> Node:
    count = math.prod(static(x.shape)[a] for a in axes)
    kept = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
    centred = b.apply("sub", x, b.expand(b.reshape(_mean(x, axes), kept), x.shape), hint="centred")
    total = b.reduce("sum", b.apply("mul", centred, centred, hint="squared"), axes, hint="spread")
    divisor = b.constant(max(count - correction, 0), x.dtype)
    return b.apply("div", total, b.broadcast(divisor, total.shape), hint="variance")


def expand_statistics(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots with `mean` and `variance` spelled out between them and `inputs`."""
    memo: dict[Node, Node] = {i: i for i in inputs}
    for node in topological(roots):
        if node in memo:
            continue
        parts = tuple(memo[i] for i in node.inputs)
        if node.op == "mean":
            memo[node] = _mean(parts[0], node.attr("axes"))
        elif node.op == "variance":
            memo[node] = _variance(parts[0], node.attr("axes"), node.attr("correction"))
        else:
            memo[node] = node if parts == node.inputs else _with_inputs(node, parts)
    return tuple(memo[r] for r in roots)


def _with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    attrs: Mapping[str, object] = dict(node.attrs)
    return make(node.op, inputs, node.dtype, node.shape, node.token, node.source, node.hint, **attrs)
