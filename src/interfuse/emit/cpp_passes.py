"""Kernels that go over each row twice. In: a Kernel. Out: its passes, where a row is best read while one is written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from interfuse.emit.cpp_facts import FETCH_FROM, STEPS_BYTES, Fetch, buffer_bytes, follows
from interfuse.emit.cpp_weights import Weighed, weighed
from interfuse.ir.index import symbols
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Reduce, Role, Stmt, Store, bounds_of, walk


@dataclass(frozen=True)
class TwoPasses:
    """A `kernel` that goes over each row twice: `read` reduces it, `rest` follows from what that gave, `write` writes
    it. `before` is the same for all rows; `fetch` is what to ask for while a row is read. Where the first pass weighs
    the row, `weights` says how.
    """

    kernel: Kernel
    before: tuple[Stmt, ...]
    read: Loop
    rest: tuple[Stmt, ...]
    write: Loop
    fetch: Fetch
    weights: Weighed | None = None


def two_passes(kernel: Kernel, lane_axis: Axis | None) -> TwoPasses | None:
    """The passes of a kernel whose next row is best read while a row is written; None for any other.

    It reads rows that follow each other in memory, more than the nearer caches hold.
    What one pass keeps for the other lies at the same column, so that the next row may take its place as the row goes;
    a kernel that keeps nothing finds its row in the first-level cache, unless the next one comes there meanwhile. Rows
    that are weighed are always read so: that they take a pass less helps in caches, too.
    """
    if lane_axis is None or lane_axis.role is not Role.SERIAL or kernel.packed:
        return None
    weights = weighed(kernel, lane_axis)
    kernel = kernel if weights is None else weights.kernel
    grid, body, plain = [a for a in kernel.axes if a.role is Role.GRID], kernel.body, (Load, Let, Store)
    before = tuple(itertools.takewhile(lambda s: isinstance(s, (Load, Let)) and not s.out.axes, body))
    loops, rest = [s for s in body if isinstance(s, Loop)], [s for s in body[len(before) :] if not isinstance(s, Loop)]
    if len(grid) != 1 or len(loops) != 2 or body[len(before)] is not loops[0]:
        return None
    read, write = loops
    reduces = any(isinstance(s, Reduce) for s in read.body)
    if not all(isinstance(s, (*plain, Reduce)) for s in read.body) or reduces == (weights is not None):
        return None
    if not all(isinstance(s, plain) for s in (*rest, *write.body)) or read.backwards or write.backwards:
        return None
    if any(a.among for a in kernel.axes) or any(loop.axis != lane_axis.name for loop in (read, write)):
        return None
    accesses = [s for s in walk(body) if isinstance(s, (Load, Store))]
    waiting = [s for s in accesses if kernel.param(s.param).mode == "scratch"]
    if not waiting or any(s.index != lane_axis.symbol for s in waiting):
        return None
    if any(lane_axis.symbol not in symbols(s.index) for s in write.body if isinstance(s, Load)):
        return None
    if any(bounds_of(s) for s in walk(body)) or kernel.picks:
        return None
    loads = [s for s in read.body if isinstance(s, Load) and follows(s, grid[0], lane_axis, True)]
    found = tuple({(s.param, s.index): s for s in loads if kernel.param(s.param).mode == "in"}.values())
    large = buffer_bytes(kernel) >= FETCH_FROM
    if weights is not None:
        fetch = Fetch(read, found if large else (), *STEPS_BYTES)
        return TwoPasses(kernel, before, read, tuple(rest), write, fetch, weights)
    if not found or not large:
        return None
    return TwoPasses(kernel, before, read, tuple(rest), write, Fetch(read, found, *STEPS_BYTES))
