"""What one launch asks of a device. In: a kernel, the sizes. Out: counted Features, from which seconds are predicted.

Everything is counted from the loop tree: nothing here knows a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from interfuse.cost.traffic import kernel_bytes, read_bytes
from interfuse.ir.index import Expr, at_sizes, evaluate, linear_terms, symbols
from interfuse.ir.ops import TABLE
from interfuse.lower.axes import divisors
from interfuse.lower.bounds import share
from interfuse.lower.kernel import (
    Axis,
    Kernel,
    Let,
    Load,
    Loop,
    Meet,
    Param,
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
from interfuse.lower.products import NAMES, products_of
from interfuse.lower.split_products import SPLIT
from interfuse.lower.vectors import SECTOR_BYTES, VECTOR_BYTES

WARP = 32

MEETING = 8
"""Meetings of a program's warps that a meeting of its team takes as long as, where nothing else is under way."""

AHEAD = 3
"""Stages of a loop from which on its loads are on their way early enough."""

FED, FED_ALL = 60 << 10, 120 << 10
"""Bytes that a program feeds tensor cores with in the time in which memory answers; the same where these take as many
rows as ALL at once.
"""

ALL = 64

TURNED = 1.6
"""Turns that a turn takes in which a tile is turned."""

PLACES = 8
"""Places along an axis that are looked at."""

SPECIAL: Mapping[str, tuple[str, float]] = {
    "exp": ("exp", 1.0),
    "exp2": ("exp", 0.8),
    "expm1": ("exp", 2.0),
    "expsum": ("exp", 1.5),
    "sigmoid": ("exp", 1.6),
    "log": ("exp", 2.0),
    "log1p": ("exp", 2.5),
    "tanh": ("exp", 1.5),
    "pow": ("exp", 6.0),
    "erf": ("erf", 1.0),
    "normal_cdf": ("erf", 0.8),
    "div": ("div", 1.0),
    "sqrt": ("div", 1.0),
    "rsqrt": ("div", 0.5),
    "remainder": ("div", 2.0),
    "floordiv": ("div", 2.0),
    "fmod": ("div", 3.0),
}
"""Operators that cost what the profile measured of another one, times a factor."""


SPLITTING = 41.0
"""Operations on tensor cores that splitting a number takes as long as, for every two that it has a part in: measured of
tiles of 64 x 16 to 128 x 64 on an H200.
"""


@dataclass(frozen=True)
class Features:
    """One launch.

    programs, warps   programs in all, and warps of each
    lanes             elements that a program holds at once
    moved, read       distinct bytes that cross device memory, and those of them that are read
    through           bytes in whole sectors that all programs ask the second-level cache for
    requests          instructions that warps ask for them with: the wider the vectors that alignment allows, the fewer
    again, span       bytes that a program reads a second time or oftener, over all programs, and the bytes of a program
                      that lie between one reading and the next
    slots             plain operations on an element; exp, erf, div: elements times how often one of these is needed
    meets             reductions and scans for whose result all of a program waits, and its team
    torn, reach       bytes beyond what is wanted that cross memory where sectors of which programs far apart use a part
                      each are lost in between, and the bytes that these and the programs between them ask for
    turns             turns of a program's loops for whose bytes it waits, as they are not sent for some turns ahead,
                      those in which its threads hand a tile that is turned to each other or scan it, and what it takes
                      to feed tensor cores, counted as turns
    follows           1 for a launch right behind another that may begin while that one ends
    split             operations of matrix products whose f32 tensor cores take as two numbers, past ends of tiles too,
                      and what takes as long as these
    near              those of the bytes read that the kernels right before it have read or written
    """

    programs: int
    warps: int
    lanes: int
    moved: float
    read: float
    through: float
    requests: float
    again: float
    span: float
    slots: float
    exp: float
    erf: float
    div: float
    meets: float
    torn: float = 0.0
    reach: float = 0.0
    turns: float = 0.0
    follows: float = 0.0
    split: float = 0.0
    near: float = 0.0

    def __add__(self, other: Features) -> Features:
        """Both in one launch: what is counted adds up, a program is the larger of the two."""
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        largest = ("warps", "lanes", "span", "reach", "meets", "turns", "follows")
        return Features(**{n: max(pair) if n in largest else sum(pair) for n, pair in both.items()})


def features(kernel: Kernel, sizes: Mapping[str, int], near: frozenset[str] = frozenset()) -> Features:
    """The Features of one launch of `kernel`; `sizes` gives the size symbols, `near` the parameters that kernels right
    before it have read or written.
    """
    return replace(_Counter(kernel, sizes).features(), near=float(read_bytes(kernel, sizes, near)))


class _Counter:
    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.kernel, self.sizes = kernel, sizes
        self.extents = {a.name: at_sizes(a.extent, sizes) for a in kernel.axes}
        self.steps = {a.name: -(-at_sizes(kernel.steps(a), sizes) // a.block) for a in kernel.axes}
        self.grid = [a for a in kernel.axes if a.role in (Role.GRID, Role.TEAM)]
        self.programs = max(1, math.prod(self.steps[a.name] for a in self.grid))
        self.lanes = math.prod(a.block for a in kernel.own_axes)
        self.products = products_of(kernel)
        if self.products:  # what they have in common waits in shared memory
            self.lanes = len(self.products) * math.prod(self.kernel.axis(n).block for n in NAMES[:2])

    def features(self) -> Features:
        work = {"slots": 0.0, "exp": 0.0, "erf": 0.0, "div": 0.0}
        through, requests, meets, met, torn, apart = 0.0, 0.0, 0.0, False, 0.0, 0.0
        seen: dict[tuple[str, Expr], list[float]] = {}
        for loops, s in _placed(self.kernel.body):
            serial = [name for name in loops if self.kernel.axis(name).role is Role.SERIAL]
            if isinstance(s, Load) and (s.param, s.index) in seen and self.kernel.ring:
                continue  # it is on chip
            if isinstance(s, (Load, Store)):
                param = self.kernel.param(s.param)
                asked, sectors = self._asked(s, param), self._sectors(s, param)
                through += asked * sectors
                requests += asked * min(sectors, 1.0) / (WARP * param.dtype.bytes * self._vector(s, param))
                work["slots"] += self._over(varies_over(s), True)
                if sectors > 1 and (programs := self._programs_a_sector(s, param)):
                    torn, apart = torn + asked * (sectors - 1), max(apart, programs)
                if isinstance(s, Load):
                    seen.setdefault((s.param, s.index), []).append(asked)
            elif not (self.products and serial):  # what tensor cores multiply takes them no time
                self._count(s, work)
            if isinstance(s, (Reduce, Scan)):
                # What a loop carries to its end meets once, the rest at each step of the loops around it.
                once = isinstance(s, Reduce) and s.axis in serial
                meets += 1 if once else math.prod(self.steps[name] for name in serial)
            met = met or isinstance(s, Meet)
        repeated = [asked for asked in seen.values() if len(asked) > 1]
        return Features(
            self.programs,
            self.kernel.warps,
            self.lanes,
            kernel_bytes(self.kernel, self.sizes),
            read_bytes(self.kernel, self.sizes),
            through,
            requests,
            sum(sum(asked[1:]) for asked in repeated),
            sum(asked[0] for asked in repeated) / self.programs,
            **work,
            meets=meets + MEETING * met / self.kernel.stages,
            torn=torn,
            reach=apart * through / self.programs,
            turns=sum(self._turns(s) for _, s in _placed(self.kernel.body) if isinstance(s, Loop)),
            follows=float(self.kernel.follows),
            split=self._split(),
        )

    def _split(self) -> float:
        """Operations on f32 that is split, whatever part of a tile is inside, and what splitting it takes: the more,
        the fewer products each number has a part in.
        """
        wide = sum(self.kernel.param(p.row.param).dtype is SPLIT for p in self.products.values())
        if not wide:
            return 0.0
        operations = 2.0 * wide * math.prod(a.block * self.steps[a.name] for a in self.kernel.axes)
        return operations * (1 + SPLITTING * sum(1 / self.kernel.axis(n).block for n in NAMES[:2]))

    def _turns(self, loop: Loop) -> float:
        """Turns of a loop whose bytes are not sent ahead: elements come one by one, or for the next turn alone."""
        loads = [s for s in walk(loop.body) if isinstance(s, Load) and varies_over(s)]
        if self.kernel.axis(loop.axis).role is not Role.SERIAL or not loads:
            return 0.0
        held = {p: math.prod(at_sizes(d, self.sizes) for d in p.shape) * p.dtype.bytes for p in self.kernel.params}
        read = [(s, self.kernel.param(s.param)) for s in loads]
        most = max(held[p] for _, p in read)
        scanned = any(isinstance(s, Scan) for s in walk(loop.body))
        turned = self.steps[loop.axis] * (TURNED * self._is_turned(loop) + scanned)
        ahead = self.kernel.stages >= AHEAD and all(self._vector(s, p) > 1 for s, p in read if 2 * held[p] > most)
        if ahead and not self.products:
            return turned
        blocks = {a.name: a.block for a in self.kernel.axes}
        fed = sum(p.dtype.bytes * math.prod(blocks[n] for n in varies_over(s) if n in blocks) for s, p in read)
        rate = FED_ALL if self.kernel.axes[0].block >= ALL else FED
        return turned + self.steps[loop.axis] * (fed / rate if ahead else 1.0)

    def _is_turned(self, loop: Loop) -> bool:
        """True where neighbours of a tile lie along one axis in what a loop reads or writes, along another in the
        rest.
        """
        lanes = {a.name for a in self.kernel.axes if a.block > 1}
        tiles = [s for s in walk(loop.body) if isinstance(s, (Load, Store)) and len(lanes & varies_over(s)) > 1]
        along = {n for s in tiles for n in lanes if step_along(s, self.kernel.axis(n).symbol) == 1}
        return len(along) > 1 and not self.products

    def _over(self, names: frozenset[str] | tuple[str, ...], padded: bool = False) -> float:
        """How often something that varies over these axes is done, by all programs; `padded`, lanes past the ends of
        tiles counted in, which take part in all that is not asked of memory.
        """
        extents = self.extents | {a.name: a.block for a in self.kernel.axes if padded and a.role is Role.TILE}
        inside = math.prod(extents[n] for n in names if n in extents)
        shared = {a.among for a in self.kernel.axes if a.name in names}
        return inside * math.prod(self.steps[a.name] for a in self.grid if a.name not in names and a.name not in shared)

    def _asked(self, s: Load | Store, param: Param) -> float:
        """Bytes that all programs read or write at one access."""
        within = math.prod(share(b, self.extents, self.sizes) for b in bounds_of(s))
        return self._over(varies_over(s)) * within * param.dtype.bytes

    def _sectors(self, s: Load | Store, param: Param) -> float:
        """How many times what is wanted is fetched: whole sectors, of which neighbouring lanes use a part, or which
        they share where they want the same.
        """
        lanes = [a for a in self.kernel.axes if a.block > 1 and a.name in varies_over(s)]
        most = SECTOR_BYTES / param.dtype.bytes if lanes else 1.0
        return min([most, *(self._along(s, param, a) for a in lanes if not _told(s, a.name))])

    def _along(self, s: Load | Store, param: Param, axis: Axis) -> float:
        """The same where lanes that follow each other hold neighbours along an axis."""
        count = min(axis.block, self.extents[axis.name], 2 * SECTOR_BYTES // param.dtype.bytes)
        first = (self.extents[axis.name] - count) // 2 // count * count
        at = {x.name: self.extents.get(x.name, 0) // 2 for x in symbols(s.index)} | dict(self.sizes)
        places = [evaluate(s.index, at | {axis.name: first + k}) * param.dtype.bytes for k in range(count)]
        sectors = len({place // SECTOR_BYTES for place in places})
        return sectors * SECTOR_BYTES / (count * param.dtype.bytes)

    def _programs_a_sector(self, s: Load | Store, param: Param) -> float:
        """How many programs run from the first to the last of those that each use a part of one sector; 0 where no
        other program uses what one leaves of it.
        """
        at = {x.name: self.extents.get(x.name, 0) // 2 for x in symbols(s.index)} | dict(self.sizes)
        behind, found = 1, list[float]()
        for axis in reversed(self.grid):
            for steps in sorted({axis.block, *divisors(s.index, axis.symbol)}) if axis.name in at else ():
                if steps < self.extents[axis.name] and steps % axis.block == 0:
                    here = {**at, axis.name: 0}
                    moved = evaluate(s.index, here | {axis.name: steps}) - evaluate(s.index, here)
                    if 0 < abs(moved) * param.dtype.bytes < SECTOR_BYTES:
                        found.append(
                            steps // axis.block * behind * (SECTOR_BYTES / (abs(moved) * param.dtype.bytes) - 1)
                        )
            behind *= self.steps[axis.name]
        return min(found, default=0.0)

    def _vector(self, s: Load | Store, param: Param) -> int:
        """The elements that a thread asks for at once: side by side, and aligned whatever the other indices are."""
        most = min(VECTOR_BYTES // param.dtype.bytes, max(1, self.lanes // (WARP * self.kernel.warps)))
        best = 1
        for axis in self.kernel.axes:
            if axis.vector > 1 and axis.name in varies_over(s):
                best = max(best, min(most, axis.vector))  # walked in whole vectors, wherever rows begin
            if axis.block == 1 or axis.name not in varies_over(s) or _told(s, axis.name):
                continue
            terms = dict(linear_terms(s.index))
            if any(axis.symbol in symbols(t) for t in terms if t != axis.symbol):
                best = max(best, self._together(s.index, axis, min(most, axis.block & -axis.block)))
            elif terms.pop(axis.symbol, None) == 1:
                steps = [k * math.prod(self.sizes.get(x.name, 1) for x in symbols(t)) for t, k in terms.items()]
                # A mask that ends within a vector has each of its elements asked for by itself.
                ends = [self.extents[axis.name]] if axis.role is Role.GRID else []
                even = math.gcd(most, axis.block, *steps, *ends)
                best = max(best, even & -even)
        return best

    def _together(self, index: Expr, axis: Axis, most: int) -> int:
        """How many lanes along an axis lie side by side from an aligned place on, wherever the other indices are."""
        others = [x.name for x in symbols(index) if x.name != axis.name and x.name not in self.sizes] or [axis.name]
        while most > 1:
            apart = max(1, self.extents[axis.name] // (PLACES * most)) * most
            firsts = [k * apart for k in range(PLACES) if k * apart + most <= self.extents[axis.name]]
            for other in others:
                at = dict(self.sizes) | {name: int(name == other) for name in others}
                places = [[evaluate(index, at | {axis.name: first + k}) for k in range(most)] for first in firsts]
                if any(p[0] % most or p != list(range(p[0], p[0] + most)) for p in places):
                    break
            else:
                return most
            most //= 2
        return most

    def _count(self, s: Stmt, work: dict[str, float]) -> None:
        if isinstance(s, Let):
            times, op = self._over(s.out.axes, True), s.op
        elif isinstance(s, (Reduce, Scan)):
            times, op = self._over(s.arg.axes, True), s.op
        else:
            return
        kind, factor = SPECIAL.get(op, ("slots", float(TABLE[op].cost) if op in TABLE else 0.0))
        work[kind] += times * factor


def _told(s: Load | Store, axis: str) -> bool:
    """True where a value that varies along the axis tells the place."""
    return isinstance(s, Load) and any(axis in p.value.axes for p in s.picks)


def _placed(body: tuple[Stmt, ...], loops: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Stmt]]:
    """Every statement with the axes of the loops around it, loops themselves too."""
    for s in body:
        yield loops, s
        if isinstance(s, Loop):
            yield from _placed(s.body, (*loops, s.axis))
