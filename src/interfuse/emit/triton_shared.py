"""Loads that neighbours share. In: a load, the lane axes. Out: the axis of whose indices eight at a time read the same.

A weight of a channel whose image lies in the columns of a row is one number for many neighbours. Triton would read it
for each of them, which takes eight times as many instructions as all other reading; so it is read once for as many
neighbours as a thread has side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

from interfuse.emit.triton_lanes import Lane
from interfuse.ir.index import Expr, symbols
from interfuse.lower.kernel import Axis, Kernel, Load, Role, varies_over

NEIGHBOURS = 8
"""The most elements that a thread has side by side."""

LANES = 32 * NEIGHBOURS
"""Lanes of an axis from which on each thread may have as many."""


def piece_name(axis: Axis) -> str:
    """What the first of every `NEIGHBOURS` indices along an axis is called."""
    return f"{axis.name}_piece"


def piece_line(lane: Lane) -> str:
    """The line that numbers these indices."""
    numbers = lane.numbers().replace(f"(0, {lane.block})", f"(0, {lane.block} // {NEIGHBOURS})")
    return f"{piece_name(lane.axis)} = {numbers} * {NEIGHBOURS}"


def shared_along(s: Load, lanes: Mapping[str, Lane]) -> Lane | None:
    """The tile axis along which a load reaches one element for all of every `NEIGHBOURS` indices; None for none."""
    names = varies_over(s)
    found = [x for name, x in lanes.items() if name in names and x.axis.role is Role.TILE]
    if s.picks or s.within or len(found) != 1:
        return None
    (lane,) = found
    last = lane.dim == lane.rank - 1 and lane.axis.block >= LANES
    return lane if last and _alike(s.index, lane.axis.symbol) else None


def shared_by_rows(kernel: Kernel, s: Load, lanes: Mapping[str, Lane]) -> Lane | None:
    """The columns of a tile that is read ahead of what it awaits, for a load of what its rows share; None for another.

    Triton lays out columns alone as if nothing else were read, and would turn the whole tile to meet them once more.
    """
    names = varies_over(s) & lanes.keys()
    tile = len(lanes) == 2 and all(x.axis.role is Role.GRID for x in lanes.values())
    if not tile or not kernel.awaits or s.picks or s.within or len(names) != 1:
        return None
    lane = lanes[next(iter(names))]
    return lane if lane.dim == 1 and not lane.passes_end else None


def is_alike(e: Expr, axis: Axis) -> bool:
    """True where an index is one for all of each step of a serial axis whose steps are full."""
    plain = axis.role is Role.SERIAL and not axis.among and axis.vector == 1
    full = isinstance(axis.extent, int) and axis.extent % axis.block == 0
    return plain and full and axis.symbol in symbols(e) and _alike(e, axis.symbol, axis.block)


def _alike(e: Expr, symbol: Expr, many: int = NEIGHBOURS) -> bool:
    """True where the symbol stands in e only divided by multiples of so `many`."""
    if e is symbol:
        return False
    if e.op == "floordiv" and e.args[0] is symbol:
        by = e.args[1]
        return by.op == "const" and by.value % many == 0
    return all(_alike(a, symbol, many) for a in e.args if symbol in symbols(a))
