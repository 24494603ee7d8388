"""Statistics of a row in one pass or in several. In: the outputs of a region. Out: the same with reductions that
kernels have.

Two forms, and the family chooses:

    held   A row in registers is read again for nothing, so a variance is the mean of squared distances from the mean:
           no cancellation. The same pass sums the distances too: what they add up to is what rounding left out of the
           mean, and is put back into both. Without it a norm of equal elements would be noise.
    once   Any other row would be fetched for each pass, from a cache or from memory, so `spread` (squared distances
           from the mean) is reduced beside `mean`, and `expsum` (exponentials of distances from the maximum) beside
           `max`, in the pass that makes the row first: the emitters' accumulators carry what these need.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.node import Node, with_inputs
from interfuse.lower.domain import inside, width

Axes = tuple[int, ...]
Pair = tuple[Node, Axes]
"""A value and the axes that it is reduced over."""


def _over(total: Node, count: Node, hint: str) -> Node:
    return b.apply("div", total, count, hint=hint)


def _count(x: Node, axes: Axes, total: Node, less: float = 0) -> Node:
    """How many elements of x go into each of `total`, `less` so many but not less than none, beside every one."""
    count = width(x.shape, axes)
    if isinstance(count, int):
        return b.like(max(count - less, 0), total)
    size = b.size(count, total.dtype)
    if less:
        size = b.apply("maximum", b.apply("sub", size, b.like(less, size)), b.like(0, size), hint="count")
    return b.broadcast(size, total.shape)


# --- held on chip


def _mean(x: Node, axes: Axes) -> Node:
    total = b.reduce("sum", x, axes, hint="total")
    return _over(total, _count(x, axes, total), "mean")


def _distances(x: Node, axes: Axes) -> tuple[Node, Node]:
    """(each element's distance from the mean that a plain sum gives, the sum of those distances)."""
    centred = b.apply("sub", x, b.spread_over(_mean(x, axes), x, axes), hint="centred")
    return centred, b.reduce("sum", centred, axes, hint="left_out")


def _free_of_slip(x: Node, axes: Axes) -> Node:
    """Each element's distance from the true mean: from the one that was summed, less the average of those distances."""
    centred, left = _distances(x, axes)
    return b.apply("sub", centred, b.spread_over(_over(left, _count(x, axes, left), "shift"), x, axes), hint="centred")


def _true_mean(x: Node, axes: Axes) -> Node:
    """The mean with what rounding left out put back; as it was summed where that is no finite number."""
    summed, left = _mean(x, axes), _distances(x, axes)[1]
    mean = b.apply("add", summed, _over(left, _count(x, axes, left), "shift"), hint="mean")
    finite = b.apply("eq", b.apply("sub", summed, summed), b.like(0, summed))
    return b.apply("where", finite, mean, summed, hint="mean")


def _spread(x: Node, axes: Axes) -> Node:
    centred, left = _distances(x, axes)
    squares = b.reduce("sum", b.apply("mul", centred, centred, hint="squared"), axes, hint="squares")
    shifted = b.apply("mul", left, _over(left, _count(x, axes, left), "shift"), hint="shifted")
    # Rounding may leave the difference of two equal numbers below 0, where a square root gives NaN.
    return b.apply("maximum", b.apply("sub", squares, shifted, hint="spread"), b.like(0, squares), hint="spread")


def _of_variance(spread: Node, x: Node, axes: Axes, correction: float) -> Node:
    return _over(spread, _count(x, axes, spread, correction), "variance")


def _centring(node: Node, inputs: frozenset[Node]) -> Pair | None:
    """(x, axes) where `node` is x less its own mean over axes."""
    found = reduced_operand(node, "mean", inputs) if node.op == "sub" else None
    return None if found is None else (node.inputs[0], found.attr("axes"))


def reduced_operand(node: Node, op: str, inputs: frozenset[Node]) -> Node | None:
    """The reduction `op` of the first operand that the second operand spreads over it again, if that is what it is.

    A mean that is NaN where it would be infinite counts as the mean: an infinite element's distance from it is NaN.
    """
    x, kept = node.inputs[0], _behind(node.inputs[1], inputs)
    mean = kept.inputs[0] if op == "mean" and kept not in inputs and kept.op == "add" else None
    if mean is not None and kept is b.apply("add", mean, b.apply("sub", mean, mean)):
        kept, spread = mean, kept
    else:
        spread = kept
    found = kept not in inputs and kept.op == op and kept.inputs[0] is x
    return kept if found and node.inputs[1] is b.spread_over(spread, x, kept.attr("axes")) else None


def _behind(node: Node, inputs: frozenset[Node]) -> Node:
    """What `node` spreads over more elements."""
    while node not in inputs and node.op in ("reshape", "expand"):
        node = node.inputs[0]
    return node


def expand_statistics(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots with means, variances and their like spelled as plain sums between them and `inputs`: the form held.

    Beside a `spread` a mean is made free of what rounding left out: parts of a row are measured from it.
    """
    memo: dict[Node, Node] = {i: i for i in inputs}
    nodes = inside(roots, inputs)
    spread = {(n.inputs[0], n.attr("axes")) for n in nodes if n.op == "variance"}
    apart = {(n.inputs[0], n.attr("axes")) for n in nodes if n.op == "spread"}
    for node in nodes:
        parts = tuple(memo[i] for i in node.inputs)
        axes = node.attr("axes")
        if node.op == "mean":
            memo[node] = (_true_mean if (node.inputs[0], axes) in apart else _mean)(parts[0], axes)
        elif node.op == "spread":
            memo[node] = _spread(parts[0], axes)
        elif (pair := _centring(node, inputs)) in spread and pair is not None:
            memo[node] = _free_of_slip(parts[0], pair[1])
        elif node.op == "variance":
            memo[node] = _of_variance(_spread(parts[0], axes), parts[0], axes, node.attr("correction"))
        else:
            memo[node] = with_inputs(node, parts)
    return tuple(memo[r] for r in roots)


# --- read once


def join_statistics(roots: tuple[Node, ...], inputs: frozenset[Node], exponentials: bool = True) -> tuple[Node, ...]:
    """The roots with variances as `spread` and, where asked, sums of `exponentials` as `expsum`: the form that reads
    its operand once.

    A mean without a variance beside it stays a plain sum.
    """
    memo: dict[Node, Node] = {i: i for i in inputs}
    nodes = inside(roots, inputs)
    spread = {(n.inputs[0], n.attr("axes")) for n in nodes if n.op in ("variance", "spread")}
    for node in nodes:
        parts = tuple(memo[i] for i in node.inputs)
        axes = node.attr("axes")
        if node.op == "mean" and (node.inputs[0], axes) not in spread:
            memo[node] = _mean(parts[0], axes)
        elif node.op == "variance":
            memo[node] = _of_variance(b.reduce("spread", parts[0], axes), parts[0], axes, node.attr("correction"))
        elif exponentials and (found := _exponentials(node, inputs)) is not None:
            top, guarded = found
            memo[node] = _joined_exponentials(memo[top.inputs[0]], memo[top], axes, guarded)
        else:
            memo[node] = with_inputs(node, parts)
    return tuple(memo[r] for r in roots)


def _exponentials(node: Node, inputs: frozenset[Node]) -> tuple[Node, bool] | None:
    """The maximum from which `node` measures what it sums the exponentials of: sum(exp(x - max of x)).

    With True where it measures from 0 instead when the maximum is infinite, as logsumexp does.
    """
    if node.op != "sum" or node.inputs[0] in inputs or node.inputs[0].op != "exp":
        return None
    apart = node.inputs[0].inputs[0]
    if apart in inputs or apart.op != "sub":
        return None
    plain = reduced_operand(apart, "max", inputs)
    top = plain or _finite_maximum(apart, inputs)
    return (top, plain is None) if top is not None and top.attr("axes") == node.attr("axes") else None


def _finite_maximum(apart: Node, inputs: frozenset[Node]) -> Node | None:
    """The maximum of x where `apart` is x - where(isinf(maximum), 0, maximum)."""
    x, shift = apart.inputs[0], _behind(apart.inputs[1], inputs)
    if shift in inputs or shift.op != "where" or apart.inputs[1] is not b.expand(shift, x.shape):
        return None
    test, zero, top = shift.inputs
    zero, kept = _behind(zero, inputs), _behind(top, inputs)
    if kept in inputs or kept.op != "max" or kept.inputs[0] is not x or zero.op != "const" or zero.attr("value") != 0:
        return None
    at_once = test not in inputs and test is b.apply("isinf", top)
    return kept if at_once and b.spread_over(kept, x, kept.attr("axes")) is b.expand(top, x.shape) else None


def _joined_exponentials(x: Node, top: Node, axes: Axes, guarded: bool) -> Node:
    """The sum of exp(x - top) by `expsum`; `guarded` where the shift is 0 instead of an infinite maximum."""
    total = b.reduce("expsum", x, axes, hint="total")
    if guarded:  # exp(-inf) of every element, or some exp(inf)
        return b.apply("where", b.apply("isinf", top), b.apply("exp", top, hint="unshifted"), total, hint="total")
    return b.apply("add", total, b.apply("sub", top, top, hint="nothing"), hint="total")  # inf - inf is NaN
