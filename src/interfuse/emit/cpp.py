"""Kernel IR to C++ text. In: one Kernel and a vector level. Out: one header-free C++17 translation unit.

The function is `extern "C" void name(void* const* buffers, const long* sizes)`: buffers are the parameters that are not
scratch, in order, sizes the kernel's symbols. A value that varies over the lane axis (the one walked in a block of more
than one index) is a vector; any other is a scalar. What a full vector does and what the shorter last one does is one
lambda, compiled for both. Programs of all GRID axes run under one OpenMP loop when they are worth it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit import cpp_prelude
from interfuse.emit.cpp_facts import (
    check_divisions,
    fetched_ahead,
    flat,
    lane_axis_of,
    lane_count,
    operator_text,
    rounded_by_store,
    scratch_elements,
    work_of,
)
from interfuse.emit.cpp_names import Names
from interfuse.emit.cpp_reduce import PLACES, accumulator, part_of, scan_type, scanner
from interfuse.emit.cpp_types import VECTOR_BYTES, converted, held, literal, rounded, splat, stored
from interfuse.ir.dtypes import ALL, BOOL, I64, compute_type
from interfuse.ir.index import Dim, Expr, coefficient, symbols, text, unwrap, wrap
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Reduce, Role, Scan, Stmt, Store, Value

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


class _Emitter:
    """Writes one kernel's function; `names` is the scope being written."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        self.kernel, self.streaming = kernel, streaming
        self.grid = [a for a in kernel.axes if a.role is Role.GRID]
        self.lane_axis = lane_axis_of(kernel)
        self.lanes = lane_count(kernel, self.lane_axis, register_bytes)
        self.w, self.names = Writer(), Names()
        self.buffers: dict[str, str] = {}
        self.rounded_by_store = rounded_by_store(kernel)
        self.fetching, self.fetched = fetched_ahead(kernel, self.lane_axis)

    def summary(self) -> str:
        """One sentence on how the kernel runs."""
        over = " and ".join(f"{a.name} ({a.extent})" for a in self.grid) or "nothing: one program"
        lane = f"{self.lanes} elements of {self.lane_axis.name}" if self.lane_axis else "one element"
        return f"Programs over {over}; {lane} at a time."

    # ---- the function and its loops -------------------------------------------------------------------------------

    def function(self) -> str:
        """The text of the kernel's function."""
        kernel, body = self.kernel, Writer()
        self.names.taken.add(kernel.name)
        arguments = [p for p in kernel.params if p.mode != "scratch"]
        opening = []
        for k, name in enumerate(kernel.symbols):
            opening.append((f"const long {self.names.give_index(name)} = sizes[{k}];", self.names.index[name]))
        for k, p in enumerate(arguments):
            pointer = self.buffers[p.name] = self.names.fresh(f"{p.name}_ptr")
            kind = f"{'const ' if p.mode == 'in' else ''}{stored(p.dtype)}*"
            opening.append((f"{kind} {pointer} = ({kind})buffers[{k}];", pointer))
        with self.w.block():
            self.programs()
        code = self.w.text()
        words = set(re.findall(r"\w+", code))
        used = [line for line, name in opening if name in words]
        sizes = "const long* sizes" if any("sizes[" in line for line in used) else "const long*"
        body.line(f'extern "C" void {kernel.name}(void* const* buffers, {sizes}) {{')
        with body.block():
            for line in used:
                body.line(line)
        return f"{body.text()}\n{code}}}\n"

    def programs(self) -> None:
        """The loop over all programs, on several threads where the work is worth it."""
        if not self.grid:
            self.program()
            return
        condition = self.parallel_condition()
        collapse = f" collapse({len(self.grid)})" if len(self.grid) > 1 else ""
        streams = any(isinstance(s, Store) and s.param in self.streaming for s in flat(self.kernel.body))
        clause = f" if ({condition})" if condition not in ("true", "false") else ""
        if condition == "false":
            self.grid_loops()
        elif streams:
            self.w.line(f"#pragma omp parallel{clause}")
            with self.w.block("{", "}"):
                self.w.line(f"#pragma omp for schedule(static) nowait{collapse}")
                self.grid_loops()
                self.w.line("finish_streams();")
        else:
            self.w.line(f"#pragma omp parallel for schedule(static){collapse}{clause}")
            self.grid_loops()
        if streams and condition == "false":
            self.w.line("finish_streams();")

    def grid_loops(self) -> None:
        """One `for` a GRID axis, the bodies nested in the last one."""
        for axis in self.grid:
            extent = self.dim(axis.extent)
            name = self.names.give_index(axis.name)
            step = f"{name} += LANES" if axis is self.lane_axis else f"++{name}"
            last = " {" if axis is self.grid[-1] else ""
            self.w.line(f"for (long {name} = 0; {name} < {extent}; {step}){last}")
        with self.w.block(None, "}"):
            lane = self.lane_axis
            if lane is None or lane.role is not Role.GRID:
                self.program()
            elif isinstance(lane.extent, int) and lane.extent % self.lanes == 0:
                self.w.line("constexpr long n = LANES;")
                self.program()
            else:
                left = f"{self.dim(lane.extent)} - {self.names.index[lane.name]}"
                with self.w.block(f"lanes_left({left}, [&](long n) INLINE {{", "});"):
                    self.program()

    def program(self) -> None:
        """Scratch arrays, then the kernel's statements."""
        for p in self.kernel.params:
            if p.mode == "scratch":
                self.buffers[p.name] = self.names.fresh(p.name)
                self.w.line(f"alignas(64) {stored(p.dtype)} {self.buffers[p.name]}[{scratch_elements(p)}];")
        self.statements(self.kernel.body, in_lanes=self.lane_axis is not None and self.lane_axis.role is Role.GRID)

    def statements(self, body: Sequence[Stmt], in_lanes: bool) -> None:
        """The statements of one scope; indices that several of them use are named first, where first needed."""
        shared = self.shared_indices(body)
        named: dict[Expr, str] = {}
        for s in body:
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

    def shared_indices(self, body: Sequence[Stmt]) -> set[Expr]:
        """Composite indices that at least two accesses of this scope use as they are."""
        seen: set[Expr] = set()
        shared: set[Expr] = set()
        for s in body:
            if not isinstance(s, (Load, Store)) or wrap(s.index).op in ("sym", "const"):
                continue
            if self.lane_step(s.index) in (0, 1):
                (shared if s.index in seen else seen).add(s.index)
        return shared

    def loop(self, loop: Loop, in_lanes: bool) -> None:
        """One phase: a loop over a SERIAL axis, with its reductions' accumulators before it and their results after."""
        axis = self.kernel.axis(loop.axis)
        if axis.role is not Role.SERIAL:
            raise UnsupportedError(f"C++ kernels have no {axis.role.value} axes; lower {axis.name} to a serial one.")
        lane = axis is self.lane_axis
        reduces = [s for s in loop.body if isinstance(s, Reduce)]
        long_sums = [r for r in reduces if self.declare(r, axis)]
        for scan in [s for s in loop.body if isinstance(s, Scan)]:
            made = scanner(scan, lane or self.is_vector(scan.out), lane)
            self.w.line(f"{made.kind} {self.names.give(_parts(scan))}{made.start};")
        outer, self.names = self.names, self.names.inner()
        extent = self.dim(axis.extent)
        name = self.names.give_index(axis.name)
        head, tail = f"for (long {name} = 0; {name} < {extent}; ++{name}) {{", "}"
        if reduces or lane:
            carries = " ".join(f"{self.names.of[_parts(r)]}.carry();" for r in long_sums)
            walk = ("reduce_long" if long_sums else "reduce") if reduces else "for"
            function = f"{walk}_{'vectors' if lane else 'each'}"
            lambda_params = f"long {name}{', long n' if lane else ''}{', int part' if reduces else ''}"
            head = f"{function}({extent}, [&]({lambda_params}) INLINE {{"
            tail = f"}}, [&]() INLINE {{ {carries} }});" if long_sums else "});"
        with self.w.block(head, tail):
            if loop is self.fetching:
                self.fetch_ahead()
            self.statements(loop.body, in_lanes or lane)
        self.names = outer
        for r in reduces:
            over_lanes = lane and not self.is_vector(r.out)
            result = f"{self.names.of[_parts(r)]}.{'over_lanes' if over_lanes else 'value'}()"
            if r.op in PLACES and self.is_vector(r.out):
                result = f"to<i64v>({result})"
            self.w.line(f"const {held(r.out.dtype, self.is_vector(r.out))} {self.names.give(r.out.name)} = {result};")

    def fetch_ahead(self) -> None:
        """Ask for what the next program will read at these lanes; past the last one nothing comes of it."""
        names, row = self.names, self.grid[-1].name
        self.names = replace(names, index={**names.index, row: f"({names.index[row]} + 1)"})
        for s in self.fetched:
            self.w.line(f"prefetch({_offset(self.buffers[s.param], self.index(s.index))});")
        self.names = names

    # ---- reductions ------------------------------------------------------------------------------------------------

    def declare(self, r: Reduce, axis: Axis) -> bool:
        """Declare the accumulator of a reduction over `axis`; True where it carries into double."""
        if r.axis != axis.name:
            raise UnsupportedError(f"C++ kernels cannot {r.op} over {r.axis} inside the loop over {axis.name}.")
        lane = axis is self.lane_axis
        made = accumulator(r, axis.extent, lane or self.is_vector(r.arg), self.lanes if lane else 1)
        self.w.line(f"{made.kind} {self.names.give(_parts(r))}{made.start};")
        return made.carries

    def accumulate(self, r: Reduce) -> None:
        """Add this step's part to the accumulator."""
        lane = self.lane_axis is not None and r.axis == self.lane_axis.name
        part = part_of(r, self.value(r.arg), self.is_vector(r.arg), lane, self.names.index[r.axis])
        self.w.line(f"{self.names.of[_parts(r)]}.add({part}, {'n, ' if lane else ''}part);")

    def scan(self, s: Scan) -> None:
        """out = the running total, this step's part in it."""
        vector, kind = self.is_vector(s.out), scan_type(s)
        arg = converted(self.value(s.arg), s.arg.dtype, kind, self.is_vector(s.arg))
        arg = splat(arg, kind) if vector and not self.is_vector(s.arg) else arg
        self.define(s.out, converted(f"{self.names.of[_parts(s)]}.next({arg})", kind, s.out.dtype, vector))

    # ---- memory ----------------------------------------------------------------------------------------------------

    def load(self, s: Load, at: str | None) -> None:
        """out = param[index]: a vector from consecutive elements, a scalar, or element by element."""
        pointer, vector, step = self.buffers[s.param], self.is_vector(s.out), self.lane_step(s.index)
        dtype = self.kernel.param(s.param).dtype
        where = at or self.index(s.index)
        if step == 0:
            expression = f"{pointer}[{where}]"
            expression = splat(f"{held(dtype, False)}({expression})", dtype) if vector else expression
        elif not vector:
            raise UnsupportedError(f"{s.out.name} is read at a lane's index but does not vary over the lanes.")
        elif step == 1:
            expression = f"load({_offset(pointer, where)}, n)"
        else:
            element = f"[&](long lane) INLINE {{ return {pointer}[{self.index(s.index, by_lane=True)}]; }}"
            kind = held(dtype, True)
            expression = f"gather_bool(n, {element})" if dtype is BOOL else f"gather<{kind}>(n, {element})"
        self.define(s.out, converted(expression, dtype, s.out.dtype, vector))

    def store(self, s: Store, at: str | None) -> None:
        """param[index] = arg, converted; streamed past the caches where asked."""
        param, vector, step = self.kernel.param(s.param), self.is_vector(s.arg), self.lane_step(s.index)
        pointer, value = self.buffers[s.param], self.value(s.arg)
        stored(param.dtype)
        value = converted(value, s.arg.dtype, compute_type(param.dtype), vector)  # a store rounds to narrow types
        where = at or self.index(s.index)
        if step == 0:
            if vector:
                raise UnsupportedError(f"{s.arg.name} varies over the lanes but is stored to {s.param} at one index.")
            self.w.line(f"{pointer}[{where}] = {value};")
            return
        value = value if vector else splat(value, param.dtype)
        if step == 1:
            self.w.line(f"{'stream' if s.param in self.streaming else 'store'}({_offset(pointer, where)}, {value}, n);")
        else:
            element = f"{pointer}[{self.index(s.index, by_lane=True)}] = element;"
            self.w.line(f"scatter({value}, n, [&](long lane, auto element) INLINE {{ {element} }});")

    # ---- values ----------------------------------------------------------------------------------------------------

    def let(self, s: Let) -> None:
        """out = op(args) by the operator table's C++ text."""
        attrs, vector = dict(s.attrs), self.is_vector(s.out)
        if s.op == "const":
            constant = literal(attrs["value"], s.out.dtype)
            self.names.of[s.out.name] = splat(constant, s.out.dtype) if vector else constant
            return
        if s.op == "index":
            position = self.index_value(wrap(attrs["expr"]), vector)
            self.define(s.out, converted(position, I64, s.out.dtype, vector), s.note)
            return
        args = [self.value(a) for a in s.args]
        reach = any(self.is_vector(a) for a in s.args)
        if reach and not vector:
            raise UnsupportedError(f"{s.out.name} does not vary over the lanes but its operands do.")
        if s.out.name in self.rounded_by_store:
            self.names.of[s.out.name] = args[0]
            return
        if s.op == "cast":
            expression = converted(args[0], s.args[0].dtype, s.out.dtype, reach)
        elif s.op == "round":
            expression = rounded(args[0], ALL[attrs["to"]])
        else:
            expression = operator_text(s.op, s.args[-1].dtype).format(*args)
        self.define(s.out, splat(expression, s.out.dtype) if vector and not reach else expression, s.note)

    def index_value(self, e: Expr, vector: bool) -> str:
        """An index expression as a value: a long, or a vector of long over the lanes."""
        step = self.lane_step(e)
        if not vector:
            return self.index(e)
        if step is None:
            return f"gather<i64v>(LANES, [&](long lane) INLINE {{ return {self.index(e, by_lane=True)}; }})"
        lanes = "to<i64v>(LANE)" if step == 1 else f"to<i64v>(LANE) * {step}L"
        return f"{self.index(e)} + {lanes}" if step else splat(self.index(e), I64)

    def define(self, out: Value, expression: str, note: str = "") -> None:
        """A line `const type name = expression;` with the note as a comment."""
        kind = held(out.dtype, self.is_vector(out))
        self.w.line(f"const {kind} {self.names.give(out.name)} = {expression};" + (f"  // {note}" if note else ""))

    def value(self, v: Value) -> str:
        """The C++ name of a value that is in scope."""
        if v.name not in self.names.of:
            raise UnsupportedError(f"{v.name} is used outside its phase; on a serial axis scratch has to keep it.")
        return self.names.of[v.name]

    def is_vector(self, v: Value) -> bool:
        """True where the value differs from lane to lane."""
        return self.lane_axis is not None and self.lane_axis.name in v.axes

    # ---- indices ---------------------------------------------------------------------------------------------------

    def lane_step(self, e: Dim) -> int | None:
        """How far apart the elements of neighbouring lanes lie; None where that is not constant."""
        lane = next((s for s in symbols(e) if self.lane_axis is not None and s.name == self.lane_axis.name), None)
        return 0 if lane is None else coefficient(e, lane)

    def index(self, e: Dim, by_lane: bool = False) -> str:
        """An index expression in C++, at the first lane or, `by_lane`, at lane `lane`."""
        check_divisions(wrap(e))

        def spell(name: str) -> str:
            plain = self.names.index.get(name)
            if plain is None:
                raise UnsupportedError(f"the index symbol {name} is neither an axis in scope nor a size of the kernel.")
            return f"({plain} + lane)" if by_lane and self.lane_axis and name == self.lane_axis.name else plain

        return text(e, spell, "/")

    def dim(self, d: Dim) -> str:
        """An extent in C++."""
        return self.index(unwrap(d))

    def parallel_condition(self) -> str:
        """Whether threads pay: "true", "false", or a C++ condition on the sizes."""
        work: Dim = work_of(self.kernel, self.kernel.body)
        for axis in self.grid:
            work = work * axis.extent
        work = unwrap(work)
        if isinstance(work, int):
            return "true" if work >= PARALLEL_FROM else "false"
        return f"{self.index(work)} >= {PARALLEL_FROM}"


def _parts(r: Reduce | Scan) -> str:
    return f"{r.out.name}_parts"


def _offset(pointer: str, index: str) -> str:
    return pointer if index == "0" else f"{pointer} + {index}"
