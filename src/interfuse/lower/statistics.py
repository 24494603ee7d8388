"""Means and variances as sums. In: the outputs of a region. Out: the same with plain sums only.

While a row is on chip a second pass over it costs no memory traffic, so the variance is the mean of squared distances
from the mean: no cancellation. The same pass sums the distances too: what they add up to is what rounding left out of
the mean, and is put back into both. Without it a norm of equal elements would be noise, where Welford's form gives 0.
A streamed row pays two readings for it.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.node import Node, with_inputs
from interfuse.lower.domain import inside, width

Pair = tuple[Node, tuple[int, ...]]
"""A value and the axes that it is averaged over."""


def _over(total: Node, count: float, hint: str) -> Node:
    return b.apply("div", total, b.broadcast(b.constant(count, total.dtype), total.shape), hint=hint)


def _count(x: Node, axes: tuple[int, ...]) -> int:
    return width(x.shape, axes)


def _mean(x: Node, axes: tuple[int, ...]) -> Node:
    return _over(b.reduce("sum", x, axes, hint="total"), _count(x, axes), "mean")


def _distances(x: Node, axes: tuple[int, ...]) -> tuple[Node, Node, Node]:
    """(the mean as a plain sum gives it, each element's distance from it, the sum of those distances)."""
    mean = _mean(x, axes)
    kept = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
    centred = b.apply("sub", x, b.expand(b.reshape(mean, kept), x.shape), hint="centred")
    return mean, centred, b.reduce("sum", centred, axes, hint="left_out")


def _free_of_slip(x: Node, axes: tuple[int, ...]) -> Node:
    """Each element's distance from the true mean: from the one that was summed, less the average of those distances."""
    _, centred, left = _distances(x, axes)
    kept = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
    shift = b.expand(b.reshape(_over(left, _count(x, axes), "shift"), kept), x.shape)
    return b.apply("sub", centred, shift, hint="centred")


def _centring(node: Node) -> Pair | None:
    """(x, axes) where `node` is x less its own mean over axes."""
    if node.op != "sub":
        return None
    x, mean = node.inputs[0], node.inputs[1]
    while mean.op in ("reshape", "expand"):
        mean = mean.inputs[0]
    return (x, mean.attr("axes")) if mean.op == "mean" and mean.inputs[0] is x else None


def _variance(x: Node, axes: tuple[int, ...], correction: float) -> Node:
    _, centred, left = _distances(x, axes)
    squares = b.reduce("sum", b.apply("mul", centred, centred, hint="squared"), axes, hint="squares")
    shifted = b.apply("mul", left, _over(left, _count(x, axes), "shift"), hint="shifted")
    spread = b.apply("sub", squares, shifted, hint="spread")
    # Rounding may leave the difference of two equal numbers below 0, where a square root gives NaN.
    spread = b.apply("maximum", spread, b.broadcast(b.constant(0, x.dtype), spread.shape), hint="spread")
    return _over(spread, max(_count(x, axes) - correction, 0), "variance")


def expand_statistics(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots with `mean` and `variance` spelled out between them and `inputs`."""
    memo: dict[Node, Node] = {i: i for i in inputs}
    nodes = inside(roots, inputs)
    spread = {(n.inputs[0], n.attr("axes")) for n in nodes if n.op == "variance"}
    for node in nodes:
        parts = tuple(memo[i] for i in node.inputs)
        if node.op == "mean":
            memo[node] = _mean(parts[0], node.attr("axes"))
        elif (pair := _centring(node)) in spread and pair is not None:
            memo[node] = _free_of_slip(parts[0], pair[1])
        elif node.op == "variance":
            memo[node] = _variance(parts[0], node.attr("axes"), node.attr("correction"))
        else:
            memo[node] = with_inputs(node, parts)
    return tuple(memo[r] for r in roots)
