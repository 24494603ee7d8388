"""Rows that begin at any element, walked or held in whole vectors of memory, and maps that end at any. In: an axis and
what runs along it. Out: the axis, with where its rows begin where taking it so pays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from interfuse.ir.index import const, mod, symbols, wrap
from interfuse.lower.kernel import (
    MOMENTS,
    Axis,
    Load,
    Reduce,
    Role,
    Scan,
    Stmt,
    Store,
    bounds_of,
    step_along,
    varies_over,
    walk,
)
from interfuse.lower.target import LIGHT_ROW

VECTOR_BYTES = 16
"""What a thread reads or writes at once."""

SECTOR_BYTES = 32
"""What memory hands out at once: what several programs write in smaller pieces crosses it for each."""

EVEN_ROWS = 4
"""Rows whose width is no multiple of it begin in the middle of vectors of any type."""

NARROW = 2
"""Bytes of an element up to which a warp that asks for one a thread asks for less than memory gives it at once."""

FILLED = 16
"""A held row is taken in vectors where less than such a part of its tile lies past its end."""

STEPS = 3
"""Steps of a loop from which it is worth writing the first and the last by themselves."""


def in_vectors(axis: Axis, body: Iterable[Stmt]) -> Axis:
    """`axis` in whole vectors, where rows do not begin with one and all that is read and written along it lies alike.

    Moments count how many elements each lane has seen, and scans what comes before: both need lanes that begin with
    the row.
    """
    along = _along(axis, body)
    if axis.role is not Role.SERIAL or axis.among or not isinstance(axis.extent, int) or not along:
        return axis
    if any(isinstance(s, Scan) or (isinstance(s, Reduce) and s.op in MOMENTS) for s in walk(body)):
        return axis
    if any(step_along(s, axis.symbol) != 1 or bounds_of(s) for s in along):
        return axis
    narrowest = min(map(_bytes, along))
    vector = VECTOR_BYTES // narrowest
    origins = [s.index - axis.symbol for s in along]
    alike = all(mod(o - origins[0], vector) is const(0) for o in origins)
    last = axis.extent % axis.block + vector - 1
    if (
        narrowest > NARROW
        or not alike
        or mod(origins[0], vector) is const(0)
        or last > axis.block
        or axis.extent < STEPS * axis.block
    ):
        return axis
    return replace(axis, vector=vector, origin=origins[0])


def held_in_vectors(axis: Axis, body: Iterable[Stmt]) -> Axis:
    """`axis`, a row that a program holds, in whole vectors, where the rows that are read and written lie alike and the
    tile has room for what of the first and the last vector belongs to others. A warp that asks for them element by
    element crosses a sector more each time, and scans what its lanes have one after the other.

    What rows share lies as it does: it is read element by element. Long rows that nearly fill their tile, and scans:
    elsewhere the masks cost more than they save.
    """
    along = _along(axis, body)
    rows = [s for s in along if len(varies_over(s)) > 1]
    if axis.role is not Role.TILE or not isinstance(axis.extent, int) or not rows:
        return axis
    if any(step_along(s, axis.symbol) != 1 or bounds_of(s) or (isinstance(s, Store) and s not in rows) for s in along):
        return axis
    sizes = [*map(_bytes, rows)]
    scans = any(isinstance(s, Scan) for s in walk(body))
    spare = axis.block - axis.extent
    vector = min(VECTOR_BYTES // max(sizes), 1 << (spare + 1).bit_length() - 1)
    filled = spare < axis.block // FILLED and axis.block >= LIGHT_ROW
    origins = [s.index - axis.symbol for s in rows]
    alike = all(mod(o - origins[0], vector) is const(0) for o in origins)
    odd = mod(origins[0], vector) is not const(0)
    if min(sizes) != NARROW or vector < 2 or not alike or not odd or not (filled or scans):
        return axis
    return replace(axis, vector=vector, origin=origins[0])


def map_in_vectors(axis: Axis, body: Iterable[Stmt]) -> Axis:
    """`axis`, along which a map's elements all lie, in whole vectors where it may end in the middle of one: a mask that
    did not begin and end with them would have every element asked for by itself.

    A short one has too few elements for that to matter, wide elements fill what memory gives at once by themselves.
    """
    along = _along(axis, body)
    if axis.role is not Role.GRID or wrap(axis.extent).hi < STEPS * axis.block:
        return axis
    sizes = [*map(_bytes, along)]
    vector = VECTOR_BYTES // max(sizes, default=VECTOR_BYTES)
    stored = [s for s in along if isinstance(s, Store)]
    alike = all(mod(s.index - axis.symbol, vector) is const(0) for s in stored)
    told = any(bounds_of(s) or step_along(s, axis.symbol) is None for s in along)
    even = mod(wrap(axis.extent), vector) is const(0)
    if vector < 2 or even or min(sizes) > NARROW or not stored or not alike or told:
        return axis
    return replace(axis, vector=vector)


def _along(axis: Axis, body: Iterable[Stmt]) -> list[Load | Store]:
    """What is read and written along the axis."""
    return [s for s in walk(body) if isinstance(s, (Load, Store)) and _varies(s, axis)]


def _bytes(s: Load | Store) -> int:
    """Bytes of an element that is read or written."""
    return (s.out if isinstance(s, Load) else s.arg).dtype.bytes


def _varies(s: Load | Store, axis: Axis) -> bool:
    """True where the access reaches another element at another index of the axis."""
    told = isinstance(s, Load) and any(axis.name in p.value.axes for p in s.picks)
    return told or axis.symbol in symbols(s.index) or (isinstance(s, Store) and axis.name in s.arg.axes)
