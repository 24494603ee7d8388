"""The statements of one program in C++. In: a Kernel's body. Out: lines: straight runs, phases, accumulators."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.emit.cpp_facts import Fetch, vectors_a_line
from interfuse.emit.cpp_lines import offset
from interfuse.emit.cpp_programs import Programs
from interfuse.emit.cpp_reduce import (
    Accumulator,
    accumulator,
    columns_of,
    part_of,
    parts_name,
    result_of,
    scan_type,
    scanner,
    sharing,
)
from interfuse.emit.cpp_types import converted, held, splat
from interfuse.emit.pieces import span
from interfuse.ir.index import Expr, wrap
from interfuse.lower.bounds import holds
from interfuse.lower.kernel import (
    MOMENTS,
    PLACES,
    Axis,
    Bound,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Role,
    Scan,
    Stmt,
    Store,
    Value,
    bounds_of,
    operands,
    walk,
)


class Phases(Programs):
    """Writes what a program does; `names` is the scope being written."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        super().__init__(kernel, register_bytes, streaming)
        self.together = vectors_a_line(kernel, self.lane_axis, self.lanes)
        self.beside = self.names.fresh("beside")  # which of a program's vectors is being written
        self.in_tile = False
        self.adding: set[Value] = set()  # of reductions that share an accumulator the first
        self.joined = any(bounds_of(s) for s in walk(kernel.body))
        self.columns: dict[Value, str] = {}  # what holds a result a column, of reductions over rows around the lanes

    def statements(self, body: Sequence[Stmt], in_lanes: bool) -> None:
        """The statements of one scope: what varies over a program's vectors once for each, loops on their own."""
        if self.side == 1 or self.in_tile:
            self.run(body, in_lanes)
            return
        for k, s in enumerate(body):
            if isinstance(s, Loop):
                self.loop(s, in_lanes)
            elif k == 0 or isinstance(body[k - 1], Loop):
                run = list(itertools.takewhile(lambda s: not isinstance(s, Loop), body[k:]))
                self.run([s for s in run if not self.in_vectors(s)], in_lanes)
                self.each_beside([s for s in run if self.in_vectors(s)], in_lanes)

    def in_vectors(self, s: Stmt) -> bool:
        """True where a statement between loops differs from vector to vector of a program."""
        if isinstance(s, Store):
            return self.is_vector(s.arg) or self.lane_step(s.index) != 0
        return isinstance(s, (Load, Let)) and self.is_vector(s.out)

    def each_beside(self, body: Sequence[Stmt], in_lanes: bool) -> None:
        """`body` for each vector of a program; what later statements need of it waits in arrays."""
        if not body:
            return
        everything = walk(self.kernel.body)
        later = {v for s in everything if s not in body for v in operands(s)}
        # Inside a piece of joined parts, users of a choice are users of the part that was chosen.
        made = [s.out for s in body if isinstance(s, (Load, Let)) and (self.joined or s.out in later)]
        arrays = {v.name: self.array(held(v.dtype, True), v.name) for v in made}
        with self.each_vector():
            self.run(body, in_lanes)
            for v in made:
                self.w.line(f"{arrays[v.name]}[{self.beside}] = {self.names.of[v.name]};")
        self.names.of |= {v: f"{array}[{self.beside}]" for v, array in arrays.items()}

    def array(self, kind: str, name: str) -> str:
        """Declare an array with a place for each of a program's vectors."""
        array = self.names.fresh(name)
        self.w.line(f"{kind} {array}[{-(-self.side // self.together) * self.together}];")
        return array

    def lane_end(self) -> str:
        """Where the piece of the lane axis that is being written stops."""
        assert self.lane_axis is not None
        return self.dim(self.lane_axis.extent if self.lane_piece is None else span(self.lane_piece)[1])

    @contextmanager
    def each_vector(self) -> Iterator[None]:
        """What is written inside runs for each vector of a program."""
        lane, outer = self.lane_axis, self.names
        assert lane is not None
        self.names, self.in_tile = outer.inner(), True
        start, extent = self.names.index[lane.name], self.lane_end()
        name = self.names.give_index(lane.name)
        head = f"each_vector({start}, {extent}, {self.side}, [&](long {name}, long n, int {self.beside}) INLINE {{"
        with self.w.block(head, "});"):
            yield
        self.names, self.in_tile = outer, False

    def run(self, body: Sequence[Stmt], in_lanes: bool) -> None:
        """Statements in order; indices that several of them use are named first, where first needed."""
        shared = self.shared_indices(body)
        named: dict[Expr, str] = {}
        for s in body:
            if isinstance(s, Load):
                self.look_up(s.picks)
            if isinstance(s, (Load, Store)) and s.index in shared and s.index not in named:
                name = self.names.fresh("at")
                self.w.line(f"const long {name} = {self.index(s.index)};")
                named[s.index] = name
            if isinstance(s, Load):
                self.load(s, named.get(s.index))
            elif isinstance(s, Store):
                self.store(s, named.get(s.index))
            elif isinstance(s, Let):
                self.let(s)
            elif isinstance(s, Loop):
                self.loop(s, in_lanes)
            elif isinstance(s, Scan):
                self.scan(s)
            elif isinstance(s, Reduce):
                self.accumulate(s)
            if isinstance(s, (Load, Let)):
                self.look_up(self.told_by.get(s.out, ()))

    def shared_indices(self, body: Sequence[Stmt]) -> set[Expr]:
        """Composite indices that at least two accesses of this scope use as they are."""
        seen: set[Expr] = set()
        shared: set[Expr] = set()
        for s in body:
            if not isinstance(s, (Load, Store)) or wrap(s.index).op in ("sym", "const"):
                continue
            if self.step_of(s) in (0, 1):
                (shared if s.index in seen else seen).add(s.index)
        return shared

    def loop(self, loop: Loop, in_lanes: bool) -> None:
        """One phase: a loop over a SERIAL axis, with its reductions' accumulators before it and their results after."""
        axis = self.kernel.axis(loop.axis)
        if axis.role is not Role.SERIAL:
            raise UnsupportedError(f"C++ kernels have no {axis.role.value} axes; lower {axis.name} to a serial one.")
        carried = self.carried(loop, axis)
        reduces = [s for s in loop.body if isinstance(s, Reduce) and s.axis == axis.name]
        columns = self.column_sums(loop, axis)
        pieces = self.loop_pieces(loop, axis)
        for parts, made in carried.items():
            if self.side == 1:
                self.w.line(f"{made.kind} {self.names.give(parts)}{made.start};")
                continue
            self.names.of[parts] = self.array(made.kind, parts)
            if made.start:
                self.w.line(f"for (auto& start : {self.names.of[parts]}) start = {made.kind}{made.start};")
        self.names.of |= {parts_name(r): self.names.of[parts_name(first)] for r, first in sharing(reduces).items()}
        for piece in reversed(pieces) if loop.backwards else pieces:
            outer, known, stored = self.names, self.known, self.rounded_by_store
            self.names = outer.inner()
            inside = replace(loop, body=self.enter(loop.body, piece))
            if self.side == 1:
                self.loop_piece(inside, axis, piece, carried, in_lanes, loop)
            elif carried:
                self.strip(inside, axis, piece, carried)
            else:
                start, stop = map(self.dim, span(piece))
                head = _plain_loop(self.names.give_index(axis.name), start, stop, loop.backwards)
                with self.w.block(head, "}"), self.each_vector():
                    self.run(inside.body, True)
            self.names, self.known, self.rounded_by_store = outer, known, stored
        self.results(reduces, axis is self.lane_axis)
        for name in columns:
            self.w.line(f"{name}.finish();")

    def loop_piece(
        self, loop: Loop, axis: Axis, piece: Bound, carried: Mapping[str, Accumulator], in_lanes: bool, phase: Loop
    ) -> None:
        """The part of `phase` that runs over one piece of its axis."""
        own = [s for s in loop.body if isinstance(s, Reduce) and s.axis == axis.name]
        lane, reduces = axis is self.lane_axis, bool(own)
        start, extent = map(self.dim, span(piece))
        name = self.names.give_index(axis.name)
        head, tail = _plain_loop(name, start, extent, loop.backwards), "}"
        if reduces or lane:
            carries = " ".join(f"{self.names.of[parts]}.carry();" for parts, made in carried.items() if made.carries)
            way = ("reduce_long" if carries else "reduce") if reduces else "for"
            function = f"{way}_{'vectors' if lane else 'each'}{'_back' if loop.backwards else ''}"
            # Moments start from a guess, which a short first piece betters.
            function += "<1>" if any(s.op in MOMENTS for s in own) else ""
            lambda_params = f"long {name}{', long n' if lane else ''}{', int part' if reduces else ''}"
            head = f"{function}({extent}, [&]({lambda_params}) INLINE {{"
            more = [f"[&]() INLINE {{ {carries} }}"] * bool(carries) + [start] * bool(piece.lo)
            tail = f"{', '.join(['}', *more])});"
        with self.w.block(head, tail):
            if self.fetching is not None and self.fetching.phase is phase:
                self.fetch_ahead(self.fetching)
            self.statements(loop.body, in_lanes or lane)
            for s in walk(loop.body):
                if isinstance(s, Reduce) and s.axis == axis.name and s.out in self.columns:
                    self.w.line(f"{self.columns[s.out]}.next();")

    def results(self, reduces: Sequence[Reduce], lane: bool) -> None:
        """The results of a phase's reductions; of vectors side by side in arrays."""
        wide = [r for r in reduces if self.side > 1 and self.is_vector(r.out)]
        for r in (r for r in reduces if r not in wide):
            parts = self.names.of[parts_name(r)] + ("[0]" if self.side > 1 else "")
            kind, text = held(r.out.dtype, self.is_vector(r.out)), self.result(r, parts, lane)
            self.w.line(f"const {kind} {self.names.give(r.out.name)} = {text};")
        arrays = {r: self.array(held(r.out.dtype, True), r.out.name) for r in wide}
        if arrays:
            with self.each_vector():
                for r, array in arrays.items():
                    parts = f"{self.names.of[parts_name(r)]}[{self.beside}]"
                    self.w.line(f"{array}[{self.beside}] = {self.result(r, parts, False)};")
        self.names.of |= {r.out.name: f"{array}[{self.beside}]" for r, array in arrays.items()}

    @abstractmethod
    def strip(self, loop: Loop, axis: Axis, piece: Bound, carried: Mapping[str, Accumulator]) -> None:
        """One piece of a loop whose steps carry something for each of several vectors."""

    def fetch_ahead(self, fetch: Fetch) -> None:
        """Ask for what will be read at these lanes later."""
        row = self.grid[-1].name
        loads = [s for s in fetch.loads if all(holds(b, self.known) for b in s.within)]
        if fetch.far:
            self.ask(loads, {}, fetch.far, "<2>")
        self.ask(loads, {} if fetch.near else {row: f"({self.names.index[row]} + 1)"}, fetch.near)

    def ask(self, loads: Sequence[Load], there: Mapping[str, str], far: int = 0, level: str = "") -> None:
        """Ask for what loads read at the indices `there`, or `far` bytes further on; past the end of a buffer nothing
        comes of it. `level` is "<2>" for the second-level cache.
        """
        assert self.lane_axis is not None
        names, lane = self.names, self.names.index[self.lane_axis.name]
        self.names = replace(names, index={**names.index, **there})
        for s in loads:
            at = wrap(s.index) + far // self.kernel.param(s.param).dtype.bytes
            self.w.line(f"prefetch{level}({offset(self.buffers[s.param], self.index(at))}, {lane});")
        self.names = names

    # ---- reductions ------------------------------------------------------------------------------------------------

    def carried(self, loop: Loop, axis: Axis) -> dict[str, Accumulator]:
        """What the loop over `axis` carries from step to step: accumulators by name, one for all that share it."""
        lane, found = axis is self.lane_axis, dict[str, Accumulator]()
        for s in sharing([s for s in loop.body if isinstance(s, Reduce) and s.out not in self.columns]).values():
            if s.axis != axis.name:
                raise UnsupportedError(f"C++ kernels cannot {s.op} over {s.axis} inside the loop over {axis.name}.")
            vector, lanes = lane or self.is_vector(s.arg), self.lanes if lane else 0
            found[parts_name(s)] = accumulator(s, axis.extent, vector, lanes, self.side)
            self.adding.add(s.out)
        for scan in [s for s in loop.body if isinstance(s, Scan)]:
            found[parts_name(scan)] = scanner(scan, lane or self.is_vector(scan.out), lane)
        return found

    def column_sums(self, loop: Loop, axis: Axis) -> list[str]:
        """Declare what the reductions over the rows of `axis` hold that stand in loops along the lanes: rows of memory,
        with a place a column.
        """
        inner = [s for s in walk(loop.body) if isinstance(s, Reduce) and s.axis == axis.name and s not in loop.body]
        lane = self.lane_axis
        if inner and (lane is None or not isinstance(lane.extent, int)):
            raise UnsupportedError("C++ kernels reduce over rows around columns of a fixed number only.")
        for s in inner:
            assert lane is not None and isinstance(lane.extent, int)
            # A part of joined columns may begin anywhere, and with it the last vector.
            kind = columns_of(s, (-(-lane.extent // self.lanes) + self.joined) * self.lanes)
            self.columns[s.out] = self.names.fresh(f"{s.out.name}_columns")
            self.w.line(f"{kind.kind} {self.columns[s.out]}{kind.start};")
        return [self.columns[s.out] for s in inner]

    def value(self, v: Value) -> str:
        """The C++ name of a value that is in scope, or where it lies."""
        if v in self.columns and self.lane_axis is not None:
            return f"{self.columns[v]}.value({self.names.index[self.lane_axis.name]})"
        return super().value(v)

    def result(self, r: Reduce, parts: str, over_lanes: bool) -> str:
        """The result of a reduction from its accumulator."""
        text = result_of(r, parts, over_lanes)
        return f"to<i64v>({text})" if r.op in PLACES and self.is_vector(r.out) else text

    def accumulate(self, r: Reduce) -> None:
        """Add this step's part to the accumulator, unless another reduction that shares it does."""
        if r.out in self.columns and self.lane_axis is not None:
            where = self.names.index[self.lane_axis.name] + (", n" if self.joined else "")
            self.w.line(f"{self.columns[r.out]}.add({self.value(r.arg)}, {where});")
            return
        if r.out not in self.adding:
            return
        lane = self.lane_axis is not None and r.axis == self.lane_axis.name
        part = part_of(r, self.value(r.arg), self.is_vector(r.arg), lane, self.names.index[r.axis])
        self.w.line(f"{self.names.of[parts_name(r)]}.add({part}, {'n, ' if lane else ''}part);")

    def scan(self, s: Scan) -> None:
        """out = the running total, this step's part in it."""
        vector, kind = self.is_vector(s.out), scan_type(s)
        arg = converted(self.value(s.arg), s.arg.dtype, kind, self.is_vector(s.arg))
        arg = splat(arg, kind) if vector and not self.is_vector(s.arg) else arg
        self.define(s.out, converted(f"{self.names.of[parts_name(s)]}.next({arg})", kind, s.out.dtype, vector))


def _plain_loop(name: str, start: str, stop: str, backwards: bool) -> str:
    if backwards:
        return f"for (long {name} = {stop} - 1; {name} >= {start}; --{name}) {{"
    return f"for (long {name} = {start}; {name} < {stop}; ++{name}) {{"
