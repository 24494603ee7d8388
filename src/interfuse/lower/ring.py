"""Rows that go by way of a ring of shared memory. In: the trace of rows that are reduced and written across. Out: the
axes and the statements of their kernel, and how many chunks the ring has.

Rows that are reduced and then written across are walked twice, and a program that reads them twice reads most of them
from memory twice: a cache has lost them by then. Here a program fetches some rows in chunks of columns into a ring in
shared memory, and all walks read that ring. It is larger than a block of rows, so that chunks of the next block are on
their way while this one is reduced and written. A program takes one block after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Expr, linear_terms, symbols, wrap
from interfuse.lower.accesses import accesses
from interfuse.lower.axes import divisors
from interfuse.lower.domain import Domain
from interfuse.lower.kernel import (
    MOMENTS,
    PLACES,
    Axis,
    Load,
    Loop,
    Reduce,
    Role,
    Scan,
    Stmt,
    Store,
    first_step,
    step_along,
    varies_over,
    walk,
)
from interfuse.lower.order import position
from interfuse.lower.schedule import Schedule
from interfuse.lower.target import Target
from interfuse.lower.traced import Trace
from interfuse.lower.tree import statements
from interfuse.lower.vectors import SECTOR_BYTES, VECTOR_BYTES

FAMILY, WARPS = "row, in a ring", 8
"""The family, and the warps of a program that write; others reduce and fetch."""

STEP_BYTES, LEAST_STEP = 1 << 14, 1 << 13
"""Bytes of a step of columns, and of the shortest one."""

STEPS = 2
"""Steps of a chunk at most: what threads wait for, fetch and give back at once."""

WORDS_BYTES = 3 << 10
"""Shared memory beside the ring: barriers, and what is given of each row."""

LONGEST_PIECE, OF_MOMENTS = 128, 64
"""Bytes that are written side by side at most, and where threads reduce to moments, which take the registers of twice
as many rows; a sector of memory at least.
"""

BLOCKS = 1.5
"""Blocks of rows that the ring holds at least: chunks of the next one are under way behind the one that is written."""

TURNS = 2
"""Blocks that a program takes at least: with fewer nothing is under way meanwhile."""

BYTES = (2, 4)
"""Bytes of an element that goes by way of the ring, and of what is given of a row."""


def fetched(statements: Iterable[Stmt]) -> tuple[Load, ...]:
    """What goes by way of the ring: a load of each place of rows and columns."""
    wide = [s for s in statements if isinstance(s, Load) and {"row", "col"} <= varies_over(s)]
    return tuple({(s.param, s.index): s for s in reversed(wide)}.values())[::-1]


def in_a_ring(
    trace: Trace, domain: Domain, target: Target, schedule: Schedule
) -> tuple[tuple[Axis, Axis], tuple[Stmt, ...], int]:
    """The axes of rows in a ring, their statements, and the chunks of the ring. UnsupportedError where rows cannot go
    that way, or need not.
    """
    axes, chunks = ring_axes(trace, domain, target)
    asked = schedule.placed(axes, target.backend, target.lanes), schedule.warps or WARPS, schedule.stages or 1
    if asked != (axes, WARPS, 1) or schedule.streamed:
        raise UnsupportedError(f"the schedule {schedule}: a ring has what fits it")
    return axes, in_order(statements(trace, axes[-1], keep=False)[0]), chunks


def ring_axes(trace: Trace, domain: Domain, target: Target) -> tuple[tuple[Axis, Axis], int]:
    """The axes and the chunks of `in_a_ring`."""
    rows, cols, row, index = domain.rows, domain.cols, position("row", domain.rows), position("col", domain.cols)
    if not isinstance(rows, int) or not isinstance(cols, int) or domain.inner != 1 or not target.ring:
        raise UnsupportedError("no ring: sizes change, or the GPU has no such memory")
    if any(isinstance(m, Scan) or (isinstance(m, Reduce) and m.op in PLACES) for m in trace.made):
        raise UnsupportedError("no ring: scans, or places of elements")
    reads, places = fetched(trace.made), (row, index)
    turned = [
        s for s in trace.stores if first_step(s, row, places) == 1 and step_along(s, index) not in (0, 1, -1, None)
    ]
    read = sum(s.out.dtype.bytes for s in reads)
    if not turned or not reads or any(not _is_plain(s, index) for s in reads):
        raise UnsupportedError("no ring: rows are not whole vectors, or nothing lies across")
    written = min(s.arg.dtype.bytes for s in turned)
    every = {n for a in accesses(trace) for n in divisors(a.index, row)}
    room = target.ring - WORDS_BYTES
    moments = any(isinstance(m, Reduce) and m.op in MOMENTS for m in trace.made)
    block = (OF_MOMENTS if moments else LONGEST_PIECE) // written
    while (
        any(n % block for n in (rows, *every))
        or rows < TURNS * target.programs * block
        or (BLOCKS * block * cols * read > room)
    ):
        block //= 2
        if block * written < SECTOR_BYTES:
            raise UnsupportedError(f"no ring: rows of {cols} are too long for it, or too few, or pieces too short")
    step = min(cols & -cols, 1 << (STEP_BYTES // (block * read)).bit_length() - 1)
    if block * step * read < LEAST_STEP:
        raise UnsupportedError(f"no ring: {cols} columns are no whole steps")
    col = Axis("col", cols, Role.SERIAL, step)
    return (Axis("row", rows, Role.GRID, block), col), room // (block * step * read * steps_of(col))


def steps_of(col: Axis) -> int:
    """The steps of a chunk."""
    return math.gcd(STEPS, wrap(col.extent).hi // col.block)


def _is_plain(s: Load, col: Expr) -> bool:
    """True where neighbours along the columns lie side by side, and rows begin with whole vectors."""
    terms, vector = dict(linear_terms(s.index)), VECTOR_BYTES // s.out.dtype.bytes
    rest = {t: k for t, k in terms.items() if t is not col}
    plain = not s.picks and not s.within and s.out.dtype.bytes in BYTES
    return plain and terms.get(col) == 1 and all(k % vector == 0 and col not in symbols(t) for t, k in rest.items())


def in_order(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements with every walk from the first chunk to the last. UnsupportedError where chunks cannot be given
    back in the last walk alone: something is written before, or not read by then.
    """
    loops = [s for s in body if isinstance(s, Loop)]
    if not loops or any(isinstance(s, Store) for loop in loops[:-1] for s in loop.body):
        raise UnsupportedError("no ring: rows are written before all of them is reduced")
    last = loops[-1]
    if any(isinstance(s, Reduce) for s in last.body) or _places(last.body) != _places(walk(body)):
        raise UnsupportedError("no ring: the last walk of the rows does not read all of them")
    behind = body[body.index(last) + 1 :]
    if any(not isinstance(s, Store) for s in behind):
        raise UnsupportedError("no ring: something is computed behind the last walk")
    return tuple(replace(s, backwards=False) if isinstance(s, Loop) else s for s in body)


def _places(statements: Iterable[Stmt]) -> set[tuple[str, Expr]]:
    return {(s.param, s.index) for s in fetched(statements)}
