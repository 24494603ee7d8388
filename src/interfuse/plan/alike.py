"""Works that are alike. In: a Work. Out: a key that all works share which one kernel serves; their buffers in order.

Layers of a model and steps of an unrolled loop ask for the same kernel again and again, of other buffers: it is lowered
and predicted once.
"""

from __future__ import annotations

from collections.abc import Hashable

from interfuse.ir.node import Node, expressions, topological
from interfuse.lower.schedule import Schedule
from interfuse.lower.work import Work


class Likeness:
    """Keys of works. What a node is by itself is worked out once."""

    def __init__(self) -> None:
        self._own: dict[Node, Hashable] = {}

    def of(self, work: Work, schedule: Schedule | None = None) -> tuple[Hashable, tuple[Node, ...]]:
        """(key, leaves): works with equal keys have equal kernels of one schedule but for names and notes, where the
        buffers that one reads are the leaves of the other in the same places. Nothing may be reduced ahead.
        """
        roots = work.roots or work.outputs
        order = topological(roots, work.inputs)
        number = {n: k for k, n in enumerate(order)}
        lines = tuple(
            (n.dtype.name, n.shape, work.layouts[n])
            if n in work.inputs
            else (self._itself(n), tuple(number[i] for i in n.inputs))
            for n in order
        )
        ends = tuple(
            (number[r], o.dtype.name, o.shape, work.layouts[o]) for r, o in zip(roots, work.outputs, strict=True)
        )
        return (lines, ends, work.parts, work.starts, schedule), tuple(n for n in order if n in work.inputs)

    def _itself(self, node: Node) -> Hashable:
        """What a node is but for its inputs: as nodes are told apart by `ir/node.py`."""
        found = self._own.get(node)
        if found is None:
            found = node.op, node.dtype.name, node.shape, repr(node.attrs), expressions(node.attrs), node.token
            self._own[node] = found
        return found
