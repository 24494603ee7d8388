"""Kernel IR to C++ text. In: one Kernel and a vector level. Out: one header-free C++17 translation unit.

The function is `extern "C" void name(void* const* buffers, const long* sizes)`: buffers are the parameters that are not
scratch, in order, sizes the kernel's symbols. Where values tell places it is an `int`: 1 where one was outside, and
then what the kernel wrote is worth nothing. A packed kernel takes a third argument, the number of members: buffers
and sizes then hold one row a member, and threads share the programs of all members. A value that varies over the lane
axis (the one walked in a block of more than one index) is a vector; any other is a scalar. What a full vector does and
what the shorter last one does is one lambda, compiled for both. Programs of all GRID axes run under one OpenMP loop
when they are worth it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit import cpp_prelude
from interfuse.emit.cpp_facts import (
    work_of,
)
from interfuse.emit.cpp_lines import offset
from interfuse.emit.cpp_names import entry
from interfuse.emit.cpp_programs import Programs
from interfuse.emit.cpp_reduce import (
    MOMENTS,
    PLACES,
    Accumulator,
    accumulator,
    part_of,
    parts_name,
    result_of,
    scan_type,
    scanner,
    sharing,
)
from interfuse.emit.cpp_types import VECTOR_BYTES, converted, held, splat, stored
from interfuse.emit.pieces import span
from interfuse.ir.index import Dim, Expr, unwrap, wrap
from interfuse.lower.bounds import holds
from interfuse.lower.kernel import (
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
)

PARALLEL_FROM = 1 << 17
"""Work (about one unit an operation and element) from which a kernel runs on several threads."""


def emit(kernel: Kernel, vector: str, streaming: frozenset[str] = frozenset()) -> str:
    """The C++ source of `kernel` for a vector level (avx512, avx2, portable; native is written as avx512).

    `streaming` names output parameters that are stored past the caches. UnsupportedError says what has no C++ form.
    """
    body = _Emitter(kernel, VECTOR_BYTES[vector], streaming)
    code = body.function()
    head = Writer()
    for line in "\n".join(kernel.doc or (kernel.name,)).splitlines():
        head.line(f"// {line}".rstrip("\\ "))  # a backslash would join the next line to the comment
    head.line(f"// Family: {kernel.family}. {body.summary()}")
    prelude = cpp_prelude.select(f"{code} LANES")
    return (
        f"{head.text()}\n#define LANES {body.lanes}  // elements a vector\n\n"
        f"namespace {{\n\n{prelude}\n\n}}  // namespace\n\n{code}"
    )


class _Emitter(Programs):
    """Writes one kernel's function; `names` is the scope being written."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        super().__init__(kernel, register_bytes, streaming)
        self.beside = self.names.fresh("beside")  # which of a program's vectors is being written
        self.in_tile, self.member = False, ""
        self.adding: set[Value] = set()  # of reductions that share an accumulator the first

    def summary(self) -> str:
        """One sentence on how the kernel runs."""
        over = " and ".join(f"{a.name} ({a.extent})" for a in self.grid) or "nothing: one program"
        lane = f"{self.lanes} elements of {self.lane_axis.name}" if self.lane_axis else "one element"
        return f"Programs over {over}; {lane} at a time."

    # ---- the function and its loops -------------------------------------------------------------------------------

    def function(self) -> str:
        """The text of the kernel's function."""
        kernel, body = self.kernel, Writer()
        self.names.taken.add(entry(kernel.name))
        if kernel.packed:
            self.names.taken |= {"first", "last", "m", "members", "programs"}
            self.member = self.names.fresh("member")
        arguments = [p for p in kernel.params if p.mode != "scratch"]
        opening = []
        for k, name in enumerate(kernel.symbols):
            opening.append((f"const long {self.names.give_index(name)} = sizes[{k}];", self.names.index[name]))
        for k, p in enumerate(arguments):
            pointer = self.buffers[p.name] = self.names.fresh(f"{p.name}_ptr")
            kind = f"{'const ' if p.mode == 'in' else ''}{stored(p.dtype)}*"
            opening.append((f"{kind} {pointer} = ({kind})buffers[{k}];", pointer))
        with self.w.block():
            if kernel.packed:
                self.members_programs()
            else:
                self.programs()
        code = self.w.text()
        words = set(re.findall(r"\w+", code))
        used = [line for line, name in opening if name in words]
        sizes = "const long* sizes" if any("sizes[" in line for line in used) else "const long*"
        if kernel.packed:
            body.line("// Programs `first` to `last` of one member.")
            body.line(f"static {self.kind} {self.member}(void* const* buffers, {sizes}, long first, long last) {{")
        else:
            body.line(f'extern "C" {self.kind} {entry(kernel.name)}(void* const* buffers, {sizes}) {{')
        with body.block():
            for line in (*used, *self.first_checks()):
                body.line(line)
        members = self.pack(len(arguments), opening) if kernel.packed else ""
        return f"{body.text()}\n{code}{self.back}}}\n{members}"

    # ---- packs -----------------------------------------------------------------------------------------------------

    def pack(self, buffers: int, opening: Sequence[tuple[str, str]]) -> str:
        """The function that is launched: it tells how many programs a member has and what each costs."""
        axis, step = self.split()
        extent = self.dim(axis.extent)
        others = [a.extent for a in self.grid if a is not axis]
        work = self.dim(functools.reduce(lambda w, d: w * d, others, work_of(self.kernel, self.kernel.body)))
        count = extent if step == "1" else f"({extent} + {step} - 1) / {step if step == 'LANES' else f'({step})'}"
        each, symbols = ("" if step == "1" else f" * {step}"), len(self.kernel.symbols)
        named = [line for line, name in opening if re.search(rf"\b{name}\b", f"{count} {work}")]
        w = Writer()
        w.line()
        run = f"{self.member}(buffers + m * {buffers}, sizes + m * {symbols}, first, last)"
        run = f"if ({run}) __atomic_store_n(&{self.outside}, 1, __ATOMIC_RELAXED)" if self.kind == "int" else run
        name = entry(self.kernel.name)
        w.line(f'extern "C" {self.kind} {name}(void* const* buffers, const long* sizes, long members) {{')
        with w.block():
            if self.kind == "int":
                w.line(f"int {self.outside} = 0;")
            w.line(f"const auto programs = [&](long {'m' if named else ''}) {{")
            with w.block():
                for line in named:
                    w.line(re.sub(r"sizes\[(\d+)\]", rf"sizes[m * {symbols} + \1]", line))
                w.line(f"return Programs{{{count}, {work}{each}}};")
            w.line("};")
            w.line(f"run_members(members, {PARALLEL_FROM}, programs, [&](long m, long first, long last) {{")
            with w.block():
                w.line(f"{run};")
            w.line("});")
        return f"{w.text()}{self.back}}}\n"

    def programs(self) -> None:
        """The loop over all programs, on several threads where the work is worth it."""
        if not self.grid:
            self.program(self.kernel.body)
            return
        condition = self.parallel_condition()
        collapse = f" collapse({len(self.grid)})" if len(self.grid) > 1 else ""
        streams = self.streams()
        clause = f" if ({condition})" if condition not in ("true", "false") else ""
        pieces = self.lane_pieces()
        if condition == "false":
            for piece in pieces:
                self.grid_loops(piece)
        elif streams or len(pieces) > 1:
            self.w.line(f"#pragma omp parallel{clause}")
            with self.w.block("{", "}"):
                for piece in pieces:
                    self.w.line(f"#pragma omp for schedule(static) nowait{collapse}")
                    self.grid_loops(piece)
                if streams:
                    self.w.line("finish_streams();")
        else:
            self.w.line(f"#pragma omp parallel for schedule(static){collapse}{clause}")
            self.grid_loops(pieces[0])
        if streams and condition == "false":
            self.w.line("finish_streams();")

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

    def each_beside(self, body: Sequence[Stmt], in_lanes: bool, keep: bool = True) -> None:
        """`body` for each vector of a program; what it makes waits in arrays where `keep`."""
        if not body:
            return
        lane, outer = self.lane_axis, self.names
        assert lane is not None
        made = [s.out for s in body if isinstance(s, (Load, Let))] if keep else []
        arrays = {v.name: self.names.fresh(v.name) for v in made}
        for v in made:
            self.w.line(f"{held(v.dtype, True)} {arrays[v.name]}[{self.side}];")
        self.names, self.in_tile = outer.inner(), True
        piece = self.lane_piece
        start, extent = self.names.index[lane.name], self.dim(lane.extent if piece is None else span(piece)[1])
        name = self.names.give_index(lane.name)
        head = f"side_by_side<{self.side}>({start}, {extent}, [&](long {name}, long n, int {self.beside}) INLINE {{"
        with self.w.block(head, "});"):
            self.run(body, in_lanes)
            for v in made:
                self.w.line(f"{arrays[v.name]}[{self.beside}] = {self.names.of[v.name]};")
        self.names, self.in_tile = outer, False
        self.names.of |= {v: f"{array}[{self.beside}]" for v, array in arrays.items()}

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
            else:
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
        lane = axis is self.lane_axis
        reduces = [s for s in loop.body if isinstance(s, Reduce)]
        shared = sharing(reduces)
        long_sums = [r for r in dict.fromkeys(shared.values()) if self.declare(r, axis)]
        self.adding |= {r.out for r in shared.values()}
        self.names.of |= {parts_name(r): self.names.of[parts_name(first)] for r, first in shared.items()}
        for scan in [s for s in loop.body if isinstance(s, Scan)]:
            self.accumulators(parts_name(scan), scanner(scan, lane or self.is_vector(scan.out), lane))
        pieces = self.loop_pieces(loop, axis)
        for piece in reversed(pieces) if loop.backwards else pieces:
            self.loop_piece(loop, piece, long_sums, in_lanes)
        for r in reduces:
            over_lanes = lane and not self.is_vector(r.out)
            result = result_of(r, self.names.of[parts_name(r)], over_lanes)
            if r.op in PLACES and self.is_vector(r.out):
                result = f"to<i64v>({result})"
            kind, name = held(r.out.dtype, self.is_vector(r.out)), self.names.give(r.out.name)
            if self.side == 1 or not self.is_vector(r.out):
                self.w.line(f"const {kind} {name} = {self.copies(result)[0]};")
            else:
                self.w.line(f"const {kind} {name}[{self.side}] = {{{', '.join(self.copies(result))}}};")
                self.names.of[r.out.name] = f"{name}[{self.beside}]"

    def loop_piece(self, loop: Loop, piece: Bound, long_sums: list[Reduce], in_lanes: bool) -> None:
        """The part of a phase that runs over one piece of its axis."""
        axis = self.kernel.axis(loop.axis)
        lane, reduces = axis is self.lane_axis, any(isinstance(s, Reduce) for s in loop.body)
        outer, known, stored = self.names, self.known, self.rounded_by_store
        self.names = outer.inner()
        start, extent = map(self.dim, span(piece))
        name = self.names.give_index(axis.name)
        head, tail = f"for (long {name} = {start}; {name} < {extent}; ++{name}) {{", "}"
        if loop.backwards:
            head = f"for (long {name} = {extent} - 1; {name} >= {start}; --{name}) {{"
        if reduces or lane:
            carries = " ".join(f"{p}.carry();" for r in long_sums for p in self.copies(self.names.of[parts_name(r)]))
            way = ("reduce_long" if long_sums else "reduce") if reduces else "for"
            function = f"{way}_{'vectors' if lane else 'each'}{'_back' if loop.backwards else ''}"
            # Moments start from a guess, which a short first piece betters.
            function += "<1>" if any(r.op in MOMENTS for r in long_sums) else ""
            lambda_params = f"long {name}{', long n' if lane else ''}{', int part' if reduces else ''}"
            head = f"{function}({extent}, [&]({lambda_params}) INLINE {{"
            more = [f"[&]() INLINE {{ {carries} }}"] * bool(long_sums) + [start] * bool(piece.lo)
            tail = f"{', '.join(['}', *more])});"
        body = self.enter(loop.body, piece)
        with self.w.block(head, tail):
            if loop is self.fetching:
                self.fetch_ahead()
            if self.side > 1:
                self.each_beside(body, in_lanes, keep=False)
            else:
                self.statements(body, in_lanes or lane)
        self.names, self.known, self.rounded_by_store = outer, known, stored

    def copies(self, text: str) -> list[str]:
        """`text` for each of a program's vectors."""
        return [text.replace(f"[{self.beside}]", f"[{k}]") for k in range(self.side)]

    def accumulators(self, parts: str, made: Accumulator) -> None:
        """Declare an accumulator under the name of a value's parts, or one for each of a program's vectors."""
        name = self.names.give(parts)
        if self.side == 1:
            self.w.line(f"{made.kind} {name}{made.start};")
            return
        starts = ", ".join([f"{made.kind}{made.start}"] * self.side)
        self.w.line(f"{made.kind} {name}[{self.side}]{f' = {{{starts}}}' if made.start else ''};")
        self.names.of[parts] = f"{name}[{self.beside}]"

    def fetch_ahead(self) -> None:
        """Ask for what the next program will read at these lanes; past the last one nothing comes of it."""
        assert self.lane_axis is not None
        names, row, lane = self.names, self.grid[-1].name, self.names.index[self.lane_axis.name]
        self.names = replace(names, index={**names.index, row: f"({names.index[row]} + 1)"})
        for s in (s for s in self.fetched if all(holds(b, self.known) for b in s.within)):
            self.w.line(f"prefetch({offset(self.buffers[s.param], self.index(s.index))}, {lane});")
        self.names = names

    # ---- reductions ------------------------------------------------------------------------------------------------

    def declare(self, r: Reduce, axis: Axis) -> bool:
        """Declare the accumulator of a reduction over `axis`; True where it carries into double."""
        if r.axis != axis.name:
            raise UnsupportedError(f"C++ kernels cannot {r.op} over {r.axis} inside the loop over {axis.name}.")
        lane = axis is self.lane_axis
        made = accumulator(r, axis.extent, lane or self.is_vector(r.arg), self.lanes if lane else 0, self.side)
        self.accumulators(parts_name(r), made)
        return made.carries

    def accumulate(self, r: Reduce) -> None:
        """Add this step's part to the accumulator, unless another reduction that shares it does."""
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

    def parallel_condition(self) -> str:
        """Whether threads pay: "true", "false", or a C++ condition on the sizes."""
        work: Dim = work_of(self.kernel, self.kernel.body)
        for axis in self.grid:
            work = work * axis.extent
        work = unwrap(work)
        if isinstance(work, int):
            return "true" if work >= PARALLEL_FROM else "false"
        return f"{self.index(work)} >= {PARALLEL_FROM}"
