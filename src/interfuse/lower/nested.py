"""Rows in blocks. In: a region that reduces whole rows and, beside that, blocks of neighbouring columns. Out: the axes,
the trace and the statements of one kernel that holds a row as blocks by columns.

A norm whose result is scaled block by block is such a region. A row is reduced over its columns within each block, and
then over its blocks. Only GPU programs hold a row so; a CPU reads it again from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Dim
from interfuse.ir.node import Node
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.axes import Rows, power
from interfuse.lower.domain import Domain, digits_of, domain_of
from interfuse.lower.kernel import SPAN, Axis, Param, Role, Stmt
from interfuse.lower.schedule import Schedule
from interfuse.lower.target import HELD_TILE, Target
from interfuse.lower.traced import Trace
from interfuse.lower.tree import statements

MOST = 2 * HELD_TILE
"""Columns of a row at most: what is kept from one reduction to the next has to fit in registers."""


@dataclass(frozen=True)
class Blocks:
    """Rows of `count` blocks of `width` columns each."""

    rows: Dim
    count: int
    width: int

    @property
    def domain(self) -> Domain:
        """The domain of the reductions of blocks."""
        return Domain(self.rows * self.count, self.width, True)  # type: ignore[arg-type]


def find_blocks(nodes: Iterable[Node], sizes: set[Dim], target: Target) -> Blocks | None:
    """The blocks of a region that reduces them and whole rows, where a program can hold a row and every output (`sizes`
    elements) is a whole one or has one element a block; None for anything else.
    """
    nodes = list(nodes)
    if target.backend != "triton" or any(n.op in SCANS for n in nodes):
        return None
    ways = {domain_of(digits_of(n)) for n in nodes if n.op in REDUCES}
    if len(ways) != 2 or any(d.apart or d.inner != 1 or not isinstance(d.cols, int) or not d.cols for d in ways):
        return None
    block, whole = sorted(ways, key=lambda d: d.longest)
    count, rest = divmod(whole.longest, block.longest)
    if rest or count == 1 or block.rows != whole.rows * count or block.longest & (block.longest - 1):  # type: ignore[operator]
        return None
    fits = power(count) * block.longest <= MOST and sizes <= {block.kept, block.kept * block.cols}  # type: ignore[operator]
    return Blocks(whole.rows, count, block.longest) if fits else None


def in_blocks(
    blocks: Blocks, target: Target, schedule: Schedule, traced: Callable[[Domain, Rows], Trace]
) -> tuple[tuple[Axis, ...], Trace, tuple[Stmt, ...], tuple[Param, ...]]:
    """What a kernel for such a region is made of; `traced` traces it over a domain."""
    if schedule.streamed:
        raise UnsupportedError(f"the schedule {schedule}: rows in blocks are held on chip")
    row, span = Axis("row", blocks.rows, Role.GRID), Axis(SPAN, blocks.count, Role.TILE, power(blocks.count))
    col = Axis("col", blocks.width, Role.TILE, blocks.width)
    trace = traced(blocks.domain, Rows(row.symbol * blocks.count + span.symbol, (row, span)))
    axes = schedule.placed((row, span, col), target.backend, target.lanes)
    return (axes, trace, *statements(trace, col))
