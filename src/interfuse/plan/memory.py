"""Peak memory of an order of regions. In: a flow and sets of calls in the order that they run. Out: bytes, and where.

Counted are the buffers between graph inputs and outputs, outputs included, each from the region that makes it to the
last one that reads it. What a kernel keeps on chip is not memory. A matrix product and its activation count as what
they are where no routine does both: one after the other, with a buffer between them. Eager's peak is that of the calls
one by one in program order. Sizes that change between calls are those of the example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from interfuse.ir.index import INF, at_sizes
from interfuse.ir.node import Node
from interfuse.plan.flow import OUTPUT, Flow


@dataclass(frozen=True)
class Need:
    """What running something was measured to need beside what it reads: bytes held `once`, results and workspaces, and
    bytes that a library has `kept` since.
    """

    once: int
    kept: int = 0


@dataclass(frozen=True)
class Peak:
    """The most bytes held at once, the buffers held there, and the calls that run then."""

    bytes: int
    held: tuple[Node, ...]
    calls: frozenset[int] = frozenset()


def node_bytes(node: Node, sizes: Mapping[str, int]) -> int:
    """Bytes of a buffer for `node`; `sizes` gives the size symbols, others count as their least value."""
    return node.dtype.bytes * at_sizes(node.size, sizes)


def peak(order: Sequence[frozenset[int]], flow: Flow, needs: Mapping[frozenset[int], int] | None = None) -> Peak:
    """The peak of running the sets of calls in `order`. `needs` gives bytes that some of them were measured to hold at
    once beside what is there when they begin.
    """
    return max(_held(order, flow, needs), key=lambda p: p.bytes, default=Peak(0, ()))


def spare(flow: Flow) -> Mapping[int, int]:
    """For each call the bytes that eager holds less while it runs than at its peak."""
    held = _held([frozenset((k,)) for k in flow.needed], flow)
    return {k: max(p.bytes for p in held) - p.bytes for p in held for k in p.calls}


def _held(order: Sequence[frozenset[int]], flow: Flow, needs: Mapping[frozenset[int], int] | None = None) -> list[Peak]:
    """What is held while each set of calls in `order` runs; `needs` as for `peak`."""
    parts = [(part, calls) for calls in order for part in _one_by_one(calls, flow)]
    position_of = {k: i for i, (part, _) in enumerate(parts) for k in part}
    last = {
        n: max((INF if r == OUTPUT else position_of[r] for r in readers), default=-1)
        for n, readers in flow.readers.items()
    }
    sizes, needs = dict(flow.graph.hints), dict(needs or {})
    live: dict[Node, None] = {}
    found: list[Peak] = []
    held = 0
    for i, (part, calls) in enumerate(parts):
        made = [
            n
            for k in sorted(part)
            for n in flow.graph.calls[k].outs
            if n is not None and flow.producer.get(n) == k and not _stays_inside(n, part, flow)
        ]
        live.update(dict.fromkeys(made))
        made_bytes = sum(node_bytes(n, sizes) for n in made)
        now = held + max(made_bytes, needs.pop(calls, 0))
        held += made_bytes
        found.append(Peak(now, tuple(live), calls))
        for n in [n for n in live if last.get(n, -1) <= i]:
            del live[n]
            held -= node_bytes(n, sizes)
    return found


def eager_peak(flow: Flow, needs: Mapping[frozenset[int], int] | None = None) -> int:
    """Bytes at the peak of the calls one by one; `needs` as for `peak`."""
    return peak([frozenset((k,)) for k in flow.needed], flow, needs).bytes


def _one_by_one(calls: frozenset[int], flow: Flow) -> list[frozenset[int]]:
    """The matrix products among the calls, if any, then the others."""
    products = frozenset(k for k in calls if any(n is not None and n.op == "linear" for n in flow.graph.calls[k].outs))
    return [part for part in (products, calls - products) if part]


def _stays_inside(node: Node, calls: frozenset[int], flow: Flow) -> bool:
    """True where the value never leaves a kernel: read by this region alone."""
    return len(calls) > 1 and all(r in calls for r in flow.readers.get(node, ()))


def suspects(found: Peak, order: Sequence[frozenset[int]], flow: Flow) -> list[frozenset[int]]:
    """The merged regions that make or read what is held at the peak.

    A merged region keeps all of its inputs until it runs, where eager lets the first go after its own call; and it
    makes all of its outputs when the first is needed.
    """
    position_of = {k: i for i, calls in enumerate(order) for k in calls}
    touching = [[flow.producer[n], *flow.readers.get(n, ())] for n in found.held]
    positions = {position_of[k] for calls in touching for k in calls if k in position_of}
    return [order[i] for i in sorted(positions) if len(order[i]) > 1]
