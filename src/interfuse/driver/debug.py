"""What INTERFUSE_DEBUG prints. In: a level and a way to make a text. Out: lines on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable

from interfuse.base.knobs import Knobs
from interfuse.ir.graph import Graph
from interfuse.ir.node import topological


def debug(knobs: Knobs, level: int, text: Callable[[], str]) -> None:
    """Print `text()` where the knob asks for `level` or more; it is not made otherwise."""
    if knobs.debug >= level:
        for line in text().rstrip().splitlines():
            print(f"interfuse: {line}", file=sys.stderr)


def changes(name: str, before: Graph, after: Graph) -> str:
    """What a pass did to the nodes of a graph, by operator: "drop_rounds: 40 -> 31 nodes (round -9)"."""
    old, new = ({n.op: 0 for n in topological(g.roots())} for g in (before, after))
    for counts, graph in ((old, before), (new, after)):
        for n in topological(graph.roots()):
            counts[n.op] += 1
    moved = [
        f"{op} {new.get(op, 0) - old.get(op, 0):+d}" for op in sorted({*old, *new}) if old.get(op, 0) != new.get(op, 0)
    ]
    return f"{name}: {sum(old.values())} -> {sum(new.values())} nodes" + (f" ({', '.join(moved)})" if moved else "")
