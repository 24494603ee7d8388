"""From a trace to a loop tree. In: a Trace and the axes that a schedule chose. Out: the statements of a Kernel.

Phases follow depth: what a row needs before phase d, then one loop over the columns for what depth d makes and reduces.
What a program reduces for itself, over the axis of parts, comes before all of them.
On a serial column axis a value cannot stay in a register from one phase to the next: it is loaded again, computed again
where that costs one wide operand and little arithmetic, or kept in a scratch row. A row that is streamed keeps nothing:
each phase loads and computes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from interfuse.ir.index import symbols, wrap
from interfuse.ir.ops import TABLE
from interfuse.lower.kernel import (
    PART,
    Axis,
    Let,
    Load,
    Loop,
    Meet,
    Param,
    Reduce,
    Role,
    Scan,
    Scope,
    Stmt,
    Store,
    Value,
    operands,
)
from interfuse.lower.traced import Made, Trace
from interfuse.lower.vectors import EVEN_ROWS

CROWDED = 1 << 11
"""Elements of a row beyond which its warps wait for each other."""

CHEAP = 2
"""Flops an element up to which computing a value again beats keeping it in a scratch row."""


def _operands(made: Made) -> tuple[Value, ...]:
    """What a value is computed from, but for reductions: their operands belong to an earlier phase."""
    return () if isinstance(made, Reduce) else operands(made)


class _Columns:
    """Splits what varies over the columns into phases and decides how values cross them."""

    def __init__(self, trace: Trace, col: Axis, soon: bool) -> None:
        self.trace, self.col, self.soon = trace, col, soon
        self.maker: dict[Value, Made] = {m.out: m for m in trace.made}
        self.kept: dict[Value, str] = {}
        self.last = max([*trace.depth.values(), 0])
        self.late: set[Value] = set()

    def wide(self, value: Value) -> bool:
        """True where the value varies over the columns."""
        return self.col.name in value.axes

    def in_loop(self, store: Store) -> bool:
        """True where the store runs for every column, be its value wide or the same in all of them."""
        return self.wide(store.arg) or any(s.name == self.col.name for s in symbols(store.index))

    def needs(self, phase: int) -> list[Value]:
        """The wide values that phase `phase` uses directly: operands of its reductions and stores, and of its own
        values.
        """
        depth = self.trace.depth
        wanted = [m.arg for m in self.trace.made if isinstance(m, Reduce) and depth[m.arg] == phase]
        last = [s.arg for s in self.trace.stores] + [s.arg for s in self.trace.sums]
        wanted += [a for a in last if self.wide(a) and depth[a] == phase]
        own = [m for m in self.trace.made if self.wide(m.out) and depth[m.out] == phase]
        wanted += [a for m in own for a in _operands(m) if self.wide(a)]
        return list(dict.fromkeys(wanted))

    def again(self, value: Value) -> bool:
        """True where a later phase should load or compute the value again rather than find it in a scratch row."""
        made = self.maker[value]
        if self._chooses(made):
            # Where each part has a loop of its own, one of the two is computed and nothing is chosen.
            return all(not self.wide(a) or a in self.kept or self.again(a) for a in _operands(made)[1:])
        wide = [a for a in _operands(made) if self.wide(a)]
        read = isinstance(made, Load) or (isinstance(made, Let) and made.op in ("index", "within"))
        cheap = isinstance(made, Let) and TABLE[made.op].cost <= CHEAP and len(wide) <= 1 if not read else True
        return cheap and all(a in self.kept or self.again(a) for a in wide)

    def _chooses(self, made: Made) -> bool:
        """True for the choice between parts of a joined value."""
        test = self.maker.get(made.args[0]) if isinstance(made, Let) and made.op == "where" else None
        return isinstance(test, Let) and test.op == "within"

    def put_off(self) -> None:
        """Read what is the same in all rows when it is needed: it is in a cache, and takes no registers until then."""
        needed = {m.arg for m in self.trace.made if isinstance(m, Reduce) and not self.trace.depth[m.arg]}
        for m in reversed(self.trace.made):
            if m.out in needed:
                needed.update(_operands(m))
        for m in self.trace.made:
            alike = m.out.axes == (self.col.name,) and not self.trace.depth[m.out] and m.out not in needed
            if alike and isinstance(m, (Load, Let)):
                self.late.add(m.out)

    def choose_kept(self) -> None:
        """Put into scratch rows what crosses phases and is not made again, earliest first."""
        for phase in range(1, self.last + 1):
            for value in self.needs(phase):
                self._reach(value, phase)

    def _reach(self, value: Value, phase: int) -> None:
        if self.trace.depth[value] >= phase or value in self.kept:
            return
        if self.again(value):
            for a in _operands(self.maker[value]):
                if self.wide(a):
                    self._reach(a, phase)
        else:
            self.kept[value] = f"{value.name}_row"

    def phase(self, number: int, serial: bool) -> list[Stmt]:
        """The statements of one loop over the columns."""
        out: list[Stmt] = []
        present: set[Value] = set()
        depth = self.trace.depth

        def bring(value: Value) -> None:
            if value in self.late:
                self.late.discard(value)
            elif not self.wide(value) or value in present or (not serial and depth[value] < number):
                return
            present.add(value)
            if depth[value] < number and value in self.kept:
                out.append(Load(value, self.kept[value], self.col.symbol))
                return
            made = self.maker[value]
            for a in _operands(made):
                bring(a)
            out.append(replace(made, scope=Scope.CARRY) if serial and isinstance(made, Scan) else made)
            if value in self.kept:
                out.append(Store(self.kept[value], self.col.symbol, value))

        def own(value: Value) -> bool:
            return self.wide(value) and depth[value] == number and value not in self.late

        made = [m for m in self.trace.made if isinstance(m, Reduce) and m.axis == self.col.name]
        reduced = [m for m in made if depth[m.arg] == number]
        # A program waits at each reduction. Of several, all loads are on their way before the first, and before any
        # those of rows of odd widths, which are read element by element, and of few rows, beside which nothing goes on.
        odd = wrap(self.col.extent).hi % EVEN_ROWS != 0
        scanned = any(isinstance(m, Scan) and own(m.out) for m in self.trace.made)
        if not serial and (len(reduced) > 1 or (reduced and odd) or ((reduced or scanned) and self.soon)):
            for m in self.trace.made:
                if isinstance(m, Load) and own(m.out):
                    bring(m.out)
        for m in self.trace.made:
            if isinstance(m, Reduce):
                if m in reduced:
                    bring(m.arg)
                    out.append(replace(m, scope=Scope.CARRY) if serial else m)
            elif own(m.out) and (m.out in self.kept or not serial):
                bring(m.out)
        for s in self.trace.stores:
            if self.in_loop(s) and depth[s.arg] == number:
                bring(s.arg)
                out.append(s)
        for m in self.trace.sums:
            if depth[m.arg] == number:
                bring(m.arg)
                out.append(m)
        return out


def within_rows(trace: Trace, row: Axis, col: Axis, keep: bool = True) -> tuple[tuple[Stmt, ...], tuple[Param, ...]]:
    """The same for a program that walks several rows: a loop over them, with what is the same in all of them before it
    and what their sums give after it.
    """
    body, scratch = statements(trace, col, keep)
    body = (*body, *trace.sums) if col.role is Role.GRID else body
    same: set[Value] = set()

    def is_same(s: Stmt) -> bool:
        """True for what computes a value that no row changes."""
        if not isinstance(s, (Load, Let)) or row.name in s.out.axes or not same.issuperset(operands(s)):
            return False
        alike = col.role is not Role.SERIAL or col.name not in s.out.axes
        same.update({s.out} if alike else ())
        return alike

    before, inside = list[Stmt](), list[Stmt]()
    for s in body:
        if isinstance(s, Loop) and col.role is Role.TILE:
            alike = tuple(i for i in s.body if is_same(i))
            before += [Loop(col.name, alike)] if alike else []
            s = Loop(col.name, tuple(i for i in s.body if i not in alike))
        (before if is_same(s) else inside).append(s)
    inside = [s for s in inside if not isinstance(s, Loop) or s.body]
    ends = tuple(trace.ends)
    return (
        *before,
        Loop(row.name, tuple(inside)),
        *(ends if col.role is Role.GRID else (Loop(col.name, ends),)),
    ), scratch


def _ahead(made: list[Made]) -> tuple[list[Stmt], list[Made]]:
    """Loops over the parts for what is reduced over them, each after what it needs; and everything else."""
    if any(isinstance(m, Meet) for m in made):
        return [], _met_once(made)
    over = {m.out for m in made if PART in m.out.axes or _joins(m)}
    needed = set(over)
    for m in reversed(made):
        if m.out in needed:
            needed.update(operands(m))
    loop_of: dict[Value, int] = {}
    joined: set[Value] = set()
    for m in made:
        if m.out in needed:
            loop_of[m.out] = max((loop_of[a] + (a in joined) for a in operands(m)), default=0)
            joined |= {m.out} if _joins(m) else set()
    body: list[Stmt] = []
    for number in range(max(loop_of.values(), default=-1) + 1):
        mine = [m for m in made if loop_of.get(m.out) == number]
        body += [m for m in mine if m.out not in over]
        inside = tuple(m for m in mine if m.out in over)
        body += [Loop(PART, inside)] if inside else []
    return body, [m for m in made if m.out not in needed]


def _joins(made: Made) -> bool:
    """True for a reduction of parts."""
    return isinstance(made, Reduce) and made.axis == PART


def _met_once(made: list[Made]) -> list[Made]:
    """All meetings where the first one is: what they are of is there by then."""
    meets = [m for m in made if isinstance(m, Meet)]
    first = made.index(meets[0])
    return [*made[:first], *meets, *(m for m in made[first:] if m not in meets)]


def statements(
    trace: Trace, col: Axis, keep: bool = True, late: bool = False, soon: bool = False, few: bool = False
) -> tuple[tuple[Stmt, ...], tuple[Param, ...]]:
    """The body of the kernel inside its grid axes, and the scratch rows that it needs; none where not `keep`. What
    values tell the place of comes `late`, behind a loop that does not need it: a GPU's threads wait for these values.
    All that columns need is read as `soon` as the first of it, of `few` rows also if they are crowded or scanned.
    """
    first, rest = _ahead(trace.made)
    if col.role is Role.GRID:
        # What rows need is on its way meanwhile; where all of it meets one number, Triton does not end on that order.
        rows = any(isinstance(m, Reduce) and m.axis == PART and m.out.axes for m in trace.made)
        loads = [m for m in rest if rows and isinstance(m, Load) and not m.picks]
        return (*loads, *first, *(m for m in rest if m not in loads), *trace.stores), ()
    trace = replace(trace, made=rest)
    serial = col.role is Role.SERIAL
    crowded = not serial and _is_crowded(trace, col)
    scans = not serial and any(isinstance(m, Scan) for m in trace.made)
    columns = _Columns(trace, col, soon or (few and (crowded or scans)))
    if serial and keep:
        columns.choose_kept()
    if crowded and not few:
        columns.put_off()
    body: list[Stmt] = list(first)
    for number in range(columns.last + 1):
        before = [
            m for m in trace.made if not _over(m, col) and not columns.wide(m.out) and trace.depth[m.out] == number
        ]
        phase = columns.phase(number, serial)
        behind = _behind(before, phase) if late and phase else []
        body += [m for m in before if m not in behind]
        if phase:
            # What was read last is likeliest to be in a cache still.
            again = not keep and number > 0 and not any(isinstance(s, (Reduce, Scan)) for s in phase)
            body.append(Loop(col.name, tuple(phase), again))
        body += behind
    body += [s for s in trace.stores if not columns.in_loop(s)]
    scratch = tuple(Param(name, value.dtype, (col.extent,), (1,), "scratch") for value, name in columns.kept.items())
    return tuple(body), scratch


def _is_crowded(trace: Trace, col: Axis) -> bool:
    """True for rows of which a thread has so much that this tells how many programs share a unit: long ones that are
    read element by element, those that are stored in bytes, and those that are stored before all of them is reduced.
    """
    last, stored = max([*trace.depth.values(), 0]), [s.arg for s in trace.stores if col.name in s.arg.axes]
    if any(arg.dtype.bytes == 1 or trace.depth[arg] < last for arg in stored):
        return True
    return wrap(col.extent).hi > CROWDED and wrap(col.extent).hi % EVEN_ROWS != 0


def _over(made: Made, col: Axis) -> bool:
    """True for a reduction of columns: it stands where they are walked."""
    return isinstance(made, Reduce) and made.axis == col.name


def _behind(before: Sequence[Made], phase: list[Stmt]) -> list[Made]:
    """What is read at places that values tell, and what is computed from it, as far as the phase needs none of it."""
    needed = {v for s in phase for v in operands(s)}
    for m in reversed(before):
        if m.out in needed:
            needed.update(operands(m))
    told: set[Value] = set()
    for m in before:
        if m.out not in needed and ((isinstance(m, Load) and m.picks) or not told.isdisjoint(operands(m))):
            told.add(m.out)
    return [m for m in before if m.out in told]
