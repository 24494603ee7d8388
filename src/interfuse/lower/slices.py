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
    taker = _Taker(inputs, _whole(nodes, roots, parted))
    for node in nodes:
        if node.op == "slice" and node.inputs[0] in parted:
            taker.memo[node] = taker.part(node.inputs[0], _slice(node))
        else:
            taker.memo[node] = with_inputs(node, tuple(taker.memo[i] for i in node.inputs))
    return tuple(taker.memo[r] for r in roots)


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


def _whole(nodes: list[Node], roots: Iterable[Node], parted: frozenset[Node]) -> frozenset[Node]:
    """The nodes that are computed whole, whatever else is read of them slice by slice."""
    whole = set(roots)
    for node in reversed(nodes):  # readers first
        if node in whole:
            whole.update(i for i in node.inputs if node.op != "slice" or i not in parted)
    return frozenset(whole)


def _are_fewer(slices: set[Slice] | None, node: Node) -> bool:
    """True where slices are all that is read of a node, and they have no more elements than it."""
    if not slices:
        return False
    return (sum((wrap(product(s.shape)) for s in slices), wrap(0)) - product(node.shape)).hi <= 0


def _slice(node: Node) -> Slice:
    return Slice(node.attr("starts"), node.shape, node.attr("steps"))


class _Taker:
    """Takes slices of values of a region. `memo` has what stands for each node so far; `inputs` stay what they are,
    whatever they were computed from, and no reduction of `whole` is done again.
    """

    def __init__(self, inputs: frozenset[Node], whole: frozenset[Node]) -> None:
        self.inputs, self.whole = inputs, whole
        self.memo: dict[Node, Node] = {i: i for i in inputs}

    def part(self, node: Node, taken: Slice) -> Node:
        """The slice of a node, taken as far up as element-wise work and what is repeated let it."""
        parts: dict[Node, Node] = {}
        stack = [node]  # chains of element-wise work are longer than Python recurses
        while stack:
            n = stack[-1]
            each = n.op in POINTWISE and n.token is None and n not in self.inputs
            missing = [i for i in n.inputs if i not in parts] if each else []
            if missing:
                stack += missing
                continue
            stack.pop()
            if each:
                parts[n] = _resized(n, tuple(parts[i] for i in n.inputs), taken)
            elif n not in parts:
                parts[n] = self._end(n, taken)
        return parts[node]

    def _end(self, node: Node, taken: Slice) -> Node:
        """The slice of a node that is not computed element by element."""
        if node in self.inputs:
            return b.take_slice(node, *taken)
        if node.op in REDUCES and node not in self.whole:
            return self._of_operand(node, taken)
        if node.op == "expand":
            x = node.inputs[0]
            repeats = [d == 1 for d in x.shape]
            starts = tuple(0 if r else s for r, s in zip(repeats, taken.starts, strict=True))
            shape = tuple(1 if r else d for r, d in zip(repeats, taken.shape, strict=True))
            steps = tuple(1 if r else s for r, s in zip(repeats, taken.steps, strict=True))
            return b.expand(b.take_slice(self.memo[x], starts, shape, steps), taken.shape)
        return b.take_slice(self.memo[node], *taken)

    def _of_operand(self, node: Node, taken: Slice) -> Node:
        """The reduction of a slice that has all of the axes that are reduced."""
        operand, axes = node.inputs[0], node.attr("axes")
        kept = iter(zip(*taken, strict=True))
        each = [(0, d, 1) if k in axes else next(kept) for k, d in enumerate(operand.shape)]
        part = self.part(operand, Slice(*map(tuple, zip(*each, strict=True))))
        return _resized(node, (part,), taken)


def _resized(node: Node, inputs: tuple[Node, ...], taken: Slice) -> Node:
    """The node of other inputs and of the slice's shape."""
    return make(node.op, inputs, node.dtype, taken.shape, None, node.source, node.hint, **dict(node.attrs))
