"""Rows that begin at any element, walked in whole vectors of memory. In: a serial axis and what runs along it. Out: the
axis, with where its rows begin where walking it so pays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from interfuse.ir.index import const, mod, symbols
from interfuse.lower.kernel import MOMENTS, Axis, Load, Reduce, Role, Scan, Stmt, Store, bounds_of, step_along, walk

VECTOR_BYTES = 16
"""What a thread reads or writes at once."""

SECTOR_BYTES = 32
"""What memory hands out at once: what several programs write in smaller pieces crosses it for each."""

EVEN_ROWS = 4
"""Rows whose width is no multiple of it begin in the middle of vectors of any type."""

NARROW = 2
"""Bytes of an element up to which a warp that asks for one a thread asks for less than memory gives it at once."""

STEPS = 3
"""Steps of a loop from which it is worth writing the first and the last by themselves."""


def in_vectors(axis: Axis, body: Iterable[Stmt]) -> Axis:
    """`axis` in whole vectors, where rows do not begin with one and all that is read and written along it lies alike.

    Moments count how many elements each lane has seen, and scans what comes before: both need lanes that begin with
    the row.
    """
    along = [s for s in walk(body) if isinstance(s, (Load, Store)) and _varies(s, axis)]
    if axis.role is not Role.SERIAL or axis.among or not isinstance(axis.extent, int) or not along:
        return axis
    if any(isinstance(s, Scan) or (isinstance(s, Reduce) and s.op in MOMENTS) for s in walk(body)):
        return axis
    if any(step_along(s, axis.symbol) != 1 or bounds_of(s) for s in along):
        return axis
    narrowest = min((s.out if isinstance(s, Load) else s.arg).dtype.bytes for s in along)
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


def _varies(s: Load | Store, axis: Axis) -> bool:
    """True where the access reaches another element at another index of the axis."""
    told = isinstance(s, Load) and any(axis.name in p.value.axes for p in s.picks)
    return told or axis.symbol in symbols(s.index) or (isinstance(s, Store) and axis.name in s.arg.axes)
