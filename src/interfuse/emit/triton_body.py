"""The statements of a Kernel as Triton text. In: a tidied Kernel. Out: lines, and the helpers and masks that they use.

One line a value. A lane axis (a grid axis with block > 1, a tile, a serial step) is one dimension of every tensor
that varies over it; the others have size 1 there, so that shapes meet by broadcasting. With one lane axis tensors are
1-D and what does not vary over it is a scalar. Masked lanes enter a reduction as its identity.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit import triton_prelude as prelude
from interfuse.emit.triton_index import INT32, index_text, wide_symbols
from interfuse.emit.triton_known import Known
from interfuse.emit.triton_lanes import Lane, lanes_of, padded, shape_of
from interfuse.emit.triton_names import inside_name, name_indices, typed_constants
from interfuse.emit.triton_reduce import (
    COMBINE,
    COMPOSITE,
    JOINS,
    Carried,
    Operand,
    distinct,
    expsum,
    identity,
    moments,
)
from interfuse.ir.dtypes import ALL, I64, DType
from interfuse.ir.index import Expr, symbols, wrap
from interfuse.lower.bounds import narrowed
from interfuse.lower.kernel import (
    MOMENTS,
    PLACES,
    Bound,
    Kernel,
    Let,
    Load,
    Loop,
    Pick,
    Reduce,
    Role,
    Scan,
    Scope,
    Stmt,
    Store,
    Value,
    bounds_of,
    varies_over,
    walk,
)

_PACK_NAMES = ("table_ptr", "members", "member", "end", "middle", "begun", "row_ptr")
"""What the head of a packed kernel calls its own."""


class Body:
    """Writes a kernel's statements; afterwards `helpers`, `used_masks` and `named` say what the head must define."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.lanes, self.writer = kernel, lanes_of(kernel), Writer()
        self.helpers: dict[str, None] = {}
        self.used_masks: set[str] = set()
        self._taken = {
            *keyword.kwlist,
            *prelude.HELPERS,
            "tl",
            "triton",
            "libdevice",
            "float",
            "range",
            "program",
            "at",
            kernel.name,
            *(_PACK_NAMES if kernel.packed else ()),
            *kernel.symbols,
            *(f"{p.name}_ptr" for p in kernel.params),
            *(n for a in kernel.axes for n in (a.name, f"{a.name}_start")),
            *(x.mask for x in self.lanes.values()),
            *(x.extent for x in self.lanes.values() if x.axis.among),
            *(n for p in kernel.picks for n in (p.symbol.name, inside_name(p))),
        }
        self._looked_up: frozenset[Pick] = frozenset()
        self._names: dict[Value, str] = {}
        statements = walk(kernel.body)
        self.known = Known(statements, self.lanes)
        self._literals = {
            s.out: prelude.literal(dict(s.attrs)["value"], s.out.dtype)
            for s in statements
            if isinstance(s, Let) and s.op == "const"
        }
        self._typed = typed_constants(statements, self._literals)
        accesses = [s for s in statements if isinstance(s, (Load, Store))]
        self.exprs = [narrowed(s.index, bounds_of(s)) for s in accesses]
        self.exprs += [wrap(dict(s.attrs)["expr"]) for s in statements if isinstance(s, Let) and s.op == "index"]
        self.exprs += [e for s in statements for b in bounds_of(s) for e in (b.expr, *b.ends)]
        self.exprs += [wrap(d) for d in (*(a.extent for a in kernel.axes), *(p.extent for p in kernel.picks))]
        self.exprs += [wrap(end) for a in kernel.axes if a.among for end in kernel.ends(a)]
        places = frozenset(p.symbol.name for p in kernel.picks)
        by_role = sorted(kernel.axes, key=lambda a: (Role.GRID, Role.SERIAL, Role.TILE).index(a.role))
        self.wide = wide_symbols(self.exprs, (*(a.name for a in by_role), *kernel.symbols), places)
        self.wide |= {a.name for a in kernel.axes if padded(a) > INT32}
        self.named = name_indices(accesses)
        self._taken.update(self.named.values())

    # --- names and operands

    def _name(self, value: Value) -> str:
        """The value's name in the text: its own, with underscores where that is taken."""
        found = self._names.get(value)
        if found is None:
            found = self._names[value] = self._own(re.sub(r"\W", "_", value.name))
        return found

    def _operand(self, value: Value) -> str:
        return self._literals[value] if value in self._literals and value not in self._typed else self._name(value)

    def index(self, e: Expr) -> str:
        """An index as text; a number that multiplies and is the extent of a row's axis is written by its name."""
        sizes = {lane.axis.extent: lane.extent for lane in self.lanes.values() if lane.axis.role is not Role.GRID}
        return index_text(e, str, lambda n: sizes.get(n, str(n)) if n > 1 else str(n))

    def _at(self, param: str, e: Expr, within: tuple[Bound, ...] = ()) -> str:
        if e.op == "const" and e.value == 0:
            return f"{param}_ptr"
        return f"{param}_ptr + {self.named.get(e) or self.index(narrowed(e, within))}"

    def _within(self, bounds: tuple[Bound, ...]) -> str:
        """A test of bounds as text, in brackets where it is joined to others; "" for none."""
        tests = [f"({self.index(b.expr)} >= {self.index(wrap(b.lo))})" for b in bounds if b.lo is not None]
        tests += [f"({self.index(b.expr)} < {self.index(wrap(b.hi))})" for b in bounds if b.hi is not None]
        return " & ".join(tests)

    def _mask(self, axes: Collection[str]) -> str:
        """The mask of an access that varies over `axes`; "" where every lane is inside."""
        needed = [lane.mask for lane in self.lanes.values() if lane.axis.name in axes and lane.passes_end]
        self.used_masks.update(needed)
        return " & ".join(needed)

    def _note_helpers(self, found: str) -> str:
        for name in re.findall(r"(?<![\w.])\w+", found):
            if name in prelude.HELPERS and name not in self.helpers:
                self._note_helpers(prelude.HELPERS[name].partition("(")[2])  # those that it uses itself go first
                self.helpers[name] = None
        return found

    def _convert(self, expression: str, source: DType, target: DType) -> str:
        return self._note_helpers(prelude.convert(expression, source, target))

    def _as(self, value: Value, target: DType) -> str:
        return self._note_helpers(self.known.converted(value, self._operand(value), target))

    # --- statements

    def statements(self, body: tuple[Stmt, ...]) -> None:
        """Write statements in order; a loop over a tile writes its body as it is, for the tile is there at once."""
        for k, s in enumerate(body):
            if isinstance(s, Loop):
                if k:
                    self.writer.line()
                if self.kernel.axis(s.axis).role is Role.SERIAL:
                    self._serial(s)
                else:
                    self.statements(s.body)
            elif isinstance(s, Load):
                self._load(s)
            elif isinstance(s, Let):
                self._let(s)
            elif isinstance(s, Reduce):
                if s.op in PLACES:
                    self._place(s, self._masked(s), self._places(s))
                else:
                    self.writer.line(f"{self._name(s.out)} = {self._reduced(s, self._masked(s))}")
            elif isinstance(s, Scan):
                self._scan(s)
            else:
                self._store(s)
            if isinstance(s, (Load, Let)):
                for p in self.kernel.picks:
                    if p.value == s.out:
                        self._look_up(p)

    def _load(self, s: Load) -> None:
        dtype, lanes = self.kernel.param(s.param).dtype, self._mask(varies_over(s))
        mask = " & ".join(filter(None, (lanes, self._within(s.within), *map(self._look_up, s.picks))))
        other = f", other={prelude.literal(float('nan') if dtype.is_float else 0, dtype)}" if s.picks else ""
        found = f"tl.load({self._at(s.param, s.index, s.within)}{f', mask={mask}' if mask else ''}{other})"
        self.writer.line(f"{self._name(s.out)} = {self._convert(found, dtype, s.out.dtype)}")

    def _look_up(self, p: Pick) -> str:
        """The name of the mask that tells where a pick lies inside; the pick itself is written once a scope."""
        if p not in self._looked_up:
            name, size = p.symbol.name, self.index(wrap(p.extent))
            place = f"{self._operand(p.value)}{'' if p.value.dtype is I64 else '.to(tl.int64)'}"
            self.writer.line(f"{name} = {place}")
            if p.wraps:
                self.writer.line(f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
            self.writer.line(f"{inside_name(p)} = ({name} >= 0) & ({name} < {size})")
            self._looked_up |= {p}
        return inside_name(p)

    def _store(self, s: Store) -> None:
        mask = self._mask({x.name for x in symbols(s.index)} | set(s.arg.axes))
        value = self._as(s.arg, self.kernel.param(s.param).dtype)
        self.writer.line(f"tl.store({self._at(s.param, s.index)}, {value}{f', mask={mask}' if mask else ''})")

    def _let(self, s: Let) -> None:
        if s.op == "const":
            if s.out in self._typed:
                kind = prelude.TYPES[s.out.dtype]
                self.writer.line(f"{self._name(s.out)} = tl.full((), {self._literals[s.out]}, {kind})")
            return
        args = [self._operand(a) for a in s.args]
        if s.op == "index":
            found = f"tl.cast({self.index(wrap(dict(s.attrs)['expr']))}, {prelude.TYPES[s.out.dtype]})"
        elif s.op == "within":
            found = self._within(bounds_of(s))
            found = found[1:-1] if "&" not in found else found
        elif s.op == "cast":
            found = self._as(s.args[0], s.out.dtype)
        elif s.op == "round":
            narrow = ALL[dict(s.attrs)["to"]]
            found = self._convert(self._convert(args[0], s.out.dtype, narrow), narrow, s.out.dtype)
        else:
            found = self._note_helpers(self.known.text(s)).format(*args)
        self.writer.line(f"{self._name(s.out)} = {found}{f'  # {s.note}' if s.note else ''}")

    # --- reductions

    def _masked(self, s: Reduce) -> str:
        """The reduction's argument with the identity in the lanes past the axis's end."""
        mask = self._mask({s.axis})
        found = self._operand(s.arg)
        return f"tl.where({mask}, {found}, {identity(s.op, s.arg.dtype)})" if mask else found

    def _reduced(self, s: Reduce, argument: str) -> str:
        """The reduction of `argument` across the lanes of its axis."""
        lane, dtype = self.lanes[s.axis], s.arg.dtype
        where = f", axis={lane.dim}, keep_dims=True" if lane.rank > 1 else ""
        if s.op in ("any", "all"):
            return f"tl.{'max' if s.op == 'any' else 'min'}({argument}.to(tl.int32){where}) != 0"
        if s.op == "sum" or not (dtype.is_float or s.op == "prod"):
            found = f"tl.{s.op}({argument}{where})"
            return f"{found}.to({prelude.TYPES[dtype]})" if dtype.bytes < 4 else found
        combine = self._note_helpers({"max": "nan_max", "min": "nan_min", "prod": "times"}[s.op])
        return f"tl.reduce({argument}, {lane.dim}, {combine}{', keep_dims=True' if lane.rank > 1 else ''})"

    def _serial(self, loop: Loop) -> None:
        """A loop in steps of the axis's block: one accumulator a reduction before it, their lanes joined after it."""
        axis, lane, body = self.kernel.axis(loop.axis), self.lanes[loop.axis], walk(loop.body)
        if any(isinstance(s, Loop) and self.kernel.axis(s.axis).role is Role.SERIAL for s in loop.body):
            raise UnsupportedError("a serial loop inside a serial loop has no Triton text")
        carried = [s for s in body if isinstance(s, Reduce) and s.axis == axis.name]
        for s in body:
            if isinstance(s, Reduce) and (s.scope is Scope.CARRY) != (s in carried):
                raise UnsupportedError(f"{s.out.name}: inside a serial loop only reductions along it are carried")
        joint = self._joint(carried)
        for s in carried:
            if s not in joint:
                self._start(s)
        self._lines(line for made in distinct(joint.values()) for line in made.before)
        for scan in [s for s in body if isinstance(s, Scan) and s.axis == axis.name]:
            self._start_scan(scan)
        stages = self.kernel.stages
        steps = f"tl.range({{}}, num_stages={stages})" if stages > 1 else "range({})"
        first, last = self.kernel.ends(axis)
        if axis.among:
            self.writer.line(f"{lane.extent} = {self.index(wrap(last))}")
        steps = steps.format(f"{self.index(wrap(first))}, {lane.extent}, {lane.block}")
        with self.writer.block(f"for {axis.name}_start in {steps}:"):
            outer, self.writer, known = self.writer, Writer(), self._looked_up
            stepped: set[str] = set()
            for inside in body:
                if isinstance(inside, Reduce) and inside in joint:
                    self._lines(line for line in joint[inside].step if joint[inside].before[0] not in stepped)
                    stepped.add(joint[inside].before[0])
                elif isinstance(inside, Reduce) and inside in carried:
                    name, part = self._name(inside.out), self._masked(inside)
                    if inside.op in PLACES:
                        name, part = f"{name}_best, {name}", f"{part}, {self._places(inside)}"
                    self.writer.line(f"{name} = {self._note_helpers(COMBINE[inside.op]).format(name, part)}")
                else:
                    self.statements((inside,))
            inner, self.writer, self._looked_up = self.writer, outer, known
            self._step(loop, lane)
            for line in inner.text().splitlines():
                self.writer.line(line)
        self._lines(line for made in distinct(joint.values()) for line in made.after)
        for s in carried:
            name = self._name(s.out)
            if s in joint:
                self.writer.line(f"{name} = {self._note_helpers(joint[s].results[s.op])}")
            elif s.op in PLACES:
                self._place(s, f"{name}_best", name)
            else:
                self.writer.line(f"{name} = {self._reduced(s, name)}")

    def _joint(self, carried: list[Reduce]) -> dict[Reduce, Carried]:
        """What is carried for reductions that need several numbers; those that can share it have the same."""
        found: dict[tuple[Value, bool], Carried] = {}
        weighed = {s.arg for s in carried if s.op == "expsum"}
        joint = {}
        for s in carried:
            if s.op in COMPOSITE or (s.op == "max" and s.arg in weighed):
                key = s.arg, s.op in MOMENTS
                if key not in found:
                    x = Operand.of(s, self._operand(s.arg), self.lanes, self._mask({s.axis}), self.kernel.warps)
                    found[key] = (moments if s.op in MOMENTS else expsum)(x, self._own)
                joint[s] = found[key]
        return joint

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.writer.line(self._note_helpers(line))

    def _own(self, wish: str) -> str:
        """A free name like `wish`."""
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish

    # --- scans

    def _scan(self, s: Scan) -> None:
        """The scan of this step's lanes; in a serial loop with what came before, which it carries on."""
        lane, name, join = self.lanes[s.axis], self._name(s.out), JOINS[s.op]
        arg = self._operand(s.arg)
        if s.axis not in s.arg.axes:
            arg = f"tl.broadcast_to({arg}, {shape_of(s.out.axes, self.lanes)})"
        combine = self._note_helpers({"sum": "plus", "prod": "times", "max": "nan_max", "min": "nan_min"}[join])
        if s.arg.dtype.bytes < 4 and not s.arg.dtype.is_float:
            arg = f"({arg}).to(tl.int32)"
        if s.scope is Scope.LANE:
            self.writer.line(f"{name} = {self._typed_scan(s, f'tl.associative_scan({arg}, {lane.dim}, {combine})')}")
            return
        part, carry = f"{name}_part", f"{name}_carry"
        mask = self._mask({s.axis})
        start = identity(join, s.arg.dtype)
        self.writer.line(f"{part} = {f'tl.where({mask}, {arg}, {start})' if mask else arg}")
        joined = self._note_helpers(COMBINE[join])
        along = f"tl.associative_scan({part}, {lane.dim}, {combine})"
        self.writer.line(f"{name} = {self._typed_scan(s, joined.format(carry, along))}")
        total = self._reduced(Reduce(s.out, join, s.arg, s.axis, Scope.LANE), part)
        self.writer.line(f"{carry} = {self._typed_scan(s, joined.format(carry, total))}")

    def _typed_scan(self, s: Scan, found: str) -> str:
        """The scan in the type of its result: Triton widens small integers."""
        return f"({found}).to({prelude.TYPES[s.out.dtype]})" if s.out.dtype.bytes < 4 else found

    def _start_scan(self, s: Scan) -> None:
        """What a scan carries into its serial loop."""
        start, kind = identity(JOINS[s.op], s.arg.dtype), prelude.TYPES[s.out.dtype]
        shape = shape_of([a for a in s.out.axes if a != s.axis], self.lanes) if len(self.lanes) > 1 else "()"
        self.writer.line(f"{self._name(s.out)}_carry = tl.full({shape}, {start}, {kind})")

    def _start(self, s: Reduce) -> None:
        """The accumulator of a carried reduction: its identity in every lane, with place 0 where it wants a place."""
        name, shape = self._name(s.out), shape_of(s.arg.axes, self.lanes)
        start = f"tl.full({shape}, {identity(s.op, s.arg.dtype)}, {prelude.TYPES[s.arg.dtype]})"
        if s.op in PLACES:
            self.writer.line(f"{name}_best = {start}")
            start = f"tl.full({shape}, 0, {self._place_type(s)})"
        self.writer.line(f"{name} = {start}")

    # --- places of the largest or smallest element

    def _place_type(self, s: Reduce) -> str:
        return "tl.int64" if s.axis in self.wide else "tl.int32"

    def _places(self, s: Reduce) -> str:
        """The place of each lane of the argument."""
        shape = shape_of(s.arg.axes, self.lanes)
        return s.axis if len(self.lanes) == 1 else f"tl.broadcast_to({s.axis}, {shape})"

    def _place(self, s: Reduce, argument: str, places: str) -> None:
        """The first place of the largest or smallest element across the lanes of the axis."""
        lane, name = self.lanes[s.axis], self._name(s.out)
        combine = self._note_helpers(COMBINE[s.op].split("(")[0])
        keep = ", keep_dims=True" if lane.rank > 1 else ""
        self.writer.line(f"_, {name} = tl.reduce(({argument}, {places}), {lane.dim}, {combine}{keep})")
        self.writer.line(f"{name} = {name}.to(tl.int64)")

    def _step(self, loop: Loop, lane: Lane) -> None:
        """The first lines of a serial step: its indices and its mask."""
        axis = lane.axis
        wide = ".to(tl.int64)" if axis.name in self.wide else ""
        first = f"{axis.name}_start"
        if loop.backwards:  # a range that counts down would hide from Triton how its numbers are aligned
            first = f"({lane.extent} - 1) // {lane.block} * {lane.block} - {first}"
        self.writer.line(f"{axis.name} = {first} + {lane.numbers()}{wide}")
        if lane.mask in self.used_masks:
            self.writer.line(f"{lane.mask} = {axis.name} < {lane.extent}")
        used = {s.index for s in walk(loop.body) if isinstance(s, (Load, Store))}
        for e in self.named:
            if e in used and axis.symbol in symbols(e):
                self.writer.line(f"{self.named[e]} = {self.index(e)}")
