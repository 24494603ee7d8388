"""The axes of each family. In: a Domain and a Target. Out: axes with roles, and what a program takes of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from interfuse.ir.dtypes import F16, F32
from interfuse.ir.index import Dim, Expr, at_sizes, coefficient, substitute, symbols, wrap
from interfuse.ir.node import Node
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.domain import Domain
from interfuse.lower.kernel import MOMENTS, PLACES, Axis, Load, Reduce, Role, Stmt, share_of, walk
from interfuse.lower.target import HELD_TILE, HELD_TOTAL, LONG_ROW, LONG_STEP, SCANNED, STEP, UNIT_WARPS, Target
from interfuse.lower.vectors import SECTOR_BYTES, in_vectors


@dataclass(frozen=True)
class Rows:
    """Rows walked by several axes, in the order of programs; `index` is a row's index. Where the last of them are
    neighbours in memory, so many `together` fill a piece of it.
    """

    index: Expr
    axes: tuple[Axis, ...]
    together: int = 1


PIECE = 512
"""Columns of a GPU program that adds up columns, where it need not have whole rows."""

STEP_BYTES = 1 << 14
"""What such a program reads a step: with the next step on its way, two programs a unit keep memory busy."""

WARP_COLUMNS = 256
"""Columns of halves that a warp reads at once, 16 bytes a thread."""

SHARE = 8
"""Rows of a part at least: what a part leaves is then little beside what it reads."""

WIDE_SCANS = 16
"""Bytes that scans give for each row of a column, beyond which a step has half as many rows."""

WIDEST_SCAN = 128
"""Columns that a GPU program scans at most."""

CARRIED_BYTES = 16
"""What an element of a step of `STEP` may carry from step to step: more, and a thread's registers do not hold it."""

SMALLEST = 512
"""Elements of a program that holds rows at least, where there are few of these."""

NARROWEST = 128
"""Columns of a tile at least where their number changes between calls: four bytes a thread of a few warps."""

PAIR = 2
"""Columns of a thread that scans: four bytes at least, the fewest that are fetched ahead."""


def fills(domain: Domain, target: Target) -> bool:
    """True where a GPU has all elements of a flat domain under way at once, 32 a thread, and half of it is busy so."""
    held = target.programs * UNIT_WARPS * 32 * 32
    return target.backend == "triton" and domain.rows == 1 and held // 2 < wrap(domain.cols).hi <= held


def map_axes(
    domain: Domain, target: Target, large: bool = False, sizes: Mapping[str, int] | None = None
) -> tuple[Axis, ...]:
    """Rows and columns of element-wise work, or columns alone, in tiles or `large` ones. Columns whose number changes
    between calls get a tile as wide as those of the example's `sizes`, but NARROWEST at least.
    """
    rows, cols = domain.rows, domain.cols
    if target.backend == "cpp":
        if rows == 1:
            return (Axis("col", cols, Role.GRID, target.lanes),)
        return (Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, target.lanes))
    tile = target.tile_elements * (2 if large else 1)
    if rows == 1:
        block = lanes_for(cols, tile)
        while block > SMALLEST and wrap(cols).hi <= target.programs * block // 2:
            block //= 2  # few elements are no more than one thing after the other of each thread
        return (Axis("col", cols, Role.GRID, block),)
    many, wide = wrap(rows).hi, cols
    if not isinstance(cols, int) and sizes is not None and all(s.name in sizes for s in symbols(cols)):
        many, wide = at_sizes(rows, sizes), max(at_sizes(cols, sizes), NARROWEST)
    block = lanes_for(wide, tile)
    if 4 * block <= tile and many * block >= 4 * target.programs * tile:
        tile *= 2  # many short rows: the larger the tile, the more of what rows share is read once
    together = lanes_for(rows, tile // block)
    return (Axis("row", rows, Role.GRID, together), Axis("col", cols, Role.GRID, block))


def row_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    """Rows, and the columns that are reduced: held at once where a GPU program can."""
    cols = domain.cols
    if target.backend == "cpp":
        return (Axis("row", domain.rows, Role.GRID), Axis("col", cols, Role.SERIAL, target.lanes))
    if domain.longest > target.row_elements:
        return (Axis("row", domain.rows, Role.GRID), Axis("col", cols, Role.SERIAL, target.tile_elements))
    block = power(domain.longest)
    together = _spread(domain.rows, lanes_for(domain.rows, target.tile_elements // 2 // block), block, target)
    return (Axis("row", domain.rows, Role.GRID, together), Axis("col", cols, Role.TILE, block))


def column_axes(domain: Domain, target: Target, scanned: int, carried: int | None, narrow: bool) -> tuple[Axis, ...]:
    """Columns side by side, and the rows that are reduced or scanned: held at once where they are few. Scans give
    `scanned` bytes for each row of a column, 0 where there are none; `narrow` says that nothing is written but what
    columns reduce to, `carried` how many reductions that are, of 32 bits at most; None for others.
    """
    light = carried == 1
    outer, cols = (Axis("outer", domain.rows, Role.GRID),), domain.longest
    if target.backend == "cpp":
        col = Axis("col", domain.inner, Role.GRID, beside(domain, target))
        return (*outer, col, Axis("row", domain.cols, Role.SERIAL))
    if scanned:
        return (*outer, *_scanned_axes(domain, target, scanned))
    # The more columns side by side, the longer the pieces that are read: as many as leave two programs a unit.
    few = cols <= target.tile_elements // target.lanes
    # What is read once is streamed: several steps are under way while one is worked on. So few columns that units have
    # few programs are held: all rows are under way then.
    sparse = light and wrap(domain.kept).hi < 4 * target.programs * target.lanes
    held = cols <= min(HELD_TILE // target.lanes, target.row_elements) and (few or sparse or not narrow)
    tile = 2 * target.tile_elements if light else target.tile_elements
    most = (tile if few else HELD_TILE) // power(cols) if held else 4 * target.lanes
    lanes = lanes_for(domain.inner, most)
    while lanes > target.lanes and wrap(domain.kept).hi < 2 * target.programs * lanes:
        lanes //= 2
    # What several carry is joined between warps at the end: the fewer these are, the sooner.
    deep = narrow and not light and wrap(domain.kept).hi >= 2 * target.programs * lanes
    step = target.tile_elements // (2 * lanes if deep else lanes)
    # A program that has a unit to itself waits for fewer steps the longer they are.
    step *= 2 if carried == 2 and wrap(domain.kept).hi <= target.programs * lanes else 1
    row = Axis("row", domain.cols, Role.TILE if held else Role.SERIAL, power(cols) if held else step)
    return (*outer, Axis("col", domain.inner, Role.GRID, lanes), row)


def mixed_parts(domain: Domain, read: int, target: Target) -> int:
    """Into how many parts the rows of a domain are cut: two for each unit of a device, one where a step is long, more
    where programs are small, fewer where rows are few or columns have programs of their own. `read` is how many bytes
    an element takes.
    """
    rows = domain.rows
    if target.backend == "cpp":
        most = 2 * target.enough
        # Neighbours: all parts have some.
        return most if not isinstance(rows, int) else -(-rows // max(SHARE, -(-rows // most)))
    wide, step = _mixed_step(domain, read)
    small = _small(domain)
    programs = target.enough * (2 * small if step * wide * read <= STEP_BYTES // small else 1)
    most = max(1, programs // -(-domain.longest // wide))
    return most if not isinstance(rows, int) else min(most, -(-rows // max(SHARE, step)))


def mixed_axes(domain: Domain, parts: int, read: int, target: Target) -> tuple[Axis, ...]:
    """Parts of the rows, the rows of a part one after the other, and columns as in a row that is held; pieces of the
    columns where nothing is reduced along rows.
    """
    if target.backend == "cpp":
        row = Axis("row", domain.rows, Role.SERIAL, 1, "chunk")
        return (Axis("chunk", parts, Role.GRID), row, Axis("col", domain.cols, Role.SERIAL, target.lanes))
    wide, step = _mixed_step(domain, read)
    # A CPU reads ahead of neighbours; on a GPU, blocks in turn end together, and no part ends within one.
    row = Axis("row", domain.rows, Role.SERIAL, lanes_for(share_of(domain.rows, parts), step), "chunk", True)
    col = Axis("col", domain.cols, Role.TILE if domain.reduces else Role.GRID, wide)
    return (Axis("chunk", parts, Role.GRID), row, col)


def _scanned_axes(domain: Domain, target: Target, scanned: int) -> tuple[Axis, ...]:
    """Two columns a thread, which has all rows of a step: what lies in one thread is scanned without waiting. The more
    columns side by side, the longer the pieces that are moved: `WIDEST_SCAN` of them, in shorter steps, where nearly
    two programs a unit are left.
    """
    kept, rows = wrap(domain.kept).hi, domain.longest
    # What several scans of wide types carry takes registers beside the step.
    step = max(1, SCANNED // power(scanned) // (2 if scanned > WIDE_SCANS else 1))
    most = 2 * target.lanes if kept >= 4 * target.programs * target.lanes else target.lanes
    if rows <= min(step, target.row_elements):
        row = Axis("row", domain.cols, Role.TILE, power(rows))
    elif scanned <= F32.bytes and 8 * kept >= 15 * target.programs * WIDEST_SCAN:
        most, row = WIDEST_SCAN, Axis("row", domain.cols, Role.SERIAL, step // 2)
    else:
        row = Axis("row", domain.cols, Role.SERIAL, step)
    return Axis("col", domain.inner, Role.GRID, lanes_for(domain.inner, most), each=PAIR), row


def _mixed_step(domain: Domain, read: int) -> tuple[int, int]:
    """Columns of a GPU program, and the rows of one step."""
    wide = power(domain.longest) if domain.reduces else min(power(domain.longest), PIECE)
    return wide, max(1, power(STEP_BYTES // _small(domain) // (wide * read) + 1) // 2)


def _small(domain: Domain) -> int:
    """How many programs share the step of one, where a row fills few warps: these need not wait for others then."""
    filled = domain.longest // WARP_COLUMNS
    return 4 // min(4, power(filled + 1) // 2) if domain.reduces and filled else 1


def turned_axes(domain: Domain, target: Target, rows: Rows | None = None) -> tuple[Axis, ...]:
    """Tiles of several rows, so that transposed pieces are as long as leaves a program for every unit. Where several
    axes make up the index of a `row`, as many as fill a piece of memory, held where they fit on chip.
    """
    if rows is not None:
        together = lanes_for(rows.axes[-1].extent, rows.together)
        if together * power(domain.longest) <= target.row_elements:
            held = Axis("col", domain.cols, Role.TILE, power(domain.longest))
            return (Axis("row", domain.rows, Role.GRID, together), held)
    most = 2 * target.lanes
    while most > target.lanes // 2 and wrap(domain.rows).hi < target.programs * most:
        most //= 2
    together = lanes_for(domain.rows if rows is None else rows.axes[-1].extent, most)
    block = min(power(domain.longest), 4 * target.tile_elements // together)
    return (Axis("row", domain.rows, Role.GRID, together), Axis("col", domain.cols, Role.SERIAL, block))


def turned_map_axes(domain: Domain, target: Target, cached: bool = False) -> tuple[Axis, ...]:
    """Square tiles, so that what lies along the rows and what lies along the columns is both moved in long pieces. Of
    what a cache has, fewer rows and more columns.
    """
    tall, wide = (target.side // 2, 2 * target.side) if cached else (target.side, target.side)
    axes = (("row", domain.rows, tall), ("col", domain.cols, wide))
    return tuple(Axis(name, extent, Role.GRID, lanes_for(extent, most)) for name, extent, most in axes)


def step_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    """A program a row, `STEP` elements of it at once."""
    block = min(power(domain.longest), STEP * target.tile_elements)
    return (Axis("row", domain.rows, Role.GRID), Axis("col", domain.cols, Role.SERIAL, block))


def stepped(col: Axis, body: tuple[Stmt, ...], once: bool) -> Axis:
    """The columns of `step_axes` in longer or shorter steps. Where rows are read `once` and begin anywhere, half a step
    leaves room for more programs; where they are read again, and are so long that a cache holds one of each unit
    meanwhile, a program takes all threads. Where several results are carried along, half a step has room for them.
    """
    odd = in_vectors(col, body).vector > 1
    if (odd and once) or crowded(body):
        return replace(col, block=col.block // 2)
    loads = {(s.index, s.out.dtype) for s in walk(body) if isinstance(s, Load) and col.symbol in symbols(s.index)}
    long = isinstance(col.extent, int) and col.extent > LONG_ROW
    light = len(loads) == 1 and all(dtype is F16 for _, dtype in loads)  # others spill registers
    return replace(col, block=LONG_STEP) if long and not odd and not once and light else col


def long_steps(axes: tuple[Axis, ...], nodes: Iterable[Node], read: int, target: Target) -> tuple[Axis, ...]:
    """The axes of rows that are read twice, `read` bytes an element, for their moments and no other reduction: where
    each unit has one row, a program takes all threads and the longest steps that fill.
    """
    *rows, col = axes
    few = all(a.block == 1 for a in rows) and math.prod(wrap(a.extent).hi for a in rows) <= target.programs
    full = isinstance(col.extent, int) and col.extent > LONG_ROW and col.extent % LONG_STEP == 0
    reduced = {n.op for n in nodes if n.op in REDUCES or n.op in SCANS}
    moments = "variance" in reduced and reduced <= MOMENTS | {"variance"}
    if col.role is Role.SERIAL and few and full and read <= F16.bytes and moments:
        return *rows, replace(col, block=LONG_STEP)
    return axes


def crowded(body: Iterable[Stmt]) -> bool:
    """True where more is carried along than a thread has room for beside 32 elements."""
    results = [s for s in walk(body) if isinstance(s, Reduce)]
    carried = sum(s.arg.dtype.bytes + (s.out.dtype.bytes if s.op in PLACES else 0) for s in results)
    return carried > CARRIED_BYTES


def total_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    """A few programs, one a row, that take as much of it at once as their threads can have on the way."""
    block = min(power(domain.longest), HELD_TOTAL)
    role = Role.TILE if domain.longest <= block else Role.SERIAL
    return (Axis("row", domain.rows, Role.GRID), Axis("col", domain.cols, role, block))


def shared_rows(indices: Iterable[Expr], row: Expr, rows: Dim) -> Rows | None:
    """The rows by several axes, where rows far apart read one row of something: those rows follow each other
    in the order of programs, so that what they share is still in a cache. None where no access, the widest first, asks
    for it.
    """
    for index in indices:
        for outer, inner, turn in _divided(index, row, rows):
            place = _place(outer, turn, inner)
            if turn.symbol not in symbols(substitute(index, {row: place})):
                return Rows(place, tuple(a for a in (outer, inner, turn) if a.extent != 1))
    return None


def neighbouring_rows(indices: Iterable[tuple[Expr, int]], row: Expr, rows: Dim) -> Rows | None:
    """The rows by several axes, the last of them along rows far apart that lie side by side in one of the accesses,
    each with the bytes of an element: a program can then take these together. None where no access asks for it.
    """
    for index, element in indices:
        for outer, inner, turn in _divided(index, row, rows):
            place = _place(outer, turn, inner)
            if coefficient(substitute(index, {row: place}), turn.symbol) == 1:
                # As everywhere, the axis of which a program takes several is the row.
                inner, beside = replace(inner, name="turn"), replace(turn, name="row")
                axes = tuple(a for a in (outer, inner, beside) if a.extent != 1)
                return Rows(_place(outer, beside, inner), axes, SECTOR_BYTES // element)
    return None


def _divided(index: Expr, row: Expr, rows: Dim) -> list[tuple[Axis, Axis, Axis]]:
    """The ways in which an index divides rows into axes: what is `turn` apart has all of `row` between it."""
    if not isinstance(rows, int):
        return []
    cuts = sorted({d for d in divisors(index, row) if rows % d == 0} | {rows})
    return [
        (
            Axis("outer", rows // far, Role.GRID),
            Axis("row", near, Role.GRID),
            Axis("turn", far // near, Role.GRID),
        )
        for near, far in itertools.pairwise(cuts)
        if near > 1 and far % near == 0
    ]


def _place(outer: Axis, turn: Axis, inner: Axis) -> Expr:
    """The index of a row that is divided so."""
    return (outer.symbol * wrap(turn.extent) + turn.symbol) * inner.extent + inner.symbol


def over_rows(axes: tuple[Axis, ...], rows: Rows | None) -> tuple[Axis, ...]:
    """The axes with those of `rows` instead of the first one, which has one index for all rows."""
    if rows is None:
        return axes
    block = axes[0].block
    own = (replace(a, block=lanes_for(a.extent, block)) if a.name == axes[0].name else a for a in rows.axes)
    return (*own, *axes[1:])


def divisors(e: Expr, row: Expr) -> set[int]:
    """The numbers by which the axis `row` alone is divided in an index."""
    found: set[int] = set().union(*(divisors(a, row) for a in e.args))
    if e.op in ("floordiv", "mod") and e.args[1].op == "const":
        whole, by = e.args[0], e.args[1].value
        if whole is row:
            found.add(by)
        elif whole.op == "floordiv" and whole.args[0] is row and whole.args[1].op == "const":
            found.add(whole.args[1].value * by)
    return found


def beside(domain: Domain, target: Target) -> int:
    """Columns of one CPU program: the more, the longer the pieces that memory is read in, but enough programs for all
    cores, and no more columns than what they carry fits in a cache.
    """
    rows, inner = domain.rows, domain.inner
    if not isinstance(rows, int) or not isinstance(inner, int):
        return target.lanes * (4 if wrap(domain.kept).hi >= 4 * target.programs * target.lanes else 1)
    pieces = max(1, -(-target.programs // rows), -(-inner // target.columns))
    return -(-inner // (pieces * target.lanes)) * target.lanes


def _spread(rows: Dim, together: int, block: int, target: Target) -> int:
    """Rows of a program, each of `block` lanes: fewer, but SMALLEST elements at least, where there are few for all
    units. The less code a program has, the sooner it has fetched that.
    """
    while together * block > SMALLEST and together > 1 and wrap(rows).hi < target.programs * together:
        together //= 2
    return together


def lanes_for(extent: Dim, most: int) -> int:
    """Lanes for an axis: enough for `extent`, at most `most`, which a size that changes between calls gets."""
    return max(1, min(power(extent), most) if isinstance(extent, int) else most)


def power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
