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


def find_blocks(nodes: Iterable[Node]) -> Blocks | None:
    """The blocks of a region that reduces them and whole rows; None where it is anything else."""
    nodes = list(nodes)
    if any(n.op in SCANS for n in nodes):
        return None
    ways = {domain_of(digits_of(n)) for n in nodes if n.op in REDUCES}
    if len(ways) != 2 or any(d.apart or d.inner != 1 or not isinstance(d.cols, int) for d in ways):
        return None
    block, whole = sorted(ways, key=lambda d: d.longest)
    count, rest = divmod(whole.longest, block.longest)
    if rest or count == 1 or block.rows != whole.rows * count or block.longest & (block.longest - 1):  # type: ignore[operator]
        return None
    return Blocks(whole.rows, count, block.longest)


def in_blocks(
    blocks: Blocks,
    sizes: set[Dim],
    target: Target,
    schedule: Schedule,
    traced: Callable[[Domain, Rows], Trace],
) -> tuple[tuple[Axis, ...], Trace, tuple[Stmt, ...], tuple[Param, ...]]:
    """What a kernel for such a region is made of; `sizes` are its outputs' element counts, `traced` traces it over a
    domain. UnsupportedError where a program cannot hold a row, or something is stored once a row.
    """
    if target.backend != "triton" or power(blocks.count) * blocks.width > MOST or schedule.streamed:
        raise UnsupportedError(f"reductions of rows and of blocks of {blocks.width}: a GPU program would hold the row")
    domain = blocks.domain
    if not sizes <= {domain.kept, domain.kept * domain.cols}:  # type: ignore[operator]
        raise UnsupportedError("results of rows beside results of their blocks")
    row, block = Axis("row", blocks.rows, Role.GRID), Axis(SPAN, blocks.count, Role.TILE, power(blocks.count))
    col = Axis("col", blocks.width, Role.TILE, blocks.width)
    trace = traced(domain, Rows(row.symbol * blocks.count + block.symbol, (row, block)))
    axes = schedule.placed((row, block, col), target.backend, target.lanes)
    return (axes, trace, *statements(trace, col))
