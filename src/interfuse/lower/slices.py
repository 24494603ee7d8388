"""Slices of reductions. In: the roots of a region. Out: the same roots with reductions of slices in their
place.

The gates of a recurrent cell, or the halves of a gated layer, are slices of one product, which is a sum of more
elements than the region writes. A sum of each slice has their size, so that one domain takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from interfuse.ir import build as b
from interfuse.ir.index import Dim, product, wrap
from interfuse.ir.node import Node, make, with_inputs
from interfuse.ir.ops import POINTWISE, REDUCES
from interfuse.lower.domain import inside


class Slice(NamedTuple):
    """Which elements of a value: as in `build.take_slice`."""

    starts: tuple[Dim, ...]
    shape: tuple[Dim, ...]
    steps: tuple[int, ...]


def slices_first(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots above `inputs`, where each reduction of which nothing is read but slices, all together no more than it
    has, is a reduction of each slice; so is element-wise work between them.
    """
    nodes = inside(roots, inputs)
    parted = _parted(nodes, roots)
    if not parted:
        return roots
    memo: dict[Node, Node] = {i: i for i in inputs}
    for node in nodes:
        if node.op == "slice" and node.inputs[0] in parted:
            memo[node] = _part(node.inputs[0], _slice(node), memo, {})
        else:
            memo[node] = with_inputs(node, tuple(memo[i] for i in node.inputs))
    return tuple(memo[r] for r in roots)


def _parted(nodes: list[Node], roots: Iterable[Node]) -> frozenset[Node]:
    """The nodes to be made slice by slice: reductions, and what is computed element by element from them alone."""
    above: set[Node] = set()
    for node in nodes:
        if node.op in REDUCES or (node.op in POINTWISE and node.token is None and not above.isdisjoint(node.inputs)):
            above.add(node)
    wanted: dict[Node, set[Slice] | None] = {n: set() for n in above}
    wanted |= dict.fromkeys(roots)
    for node in reversed(nodes):  # readers first
        mine = wanted.get(node) if node in above else None
        for i in node.inputs:
            known = wanted.get(i)
            if known is None:
                continue
            if node.op == "slice":
                known.add(_slice(node))
            elif node.op in POINTWISE and mine is not None:
                known |= mine
            else:
                wanted[i] = None
    parted: set[Node] = set()
    for node in nodes:
        made = node in above and _are_fewer(wanted[node], node)
        if made and (node.op in REDUCES or all(i in parted for i in node.inputs if i in above)):
            parted.add(node)
    return frozenset(parted)


def _are_fewer(slices: set[Slice] | None, node: Node) -> bool:
    """True where slices are all that is read of a node, and they have no more elements than it."""
    if not slices:
        return False
    return (sum((wrap(product(s.shape)) for s in slices), wrap(0)) - product(node.shape)).hi <= 0


def _slice(node: Node) -> Slice:
    return Slice(node.attr("starts"), node.shape, node.attr("steps"))


def _part(node: Node, taken: Slice, memo: dict[Node, Node], parts: dict[Node, Node]) -> Node:
    """The slice of a node, taken as far up as element-wise work and what is repeated let it."""
    if node not in parts:
        parts[node] = _made(node, taken, memo, parts)
    return parts[node]


def _made(node: Node, taken: Slice, memo: dict[Node, Node], parts: dict[Node, Node]) -> Node:
    if node.op in REDUCES:
        return _of_operand(node, taken, memo, parts)
    if node.op in POINTWISE and node.token is None:
        inputs = tuple(_part(i, taken, memo, parts) for i in node.inputs)
        return make(node.op, inputs, node.dtype, taken.shape, None, node.source, node.hint, **dict(node.attrs))
    if node.op == "expand":
        x = node.inputs[0]
        repeats = [d == 1 for d in x.shape]
        starts = tuple(0 if r else s for r, s in zip(repeats, taken.starts, strict=True))
        shape = tuple(1 if r else d for r, d in zip(repeats, taken.shape, strict=True))
        steps = tuple(1 if r else s for r, s in zip(repeats, taken.steps, strict=True))
        return b.expand(b.take_slice(memo[x], starts, shape, steps), taken.shape)
    return b.take_slice(memo[node], *taken)


def _of_operand(node: Node, taken: Slice, memo: dict[Node, Node], parts: dict[Node, Node]) -> Node:
    """The reduction of a slice that has all of the axes that are reduced."""
    operand, axes = node.inputs[0], node.attr("axes")
    kept = iter(zip(*taken, strict=True))
    each = [(0, d, 1) if k in axes else next(kept) for k, d in enumerate(operand.shape)]
    inputs = (_part(operand, Slice(*map(tuple, zip(*each, strict=True))), memo, {}),)
    return make(node.op, inputs, node.dtype, taken.shape, None, node.source, node.hint, **dict(node.attrs))
