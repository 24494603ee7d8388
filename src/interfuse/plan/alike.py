"""Works that are alike. In: a Work. Out: a key that all works share which one kernel serves; their buffers in order.

Layers of a model and steps of an unrolled loop ask for the same kernel again and again, of other buffers: it is lowered
and predicted once. So are steps that read other parts of one buffer: where a slice begins counts as a place alone.
"""

from __future__ import annotations

from collections.abc import Hashable

from interfuse.ir.node import Node, expressions, topological
from interfuse.ir.ops import MOVES
from interfuse.lower.schedule import Schedule
from interfuse.lower.windows import places
from interfuse.lower.work import Work


class Likeness:
    """Keys of works. What a node is by itself is worked out once."""

    def __init__(self) -> None:
        self._own: dict[Node, Hashable] = {}
        self._keys: dict[tuple[int, Schedule | None], tuple[Work, Hashable, tuple[Node, ...]]] = {}

    def of(self, work: Work, schedule: Schedule | None = None) -> tuple[Hashable, tuple[Node, ...]]:
        """(key, leaves): works with equal keys have equal kernels of one schedule but for names and notes, where the
        buffers that one reads are the leaves of the other in the same places. Nothing may be reduced ahead.
        """
        known = self._keys.get((id(work), schedule))
        if known is None:  # the work is kept beside its key, so that no other one gets its id
            known = self._keys[id(work), schedule] = work, *self._key(work, schedule)
        return known[1:]

    def _key(self, work: Work, schedule: Schedule | None) -> tuple[Hashable, tuple[Node, ...]]:
        roots = work.roots or work.outputs
        order = topological(roots, work.inputs)
        number = {n: k for k, n in enumerate(order)}
        place = places(order, {n: work.layouts[n] for n in order if n in work.inputs})
        lines = tuple(
            (n.dtype.name, n.shape, work.layouts[n].strides)
            if n in work.inputs
            else (self._itself(n), tuple((number[i], place.get(i)) for i in n.inputs))
            if n not in place
            else (n.op, n.dtype.name, n.shape, number[n.inputs[0]])
            if n.op in MOVES
            else (self._itself(n), number[n.inputs[0]])
            for n in order
        )
        ends = tuple(
            (number[r], place.get(r), o.dtype.name, o.shape, work.layouts[o])
            for r, o in zip(roots, work.outputs, strict=True)
        )
        return (lines, ends, work.parts, work.starts, work.ring, schedule), tuple(n for n in order if n in work.inputs)

    def _itself(self, node: Node) -> Hashable:
        """What a node is but for its inputs: as nodes are told apart by `ir/node.py`."""
        found = self._own.get(node)
        if found is None:
            found = node.op, node.dtype.name, node.shape, repr(node.attrs), expressions(node.attrs), node.token
            self._own[node] = found
        return found
