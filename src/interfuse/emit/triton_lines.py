"""One statement of a Kernel as a line of Triton text. In: a tidied Kernel. Out: lines, and the helpers and masks that
they use.

A lane axis (a grid axis with block > 1, a tile, a serial step) is one dimension of every tensor that varies over it;
the others have size 1 there, so that shapes meet by broadcasting. With one lane axis tensors are 1-D and what does not
vary over it is a scalar.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterable

from interfuse.base.text import Writer
from interfuse.emit import triton_prelude as prelude
from interfuse.emit import triton_team
from interfuse.emit.triton_access import from_row, hides, read_again, wanted
from interfuse.emit.triton_counted import first_index, is_counted
from interfuse.emit.triton_index import INT32, index_text, wide_symbols
from interfuse.emit.triton_known import Known
from interfuse.emit.triton_lanes import Lane, lanes_of, padded, shape_of
from interfuse.emit.triton_names import inside_name, name_indices, typed_constants
from interfuse.emit.triton_shared import NEIGHBOURS, is_alike, piece_name, shared_along, shared_by_rows
from interfuse.emit.triton_steps import NAMES, Piece
from interfuse.ir.dtypes import ALL, I64, DType
from interfuse.ir.index import Expr, const, mod, symbols, wrap
from interfuse.lower.bounds import narrowed
from interfuse.lower.kernel import (
    Bound,
    Kernel,
    Let,
    Load,
    Loop,
    Pick,
    Role,
    Store,
    Value,
    bounds_of,
    varies_over,
    walk,
)
from interfuse.lower.products import products_of, sides

_PACK_NAMES = ("table_ptr", "members", "member", "end", "middle", "begun", "row_ptr")
"""What the head of a packed kernel calls its own."""


class Lines:
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
            *(triton_team.NAMES if kernel.team else ()),
            *kernel.symbols,
            *(f"{p.name}_ptr" for p in kernel.params),
            *(n for a in kernel.axes for n in (a.name, f"{a.name}_start", f"{a.name}_step", piece_name(a))),
            *(x.mask for x in self.lanes.values()),
            *(x.extent for x in self.lanes.values() if x.axis.own_end),
            *(n for p in kernel.picks for n in (p.symbol.name, inside_name(p))),
        }
        self._taken |= set(NAMES) if any(a.vector > 1 for a in kernel.axes) else set()
        self._piece: Piece | None = None  # of the row that is held in vectors, or of the loop that is being written
        self._loop: Loop | None = None
        self._again = read_again(kernel)
        self._wanted = wanted(kernel)
        hidden = hides(kernel)
        self.nothing = self._own("nothing") if hidden else ""
        self._hidden = hidden
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
        self.exprs += [wrap(end) for a in kernel.axes if a.among for end in kernel.walked(a)]
        places = frozenset(p.symbol.name for p in kernel.picks)
        by_role = sorted(kernel.axes, key=lambda a: (Role.GRID, Role.SERIAL, Role.TILE, Role.TEAM).index(a.role))
        self.wide = wide_symbols(self.exprs, (*(a.name for a in by_role), *kernel.symbols), places)
        self.wide |= {a.name for a in kernel.axes if padded(a) > INT32 and not is_counted(a)}
        # Where an axis is counted in 64 bits, or what is read is hidden from Triton, nothing is shared.
        ways = {s: shared_along(s, self.lanes) for s in accesses if isinstance(s, Load) and s.index not in self._hidden}
        self._shared = {s: lane for s, lane in ways.items() if lane is not None and lane.axis.name not in self.wide}
        self.in_pieces: set[str] = set()
        self.ahead = {s: self._own(f"{s.out.name}_ahead") for s in triton_team.fetched_ahead(kernel, self._shared)}
        apart = {*sides(products_of(kernel)), *self._shared, *filter(self._is_by_step, accesses)}
        self.named = name_indices([s for s in accesses if s not in apart and not from_row(kernel)])
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

    def index(self, e: Expr, spell: Callable[[str], str] = str) -> str:
        """An index as text; a number that multiplies and is the extent of a row's axis is written by its name."""
        sizes = {lane.axis.extent: lane.extent for lane in self.lanes.values() if lane.axis.role is not Role.GRID}
        return index_text(e, spell, lambda n: sizes.get(n, str(n)) if n > 1 else str(n))

    def _at(self, param: str, e: Expr, within: tuple[Bound, ...] = ()) -> str:
        if e.op == "const" and e.value == 0:
            return f"{param}_ptr"
        buffer = f"{param}_ptr + {self.nothing}" if e in self._hidden else f"{param}_ptr"
        place = narrowed(e, within)
        # A mask of bounds varies over all axes of the index, so what it masks must too.
        place = place if symbols(place) == symbols(e) else e
        return f"{buffer} + {self.named.get(e) or self._place_text(place)}"

    def _place_text(self, e: Expr) -> str:
        """An index as text; in whole vectors where a loop walks in these."""
        axis = self.kernel.axis(self._piece.axis) if self._piece is not None else None
        if axis is None or axis.role is Role.GRID or not self._lies_alike(e):
            return self.index(e)
        return f"{index_text(e - axis.symbol, str, parent=2)} // {axis.vector} * {axis.vector} + lane"

    def _lies_alike(self, e: Expr) -> bool:
        """True where an index lies as the vectors do in which its axis is walked or held."""
        axis = self.kernel.axis(self._piece.axis) if self._piece is not None else None
        if axis is None or axis.vector == 1 or axis.symbol not in symbols(e):
            return False
        return mod(e - axis.symbol - axis.origin, axis.vector) is const(0)

    def _within(self, bounds: tuple[Bound, ...]) -> str:
        """A test of bounds as text, in brackets where it is joined to others; "" for none."""
        tests = [f"({self.index(b.expr)} >= {self.index(wrap(b.lo))})" for b in bounds if b.lo is not None]
        tests += [f"({self.index(b.expr)} < {self.index(wrap(b.hi))})" for b in bounds if b.hi is not None]
        return " & ".join(tests)

    def _mask(self, axes: Collection[str], of: str = "inside") -> str:
        """The mask of what varies over `axes`; "" where every lane is inside. Where a loop walks in whole vectors, `of`
        those that are near or whole instead.
        """
        needed = [lane.mask for lane in self.lanes.values() if lane.axis.name in axes and lane.passes_end]
        self.used_masks.update(needed)
        if self._piece is not None and self._piece.axis in axes:
            own = self.lanes[self._piece.axis].mask
            needed = [getattr(self._piece, of) if name == own else name for name in needed]
        return " & ".join(filter(None, needed))

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

    # --- statements without loops

    def fetches(self) -> list[str]:
        """The lines that fetch what the row after this one begins with: that of index AHEAD, where there is one."""
        lines = []
        rows = self.index(wrap(self.kernel.axis("row").extent))
        for s, name in self.ahead.items():
            place = self.index(s.index, lambda n: triton_team.AHEAD if n == "row" else n)
            mask = " & ".join(filter(None, (self._mask(varies_over(s)), f"({triton_team.AHEAD} < {rows})")))
            lines.append(f"{name} = tl.load({s.param}_ptr + {place}, mask={mask})")
        return lines

    def _load(self, s: Load) -> None:
        if s in self.ahead:
            dtype = self.kernel.param(s.param).dtype
            self.writer.line(f"{self._name(s.out)} = {self._convert(self.ahead[s], dtype, s.out.dtype)}")
            return
        if s in self._shared:
            self._load_shared(s, self._shared[s])
            return
        if (lane := shared_by_rows(self.kernel, s, self.lanes)) is not None:
            place = f"tl.reshape({self.index(s.index)}, ({lane.block},))"
            found = self._convert(f"tl.load({s.param}_ptr + {place})", self.kernel.param(s.param).dtype, s.out.dtype)
            self.writer.line(f"{self._name(s.out)} = {found}{lane.spread()}")
            return
        dtype = self.kernel.param(s.param).dtype
        if self._is_by_step(s) and self._loop is not None:
            found = f"tl.load({s.param}_ptr + {self._first_of_step(s.index, self._loop)})"
            self.writer.line(f"{self._name(s.out)} = {self._convert(found, dtype, s.out.dtype)}")
            return
        lanes = self._mask(varies_over(s), "near" if self._lies_alike(s.index) else "inside")
        used = self._operand(self._wanted[s]) if s in self._wanted else ""
        mask = " & ".join(filter(None, (lanes, used, self._within(s.within), *map(self._look_up, s.picks))))
        other = f", other={prelude.literal(float('nan') if dtype.is_float else 0, dtype)}" if s.picks else ""
        place, over = self._at(s.param, s.index, s.within), varies_over(s) & self.lanes.keys()
        if over and any(x.axis.among and x.axis.block > 1 and name not in over for name, x in self.lanes.items()):
            # Read as wide as what the rows of a step meet it with: Triton then lays out both alike.
            place = f"tl.broadcast_to({place}, {shape_of(self.lanes.keys(), self.lanes)})"
        found = f"tl.load({place}{f', mask={mask}' if mask else ''}{other}{self._again.policy(s, self._loop)})"
        self.writer.line(f"{self._name(s.out)} = {self._convert(found, dtype, s.out.dtype)}")

    def _is_by_step(self, s: Load | Store) -> bool:
        """True for a load of one element for each step of a loop."""
        plain = isinstance(s, Load) and not s.picks and not s.within and len(self.lanes) == 1
        return plain and any(is_alike(s.index, a) for a in self.kernel.axes)

    def _first_of_step(self, e: Expr, loop: Loop) -> str:
        """A place that is one for all of a step of the loop, by the first index of that."""
        first = first_index(self.lanes[loop.axis], loop.backwards)
        return index_text(e, lambda name: first if name == loop.axis else name)

    def _load_shared(self, s: Load, lane: Lane) -> None:
        """A load of one element for several neighbours along the last axis, spread over them."""
        axis, dtype = lane.axis, self.kernel.param(s.param).dtype
        name, pieces = piece_name(axis), f"{lane.block} // {NEIGHBOURS}"
        self.in_pieces.add(axis.name)
        place = index_text(s.index, lambda symbol: name if symbol == axis.name else symbol)
        ends = f"{name} < {lane.extent}" if lane.passes_end else ""
        others = self._mask(varies_over(s) - {axis.name})
        mask = f"{others} & ({ends})" if others and ends else others or ends
        found = f"tl.load({s.param}_ptr + {place}{f', mask={mask}' if mask else ''})"
        value, over = self._name(s.out), varies_over(s)
        self.writer.line(f"{value} = {self._convert(found, dtype, s.out.dtype)}")
        rest = [x.block if x.axis.name in over else "1" for x in self.lanes.values() if x is not lane]
        dims, apart = ", ".join([":"] * lane.rank), ", ".join([*rest, pieces])
        spread = f"tl.broadcast_to({value}[{dims}, None], ({apart}, {NEIGHBOURS}))"
        self.writer.line(f"{value} = tl.reshape({spread}, ({', '.join([*rest, lane.block])},))")

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
        mask = self._mask({x.name for x in symbols(s.index)} | set(s.arg.axes), "whole")
        value = self._as(s.arg, self.kernel.param(s.param).dtype)
        policy, place = self._again.policy(s, self._loop), self._at(s.param, s.index)
        if len(self.lanes) > 1 and varies_over(s).isdisjoint(self.lanes):  # one number, of as many dimensions
            place += f" + tl.zeros({shape_of((), self.lanes)}, tl.int32)"
        self.writer.line(f"tl.store({place}, {value}{f', mask={mask}' if mask else ''}{policy})")
        if self._piece is not None and self._loop is None and self._lies_alike(s.index):  # what is left of a held row
            rest = self._mask({x.name for x in symbols(s.index)} | set(s.arg.axes))
            self.writer.line(f"tl.store({place}, {value}, mask={rest} & ({self._piece.whole} == 0))")

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

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.writer.line(self._note_helpers(line))

    def _own(self, wish: str) -> str:
        """A free name like `wish`."""
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish
