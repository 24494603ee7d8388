"""What a trace reaches. In: a Trace. Out: its accesses, the bounds that it tests, the size symbols that it uses."""

from __future__ import annotations

from interfuse.ir.index import symbols
from interfuse.ir.node import Node
from interfuse.lower.domain import Domain
from interfuse.lower.kernel import Axis, Bound, Let, Load, Role, Store, bounds_of
from interfuse.lower.target import FEW, Target
from interfuse.lower.traced import Trace


def accesses(trace: Trace) -> list[Load | Store]:
    """Every load and store."""
    return [*(m for m in trace.made if isinstance(m, Load)), *trace.stores, *trace.ends]


def bounds(trace: Trace) -> list[Bound]:
    """The bounds of every statement."""
    return [b for m in trace.made for b in bounds_of(m)]


def size_symbols(trace: Trace, axes: tuple[Axis, ...]) -> tuple[str, ...]:
    """The size symbols that the kernel uses, by name."""
    positions = [dict(m.attrs)["expr"] for m in trace.made if isinstance(m, Let) and m.op == "index"]
    reached = accesses(trace)
    picks = [p for a in reached if isinstance(a, Load) for p in a.picks]
    tested = [e for b in bounds(trace) for e in (b.expr, *b.ends)]
    limits = [*(p.extent for p in picks), *(a.extent for a in axes)]
    used = {s.name for e in (*(a.index for a in reached), *positions, *tested, *limits) for s in symbols(e)}
    return tuple(sorted(used - {a.name for a in axes} - {p.symbol.name for p in picks}))


def adds_up(trace: Trace, nodes: list[Node], domain: Domain, target: Target) -> bool:
    """True where a few rows give sums and their like and nothing has to wait for these, so that nothing is held."""
    col = Axis("col", domain.cols, Role.GRID).symbol
    few = isinstance(domain.rows, int) and domain.rows <= FEW
    long = isinstance(domain.cols, int) and 2 * domain.cols > target.tile_elements
    plain = all(n.op not in ("variance", "spread", "expsum") for n in nodes)
    narrow = all(col not in symbols(s.index) for s in trace.stores)
    return few and long and plain and narrow and max(trace.depth.values(), default=0) <= 1
