"""Single statements in C++. In: loads, stores and values of a Kernel. Out: lines, with the names that are in sight.

`Lines` is what the emitter of a whole kernel builds on: it knows which values are vectors, and spells indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit.cpp_facts import check_divisions, lane_axis_of, lane_count, operator_text, rounded_by_store
from interfuse.emit.cpp_names import Names
from interfuse.emit.cpp_types import caster, converted, held, literal, rounded, splat, stored
from interfuse.ir.dtypes import ALL, BOOL, I64, compute_type
from interfuse.ir.index import Dim, Expr, coefficient, symbols, text, unwrap, wrap
from interfuse.ir.ops import SHIFTS
from interfuse.lower.bounds import narrowed
from interfuse.lower.kernel import Bound, Kernel, Let, Load, Pick, Store, Value, bounds_of, walk


class Lines:
    """Writes statements one by one; `names` is the scope being written, `w` the text so far."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        self.kernel, self.streaming = kernel, streaming
        self.lane_axis = lane_axis_of(kernel)
        self.lanes = lane_count(kernel, self.lane_axis, register_bytes)
        self.w, self.names = Writer(), Names()
        self.buffers: dict[str, str] = {}
        self.rounded_by_store = rounded_by_store(kernel)
        self.known: tuple[Bound, ...] = ()  # of the pieces that are being written
        self.outside = self.names.fresh("outside")  # set where an index leaves what it picks from
        self.kind, self.back = ("int", f"    return {self.outside};\n") if kernel.picks else ("void", "")
        self.vector_picks: set[str] = set()
        constants = [s for s in walk(kernel.body) if isinstance(s, Let) and s.op == "const"]
        self.numbers = {s.out: dict(s.attrs)["value"] for s in constants}
        self.told_by: dict[Value, list[Pick]] = {}
        for p in kernel.picks:
            self.told_by.setdefault(p.value, []).append(p)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def load(self, s: Load, at: str | None) -> None:
        """out = param[index]: a vector from consecutive elements, a scalar, or element by element."""
        pointer, vector, step = self.buffers[s.param], self.is_vector(s.out), self.step_of(s)
        dtype = self.kernel.param(s.param).dtype
        if s.within:
            self.define(s.out, converted(self.bounded(s, vector, step), dtype, s.out.dtype, vector))
            return
        where = at or self.index(s.index)
        if step == 0:
            expression = f"{pointer}[{where}]"
            expression = splat(f"{caster(dtype)}({expression})", dtype) if vector else expression
        elif not vector:
            raise UnsupportedError(f"{s.out.name} is read at a lane's index but does not vary over the lanes.")
        elif step == 1:
            expression = f"load({offset(pointer, where)}, n)"
        elif step == -1:
            expression = f"turned(load({offset(pointer, where)} - (n - 1), n), n)"
        else:
            element = f"[&](long lane) INLINE {{ return {pointer}[{self.index(s.index, by_lane=True)}]; }}"
            kind = held(dtype, True)
            expression = f"gather_bool(n, {element})" if dtype is BOOL else f"gather<{kind}>(n, {element})"
        self.define(s.out, converted(expression, dtype, s.out.dtype, vector))

    def bounded(self, s: Load, vector: bool, step: int | None) -> str:
        """A load that reads only where its bounds hold, and gives zero elsewhere."""
        pointer, dtype = self.buffers[s.param], self.kernel.param(s.param).dtype
        index, kind, one = narrowed(s.index, s.within), held(dtype, vector), caster(dtype)
        if vector and self.by_lane(s):
            found = f"{one}({pointer}[{self.index(index, by_lane=True)}])"
            element = f"[&](long lane) INLINE {{ return {self.test(s.within, by_lane=True)} ? {found} : {one}(0); }}"
            return f"gather_bool(n, {element})" if dtype is BOOL else f"gather<{kind}>(n, {element})"
        where, test = self.index(index), self.test(s.within)
        if vector and step == 1:
            return f"{test} ? load({offset(pointer, where)}, n) : {kind}{{}}"
        expression = f"{test} ? {one}({pointer}[{where}]) : {one}(0)"
        return splat(expression, dtype) if vector else expression

    def by_lane(self, s: Load) -> bool:
        """True where the elements of a load within bounds are tested and read one by one."""
        return bool(s.within) and (self.step_of(s) not in (0, 1) or any(self.lane_step(b.expr) != 0 for b in s.within))

    def test(self, bounds: Sequence[Bound], by_lane: bool = False) -> str:
        """Whether all bounds hold, as a C++ condition in brackets."""
        tests = [f"{self.index(b.expr, by_lane)} >= {self.index(wrap(b.lo))}" for b in bounds if b.lo is not None]
        tests += [f"{self.index(b.expr, by_lane)} < {self.index(wrap(b.hi))}" for b in bounds if b.hi is not None]
        return f"({' && '.join(tests)})"

    def first_checks(self) -> list[str]:
        """What a kernel begins with whose places values tell: where there is nothing, nothing may be read."""
        picks = self.kernel.picks
        ends = dict.fromkeys(p.extent for p in picks if wrap(p.extent).lo < 1)
        checks = [f"if ({self.dim(end)} < 1) return 1;" for end in ends]
        return [*checks, f"int {self.outside} = 0;"] if picks else []

    def look_up(self, picks: Iterable[Pick]) -> None:
        """Name and check the places that values tell, but for those in sight already."""
        for p in picks:
            if p.symbol.name in self.names.index:
                continue
            vector, size = self.is_vector(p.value), self.dim(p.extent)
            place = converted(self.value(p.value), p.value.dtype, I64, vector)
            place = f"from_end({place}, {size})" if p.wraps else place
            inside = f"inside({place}, {size}, {'n, ' if vector else ''}{self.outside})"
            self.w.line(f"const {held(I64, vector)} {self.names.give_index(p.symbol.name)} = {inside};")
            if vector:
                self.vector_picks.add(p.symbol.name)

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
        if step in (1, -1):
            way = "stream" if s.param in self.streaming else "store"
            last, value = ("", value) if step == 1 else (" - (n - 1)", f"turned({value}, n)")
            self.w.line(f"{way}({offset(pointer, where)}{last}, {value}, n);")
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
        if s.op == "within":
            bounds = bounds_of(s)
            if vector and any(self.lane_step(b.expr) != 0 for b in bounds):
                lanes = f"[&](long lane) INLINE {{ return {self.test(bounds, by_lane=True)}; }}"
                self.define(s.out, f"gather_bool(LANES, {lanes})")
            else:
                self.define(s.out, splat(self.test(bounds), BOOL) if vector else self.test(bounds))
            return
        args = [self.value(a) for a in s.args]
        reach = any(self.is_vector(a) for a in s.args)
        if reach and not vector:
            raise UnsupportedError(f"{s.out.name} does not vary over the lanes but its operands do.")
        if s.out.name in self.rounded_by_store:
            self.names.of[s.out.name] = splat(args[0], s.out.dtype) if vector and not reach else args[0]
            return
        if reach and (s.op in SHIFTS or BOOL in {a.dtype for a in s.args}):
            args = [self.beside_vectors(s, k, text) for k, text in enumerate(args)]
        if s.op == "cast":
            expression = converted(args[0], s.args[0].dtype, s.out.dtype, reach)
        elif s.op == "round":
            expression = rounded(args[0], ALL[attrs["to"]])
        else:
            expression = operator_text(s.op, s.args[-1].dtype, self.numbers.get(s.args[-1])).format(*args)
        self.define(s.out, splat(expression, s.out.dtype) if vector and not reach else expression, s.note)

    def beside_vectors(self, s: Let, k: int, text: str) -> str:
        """Operand k of an operator on vectors: truth values and counts of shifts take lanes, a condition may be one."""
        a = s.args[k]
        alone = self.is_vector(a) or (s.op == "where" and k == 0) or not (a.dtype is BOOL or s.op in SHIFTS)
        return text if alone else splat(text, a.dtype)

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

    def step_of(self, s: Load | Store) -> int | None:
        """How far apart an access reaches in neighbouring lanes; None where values tell, or it is not constant."""
        told = any(self.is_vector(p.value) for p in s.picks) if isinstance(s, Load) else False
        return None if told else self.lane_step(s.index)

    def index(self, e: Dim, by_lane: bool = False) -> str:
        """An index expression in C++, at the first lane or, `by_lane`, at lane `lane`."""
        e = narrowed(wrap(e), self.known)
        check_divisions(e)

        def spell(name: str) -> str:
            plain = self.names.index.get(name)
            if plain is None:
                raise UnsupportedError(f"the index symbol {name} is neither an axis in scope nor a size of the kernel.")
            if by_lane and name in self.vector_picks:
                return f"{plain}[lane]"
            return f"({plain} + lane)" if by_lane and self.lane_axis and name == self.lane_axis.name else plain

        return text(e, spell, "/")

    def dim(self, d: Dim) -> str:
        """An extent in C++."""
        return self.index(unwrap(d))


def offset(pointer: str, index: str) -> str:
    """The C++ address of element `index` behind `pointer`."""
    return pointer if index == "0" else f"{pointer} + {index}"
