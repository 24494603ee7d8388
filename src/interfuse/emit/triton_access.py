"""What else a Triton kernel says of its accesses. In: a Kernel. Out: what caches should keep, and which places to hide.

A long row that is read twice should stay in the second-level cache in between, and what is written, or read for the
last time, should not push it out. What a scan down columns writes passes by where no cache holds it: as soon as memory
takes it there is room for the steps that are fetched.

Triton gives each thread as many neighbours as one of its accesses can take at once. Where rows of an odd width begin
anywhere but what they share, such as weights, begins with a vector, every access of the rows would pay for it: each
thread would ask for its neighbours one by one, and a warp for pieces of many lines. So the number of the program along
an axis that a launch does not have, 0, is added to the places that begin with a vector.

Of the results of parts that a program joins for itself it asks for no more than it uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from interfuse.ir.index import Expr, const, mod, product, symbols, wrap
from interfuse.lower.kernel import (
    PART,
    Axis,
    Kernel,
    Let,
    Load,
    Loop,
    Role,
    Scan,
    Store,
    Value,
    operands,
    step_along,
    walk,
)
from interfuse.lower.vectors import EVEN_ROWS, VECTOR_BYTES

CACHED = 1 << 26
"""Bytes that no second-level cache holds."""


@dataclass(frozen=True)
class ReadAgain:
    """The serial loops of a kernel over rows in order, each with what it reads along the rows; `passing` is written
    past the caches.
    """

    loops: tuple[tuple[Loop, frozenset[tuple[str, Expr]]], ...]
    passing: frozenset[str] = frozenset()

    def policy(self, s: Load | Store, loop: Loop | None) -> str:
        """What an access in a loop tells the caches, as arguments of the call; "" for nothing."""
        if isinstance(s, Store) and s.param in self.passing:
            return ', cache_modifier=".cs"'
        at = next((k for k, (found, _) in enumerate(self.loops) if found is loop), None)
        if at is None:
            return ""
        reads = [r for _, r in self.loops]
        if isinstance(s, Store):
            again = any(one & other for k, one in enumerate(reads) for other in reads[:k])
            return ', cache_modifier=".cs"' if again else ""
        key = s.param, s.index
        if any(key in r for r in reads[at + 1 :]):
            return ', eviction_policy="evict_last"'
        return ', eviction_policy="evict_first"' if any(key in r for r in reads[:at]) else ""


def read_again(kernel: Kernel) -> ReadAgain:
    """What of a kernel's rows is read in several loops."""
    serial = {a.name: a for a in kernel.axes if a.role is Role.SERIAL}
    if kernel.family == "column, streamed" and any(isinstance(s, Scan) for s in walk(kernel.body)):
        written = [p for p in kernel.params if p.mode == "out" and all(isinstance(d, int) for d in p.shape)]
        large = [p.name for p in written if p.dtype.bytes * wrap(product(p.shape)).hi > CACHED]
        return ReadAgain((), frozenset(large))
    if kernel.family != "row, streamed":
        return ReadAgain(())
    loops = [s for s in kernel.body if isinstance(s, Loop) and s.axis in serial]
    return ReadAgain(tuple((loop, _along(loop, serial[loop.axis])) for loop in loops))


def _along(loop: Loop, axis: Axis) -> frozenset[tuple[str, Expr]]:
    loads = [s for s in walk(loop.body) if isinstance(s, Load)]
    return frozenset((s.param, s.index) for s in loads if axis.symbol in symbols(s.index))


def from_row(kernel: Kernel) -> bool:
    """True where a program has one row that is read element by element: where that begins is then added to a pointer
    first. Triton would work out the place of each element from the sum of both, in two registers.
    """
    lanes = [a for a in kernel.axes if a.role is not Role.GRID or a.block > 1]
    if [a.role for a in lanes] != [Role.TILE]:
        return False
    width = lanes[0].extent
    return isinstance(width, int) and width % EVEN_ROWS != 0


def hides(kernel: Kernel) -> frozenset[Expr]:
    """The places, along rows of an odd width that are held, that begin with a vector where others do not. None where
    all begin anywhere, since lanes count from a vector of the rows.
    """
    axis = kernel.axes[-1]
    if axis.role is not Role.TILE or not isinstance(axis.extent, int) or axis.vector > 1:
        return frozenset()
    begins: dict[bool, set[Expr]] = {True: set(), False: set()}
    for s in walk(kernel.body):
        if isinstance(s, (Load, Store)) and step_along(s, axis.symbol) == 1:
            vector = VECTOR_BYTES // kernel.param(s.param).dtype.bytes
            if axis.extent % vector:
                begins[mod(s.index - axis.symbol, vector) is const(0)].add(s.index)
    return frozenset(begins[True]) if begins[False] else frozenset()


def wanted(kernel: Kernel) -> dict[Load, Value]:
    """The loads of parts of which nothing is used but where a value known before is true, with that value, which is the
    same for neighbours in memory.
    """
    statements, found = walk(kernel.body), dict[Load, Value]()
    for k, s in enumerate(statements):
        if not isinstance(s, Load) or PART not in s.out.axes:
            continue
        users = [u for u in dict.fromkeys(statements) if s.out in operands(u)]
        before = {m.out for m in statements[:k] if isinstance(m, (Let, Load))}
        for u in users if len(users) == 1 else []:
            if isinstance(u, Let) and u.op == "where" and u.args.index(s.out) == 1 and u.args[0] in before:
                axes = map(kernel.axis, u.args[0].axes)
                if all(a.block == 1 or step_along(s, a.symbol) not in (0, 1, -1, None) for a in axes):
                    found[s] = u.args[0]
    return found
