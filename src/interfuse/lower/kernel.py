"""Kernel IR: one ordered loop tree. In: what a schedule family decided. Out: a frozen value that emitters print as
code.

Axes carry a role; every value says over which axes it varies; a reduction names its axis and scope. Emitters are
mechanical: they choose nothing.

How a tree reads. A kernel is a list of statements inside its grid axes. A `Loop` over a tile or serial axis is one
phase: its statements run for every index of the axis. A value made in a phase may be used in a later phase of the
same axis only where the axis is a TILE (the whole row is held at once); on a SERIAL axis the lowering has put it into
a scratch parameter and loads it again. A `Reduce` stands in the phase that makes its argument; its result exists
after the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Union

from interfuse.ir.dtypes import DType
from interfuse.ir.index import Dim, Expr, at_sizes, coefficient, floordiv, minimum, mul, sym, symbols, unwrap, wrap


class Role(Enum):
    """How an axis is walked."""

    GRID = "grid"  # block 1: one index a program; block > 1: that many indices a program, at once
    TILE = "tile"  # the whole axis at once, in `block` lanes (a power of two >= extent); lanes past it are masked
    SERIAL = "serial"  # a loop in steps of `block` lanes, the last step masked
    TEAM = "team"  # one index a program: as many programs as it has indices run at once, wait for each other and meet


class Scope(Enum):
    """Where the parts of a reduction or a scan meet."""

    LANE = "lane"  # across the lanes of a tile
    CARRY = "carry"  # carried through a serial loop, then across its lanes


@dataclass(frozen=True)
class Axis:
    """One axis: `extent` indices from 0, walked by `role` in pieces of `block`.

    A SERIAL axis may be shared out `among` the indices of a GRID axis. Each of them takes neighbouring indices, all as
    many but the last ones, which may have fewer or none; or, with `in_turn`, the blocks that lie as many apart as there
    are sharers, from its own one on. A GPU thread takes at most `each` neighbours at once; with 0 that is the
    compiler's to choose.

    A SERIAL axis with a `vector` of more than one element is walked in whole vectors of memory: `origin` is where its
    index 0 lies, in elements, modulo the vector; all that is read and written along it lies there. A TILE axis is held
    so; what is read along it may lie elsewhere, and is read element by element then. A GRID axis of a map begins with
    a vector, and ends in the middle of one.
    """

    name: str
    extent: Dim
    role: Role
    block: int = 1
    among: str = ""
    in_turn: bool = False
    vector: int = 1
    origin: Dim = 0
    each: int = 0

    @property
    def own_end(self) -> bool:
        """True where those that share the axis stop at ends of their own."""
        return bool(self.among) and not self.in_turn

    @property
    def symbol(self) -> Expr:
        """The index along this axis, as an expression."""
        most = min(wrap(self.extent).hi, self.block) if self.role is Role.TILE else wrap(self.extent).hi
        return sym(self.name, 0, most - 1)


@dataclass(frozen=True)
class Param:
    """A buffer of the kernel: `mode` in, out or scratch (one a program; shape = what one program needs)."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    mode: str = "in"


@dataclass(frozen=True)
class Value:
    """A named value of one type that varies over `axes` (names), and over nothing else."""

    name: str
    dtype: DType
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bound:
    """lo <= expr < hi; None for an end that needs no test."""

    expr: Expr
    lo: Dim | None
    hi: Dim | None

    @property
    def ends(self) -> tuple[Expr, ...]:
        """The ends that are tested, as expressions."""
        return tuple(wrap(end) for end in (self.lo, self.hi) if end is not None)


@dataclass(frozen=True)
class Pick:
    """A place that a value tells: `symbol` stands for the integer `value`, which must lie in [0, extent).

    With `wraps` a negative value counts from the end. Where it lies outside, nothing is read there: on a CPU the kernel
    says so and what it wrote is worth nothing, on a GPU the load gives NaN, or 0 where its type has none.
    """

    symbol: Expr
    value: Value
    extent: Dim
    wraps: bool = False


@dataclass(frozen=True)
class Load:
    """out = param[index]; index counts elements from the buffer's first one (the layout's offset is in it).

    Where a bound of `within` does not hold nothing is read, and `out` is any value. Bounds vary over no axis that the
    place does not vary over. An indirect load has the symbols of its `picks` in the index.
    """

    out: Value
    param: str
    index: Expr
    within: tuple[Bound, ...] = ()
    picks: tuple[Pick, ...] = ()


@dataclass(frozen=True)
class Let:
    """out = op(args): a row of the operator table with `attrs`.

    Beside the rows there are "const" with attrs value, "index" with attrs expr, and "within", true where all of attrs
    bounds hold.
    """

    out: Value
    op: str
    args: tuple[Value, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    note: str = ""


PART = "part"
"""The TILE axis of what each program reduces for itself before it walks the others: results of parts, joined."""

SPAN = "span"
"""The TILE axis of a row's blocks, whose columns lie along the axis after it."""

MATE = "mate"
"""The TEAM axis: which program of its team a program is."""

PLACES = frozenset(("argmax", "argmin"))
"""Reductions that give a place."""

MOMENTS = frozenset(("mean", "spread"))
"""Reductions that one pass carries together."""


@dataclass(frozen=True)
class Reduce:
    """out = op of arg along `axis`: sum, prod, max, min, any, all in arg's type; argmax, argmin give the first index
    of the largest or smallest element as i64, where NaN is both.

    Along an axis that is shared out there is a result a part: it varies over the axis of the parts.

    Carried through a serial loop, a float may also be reduced by what takes more than one number to carry: mean, spread
    (squared distances from the mean, summed) and expsum (exponentials of distances from the maximum, summed; -inf adds
    nothing). None of them cancels or overflows where the passes that they replace would not."""

    out: Value
    op: str
    arg: Value
    axis: str
    scope: Scope


@dataclass(frozen=True)
class Meet:
    """out = arg of every program of the team, along the axis PART instead of MATE. A program goes on when all of its
    team have come here; neighbouring meetings are one.
    """

    out: Value
    arg: Value


@dataclass(frozen=True)
class Scan:
    """out at each index along `axis` = op (cumsum, cumprod, cummax, cummin) of arg at the indices up to it.

    With scope CARRY what came before is carried through the serial loop. A scan that runs in reverse is one over an
    axis whose accesses count from its end.
    """

    out: Value
    op: str
    arg: Value
    axis: str
    scope: Scope


@dataclass(frozen=True)
class Store:
    """param[index] = arg, converted to the parameter's type."""

    param: str
    index: Expr
    arg: Value


@dataclass(frozen=True)
class Loop:
    """Run `body` for every index of the TILE or SERIAL axis named; `backwards` from its end, for what only stores. What
    it gives for indices `until` and beyond changes nothing, so that a serial loop may stop there.
    """

    axis: str
    body: tuple[Stmt, ...]
    backwards: bool = False
    until: Dim | None = None


def share_of(extent: Dim, parts: Dim) -> Dim:
    """The indices of an axis that each of its parts takes, but for the last ones."""
    return unwrap(floordiv(wrap(extent) + (wrap(parts) - 1), parts))


Stmt = Union[Load, Let, Reduce, Scan, Meet, Store, Loop]


def operands(s: Stmt) -> tuple[Value, ...]:
    """The values that a statement reads, those that tell a load's place among them; none for a loop."""
    if isinstance(s, Let):
        return s.args
    if isinstance(s, Load):
        return tuple(p.value for p in s.picks)
    return () if isinstance(s, Loop) else (s.arg,)


def renamed(s: Stmt, to: Callable[[Value], Value]) -> Stmt:
    """The statement with the values that it reads replaced."""
    if isinstance(s, Let):
        return replace(s, args=tuple(map(to, s.args)))
    if isinstance(s, Load):
        return replace(s, picks=tuple(replace(p, value=to(p.value)) for p in s.picks))
    return s if isinstance(s, Loop) else replace(s, arg=to(s.arg))


def varies_over(s: Load | Store) -> frozenset[str]:
    """The names of what an access's place depends on: the symbols of its index, and the axes of the values in it."""
    told = {a for v in (operands(s) if isinstance(s, Load) else ()) for a in v.axes}
    return frozenset(told.union(x.name for x in symbols(s.index)))


def step_along(s: Load | Store, axis: Expr) -> int | None:
    """How many elements apart the access reaches at neighbouring indices of an axis; None where that is not constant,
    as where values tell the place.
    """
    told = isinstance(s, Load) and any(axis.name in p.value.axes for p in s.picks)
    return None if told else coefficient(s.index, axis)


def first_step(s: Load | Store, axis: Expr, others: Iterable[Expr]) -> int | None:
    """How many elements apart the access reaches at the first two indices of an axis, `others` being 0; None where
    values or sizes tell.
    """
    first = {x.name: 0 for x in (axis, *others)}
    told = (isinstance(s, Load) and s.picks) or any(x.name not in first for x in symbols(s.index))
    if told or step_along(s, axis) is not None:
        return step_along(s, axis)
    return at_sizes(s.index, first | {axis.name: 1}) - at_sizes(s.index, first)


def walk(body: Iterable[Stmt]) -> list[Stmt]:
    """Every statement in order, those inside loops too; the loops themselves are left out."""
    return [inner for s in body for inner in (walk(s.body) if isinstance(s, Loop) else [s])]


def bounds_of(s: Stmt) -> tuple[Bound, ...]:
    """The bounds that a statement tests."""
    if isinstance(s, Load):
        return s.within
    return dict(s.attrs)["bounds"] if isinstance(s, Let) and s.op == "within" else ()


@dataclass(frozen=True)
class Kernel:
    """One kernel: parameters in call order, axes with GRID ones outermost first, statements, and what to say about it.

    `doc` lines go to the top of the printed file; `symbols` are the size symbols that the launch passes as integers;
    `family` names the schedule family, `warps` the GPU warps a program, `reduction_order` the key under which its bits
    repeat, `stages` how many steps of a serial loop a GPU has under way: all but one of them fetch. A `packed` kernel
    runs for several members in one launch, each with buffers and sizes of its own; everything else here says what it
    does for one of them. Members that are `level` have as many programs each, which take turns. Where a tile's axis has
    an extent that may pass its block, `beyond` is the kernel that serves such sizes, with the same parameters and no
    other symbols: each launch takes the one that its sizes allow. A kernel that `follows` is launched right behind one
    that `leads`, and may start before that one has ended; it waits for it before it reads any of `awaits`, the
    parameters that kernels before it write, and before it writes.

    Where an axis has the role TEAM, the programs of its indices work on one row of the grid at a time, and a launch has
    as many teams as the device holds at once: each takes rows in turn. Where it has a `ring` of so many chunks, rows go
    by way of these, and a launch has as many programs as the device has units: each takes blocks of rows in turn.
    """

    name: str
    params: tuple[Param, ...]
    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    doc: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    family: str = "map"
    warps: int = 4
    reduction_order: str = ""
    packed: bool = False
    level: bool = False
    stages: int = 1
    beyond: Kernel | None = None
    follows: bool = False
    leads: bool = False
    awaits: tuple[str, ...] = ()
    ring: int = 0

    @property
    def tiles(self) -> tuple[Axis, ...]:
        """The tiles that do not hold every extent that their axes may have."""
        return tuple(a for a in self.axes if a.role is Role.TILE and wrap(a.extent).hi > a.block)

    @property
    def team(self) -> int:
        """The programs of a team; 0 where each program works by itself."""
        return next((wrap(a.extent).hi for a in self.axes if a.role is Role.TEAM), 0)

    @property
    def picks(self) -> tuple[Pick, ...]:
        """Every place that a value tells."""
        return tuple(dict.fromkeys(p for s in walk(self.body) if isinstance(s, Load) for p in s.picks))

    @property
    def own_axes(self) -> tuple[Axis, ...]:
        """The axes of the domain: all but the one of parts."""
        return tuple(a for a in self.axes if a.name != PART)

    def axis(self, name: str) -> Axis:
        """The axis of that name."""
        return next(a for a in self.axes if a.name == name)

    def steps(self, axis: Axis) -> Dim:
        """The indices of `axis` that one program walks, at most."""
        if not axis.among:
            return axis.extent
        parts = self.axis(axis.among).extent
        if axis.in_turn:
            return unwrap(mul(wrap(share_of(share_of(axis.extent, axis.block), parts)), axis.block))
        return share_of(axis.extent, parts)

    def walked(self, axis: Axis) -> tuple[Dim, Dim, Dim]:
        """Where a program starts to walk `axis`, where it stops, and how far apart its steps are, by the index of the
        axis that shares it out.
        """
        if not axis.among:
            return 0, axis.extent, axis.block
        sharer = self.axis(axis.among)
        if axis.in_turn:
            return unwrap(mul(sharer.symbol, axis.block)), axis.extent, unwrap(mul(wrap(sharer.extent), axis.block))
        share = self.steps(axis)
        first = mul(sharer.symbol, share)
        return unwrap(first), unwrap(minimum(first + share, axis.extent)), axis.block

    def param(self, name: str) -> Param:
        """The parameter of that name."""
        return next(p for p in self.params if p.name == name)
