"""Factors that all of a row shares. In: the outputs of a region. Out: the same with the largest |x * c * w| of a row as
c times the largest |x * w|.

A norm whose result is scaled by its largest element is such a region: c comes of the squares of all x, so that a row
would be reduced twice, one time after the other. What is left does not wait for c: both reductions meet at once.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.node import Node, with_inputs
from interfuse.lower.domain import inside


def largest_first(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots with the largest elements of rows that are scaled taken before they are scaled."""
    memo: dict[Node, Node] = {i: i for i in inputs}
    nodes = inside(roots, inputs)
    found = {n.inputs[0].inputs[0]: f for n in nodes if (f := _shared_factor(n, inputs)) is not None}
    for node in nodes:
        if node in found:
            c, others = found[node]
            memo[node] = b.apply("mul", _product([memo[x] for x in others]), memo[c], hint=node.hint)
        elif (f := _shared_factor(node, inputs)) is not None:
            c, others = f
            size = b.apply("abs", _product([memo[x] for x in others]), hint="size")
            top = b.reduce("max", size, node.attr("axes"), hint="top")
            memo[node] = b.apply("mul", top, b.reshape(memo[c].inputs[0], top.shape), hint=node.hint)
        else:
            memo[node] = with_inputs(node, tuple(memo[i] for i in node.inputs))
    return tuple(memo[r] for r in roots)


def _product(factors: list[Node]) -> Node:
    out = factors[0]
    for x in factors[1:]:
        out = b.apply("mul", out, x, hint="product")
    return out


def _shared_factor(node: Node, inputs: frozenset[Node]) -> tuple[Node, list[Node]] | None:
    """Of max |x * c * w|: c and the others; None where `node` is none, or c may be negative or no inverse of the norm
    of an x. Where that is a number, squares of x are: what is left has its digits, too.
    """
    if node in inputs or node.op != "max" or node.dtype is not F32 or node.inputs[0] in inputs:
        return None
    if node.inputs[0].op != "abs" or node.inputs[0].inputs[0] in inputs:
        return None
    factors = _factors(node.inputs[0].inputs[0], inputs)
    for c in factors:
        others = [x for x in factors if x is not c]
        if len(others) == len(factors) - 1 >= 1 and _is_inverse_norm(c, node, others, inputs):
            return c, others
    return None


def _factors(node: Node, inputs: frozenset[Node]) -> list[Node]:
    """What is multiplied, in order."""
    if node in inputs or node.op != "mul" or node.inputs[0] is node.inputs[1]:
        return [node]
    return [f for i in node.inputs for f in _factors(i, inputs)]


def _is_inverse_norm(c: Node, largest: Node, others: list[Node], inputs: frozenset[Node]) -> bool:
    """True where `c` is the same in all that one of `largest` is taken of: an inverse root that squares of one of the
    `others` went into.
    """
    if c in inputs or c.op != "expand" or (kept := c.inputs[0]) in inputs or kept.op != "rsqrt":
        return False
    axes = largest.attr("axes")
    if any(k != d if a not in axes else k != 1 for a, (k, d) in enumerate(zip(kept.shape, c.shape, strict=True))):
        return False
    summed = [n.inputs[0] for n in inside((kept,), inputs) if n.op in ("sum", "mean")]
    return any(s.op == "mul" and s.inputs == (x, x) for s in summed if s not in inputs for x in others)
