"""Tracing a region over its domain. In: outputs, inputs, a domain and its two index symbols. Out: values in order.

Each node is asked for at an index; movements turn into other indices, inputs into loads, joined values into a choice
between their parts, each asked for only where it holds the index, and everything else into one value. A value's depth
counts the reductions that must be finished before it; it becomes the value's phase in the loop tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import BOOL, I64
from interfuse.ir.index import (
    Dim,
    Expr,
    add,
    coefficient,
    const,
    delinearize,
    linear,
    mod,
    mul,
    product,
    substitute,
    sym,
    symbols,
    unwrap,
    wrap,
)
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node
from interfuse.ir.ops import JOINS, MOVES, REDUCES, SCANS
from interfuse.lower.domain import Domain, core_of, pull, push, width
from interfuse.lower.joins import Part, Space, parts_of
from interfuse.lower.kernel import PLACES, SPAN, Bound, Let, Load, Pick, Reduce, Scan, Scope, Store, Value
from interfuse.lower.names import GENERATED, Names
from interfuse.lower.positions import Positions
from interfuse.lower.traced import Made, Trace

Attrs = tuple[tuple[str, Any], ...]
Key = tuple[Node, tuple[Expr, ...], tuple[Bound, ...]]
"""A value: a node at an index, as far as it is wanted only where bounds hold."""


class Tracer:
    """Traces one region. `row`, `col` and `inner` are the indices along the domain's rows, columns and what lies after
    them: symbols, or 0 where there is one index only; the row may be an index of several axes. `by_index` asks for
    parts of one value at one index. What is reduced `ahead` is reduced along the axis `part`.
    """

    def __init__(
        self,
        inputs: frozenset[Node],
        layouts: Mapping[Node, Layout],
        domain: Domain,
        row: Expr,
        col: Expr,
        inner: Expr = const(0),
        *,
        by_index: bool = False,
        ahead: frozenset[Node] = frozenset(),
        part: Expr = const(0),
    ) -> None:
        self._inputs, self._layouts, self._domain = inputs, layouts, domain
        self._row, self._col, self._inner, self._kept_row = row, col, inner, row
        self._ahead, self._part = ahead, part
        # While indices are worked out, `% size` says of an index that it stays below a size that changes.
        place = domain.cols - 1 - col if domain.backwards else col
        bounded = {mod(i, n): i for i, n in ((place, domain.cols), (inner, domain.inner)) if isinstance(n, Expr)}
        self._plain: dict[Expr, Dim] = dict(bounded) if domain.rows != 1 or domain.reduces else {}
        marked = {i: b for b, i in self._plain.items()}
        self._place = marked.get(place, place)  # the column that is walked
        self._within = marked.get(inner, inner)
        extents: dict[Expr, Dim] = {s: s.hi + 1 for s in symbols(row)} if row.op != "sym" else {row: domain.rows}
        self._span = next((s for s in extents if s.name == SPAN), None)
        self._walked = tuple(s for s in (part, *sorted(extents, key=lambda s: s.name), col, inner) if s.op == "sym")
        extents |= {col: domain.cols, inner: domain.inner}
        self._space = Space({s: n for s, n in extents.items() if s.op == "sym"}, self._plain, by_index)
        self._memo: dict[Key, Value] = {}
        self._known: dict[Key, list[Key]] = {}  # operands
        self._same: dict[tuple, Value] = {}
        self._picks: dict[tuple[Value, Dim, bool], Pick] = {}
        self._told: dict[Expr, Pick] = {}  # what the symbols of picks stand for
        self._positions = Positions()
        self._names = Names()
        self.trace = Trace()

    def _axes(self, *expressions: Expr) -> tuple[str, ...]:
        """The axes that expressions, and what is picked in them, vary over, outermost first."""
        told = {a for p in self._picks_in(*expressions) for a in p.value.axes}
        found = told.union(s.name for e in expressions for s in symbols(e))
        return tuple(s.name for s in self._walked if s.name in found)

    def _picks_in(self, *expressions: Expr) -> tuple[Pick, ...]:
        """The picks whose symbols stand in the expressions, in order of their making."""
        found = frozenset().union(*map(symbols, expressions)) if self._told else frozenset()
        return tuple(p for s, p in self._told.items() if s in found)

    def _of_ones(self, index: tuple[Expr, ...], shape: tuple[Dim, ...]) -> tuple[Expr, ...]:
        """The index with 0 for dimensions of size 1: inside its bounds it is that. What is picked has to be checked."""
        ones = (d == 1 and not self._picks_in(i) for i, d in zip(index, shape, strict=True))
        return tuple(const(0) if one else i for one, i in zip(ones, index, strict=True))

    def _new(self, wish: str, node: Node, axes: tuple[str, ...]) -> Value:
        return Value(self._names.take(wish), node.dtype, axes)

    def _add(self, made: Made, depth: int) -> Value:
        if isinstance(made, Let):
            # The same arithmetic may be wanted inside several bounds.
            what = (made.op, made.args, repr(made.attrs), made.out.dtype, made.out.axes)
            if what in self._same:
                return self._same[what]
            self._same[what] = made.out
        self.trace.made.append(made)
        self.trace.depth[made.out] = depth
        return made.out

    def output(self, node: Node, buffer: str) -> None:
        """Trace an output and store it into `buffer`, laid out as the region's layouts say."""
        domain = self._domain
        core, chain = core_of(node, self._inputs)
        wide = domain.cols != 1 and product(node.shape) == unwrap(domain.kept * domain.cols)
        row, inner = self._row if wide else self._kept_row, self._within
        flat = domain.place(row, self._place, inner) if wide else domain.kept_place(row, inner)
        index = delinearize(flat, core.shape)
        value = self.value(core, index)
        layout = self._layouts[node]
        at = substitute(linear(push(node, index, chain), layout.strides, layout.offset), self._plain)
        self.trace.stores.append(Store(buffer, at, value))

    def partial(self, node: Node, buffer: str, part: Expr) -> None:
        """Trace a reduction over the rows, and store what the part `part` of them gives into `buffer`, the results of a
        part after those of another.
        """
        x, axes, domain = node.inputs[0], node.attr("axes"), self._domain
        rows = iter(delinearize(self._row, tuple(x.shape[a] for a in axes)))
        cols = delinearize(self._place, node.shape)
        rest = iter(cols)
        value = self.value(x, tuple(next(rows) if k in axes else next(rest) for k in range(len(x.shape))))
        if self._row.name not in value.axes or self._col.name not in value.axes:
            raise UnsupportedError(f"{node.op} over rows of what is the same in all rows, or in all columns")
        out = self._new(node.hint or node.op, node, (part.name, self._col.name))
        self.trace.sums.append(Reduce(out, node.op, value, self._row.name, Scope.CARRY))
        self.trace.ends.append(Store(buffer, add(mul(part, domain.cols), self._place), out))

    def finished(self) -> Trace:
        """The trace; UnsupportedError where an index picks from something that is the same everywhere: no load would
        check it.
        """
        used = {p for m in self.trace.made if isinstance(m, Load) for p in m.picks}
        if not used.issuperset(self._told.values()):
            raise UnsupportedError("gathers from a source that is the same at every index")
        return self.trace

    def value(self, node: Node, index: tuple[Expr, ...]) -> Value:
        """The value of `node` at `index`. Iterative over long chains: operands are made before their users."""
        wanted: Key = (node, index, ())
        stack = [wanted]
        while stack:
            key = stack[-1]
            if key in self._memo:
                stack.pop()
                continue
            missing = [k for k in self._operands(key) if k not in self._memo]
            if missing:
                stack.extend(reversed(missing))
                continue
            self._memo[key] = self._make(key)
            stack.pop()
        return self._memo[wanted]

    def _key(self, node: Node, index: tuple[Expr, ...], within: tuple[Bound, ...]) -> Key:
        """The value's key, with the bounds alone that say something of its index."""
        if not within:
            return node, index, ()
        axes = set(self._axes(*index))
        return node, index, tuple(b for b in within if axes & {s.name for s in symbols(b.expr)})

    def _operands(self, key: Key) -> list[Key]:
        found = self._known.get(key)
        if found is None:
            found = self._find_operands(key)
            if key[0].op != "gather":  # its source is known only once its index is there
                self._known[key] = found
        return found

    def _find_operands(self, key: Key) -> list[Key]:
        node, index, within = key
        if node in self._inputs:
            return []
        if node.op in MOVES:
            return [self._key(node.inputs[0], pull(node, index), within)]
        if node.op in JOINS:
            if self._picks_in(*index):
                raise UnsupportedError("gathers from joined parts")
            return [self._key(p.node, p.index, p.within) for p in parts_of(node, index, within, self._space)]
        if node in self._ahead:
            return [self._key(node.inputs[0], self._spread(node, index, self._part), ())]
        if node.op in REDUCES or node.op in SCANS:
            # Every column takes part, wherever the result is wanted.
            index = self._operand_index(node, index) if node.op in REDUCES else index
            return [self._key(node.inputs[0], index, tuple(b for b in within if b.expr is not self._col))]
        if node.op == "gather":
            return self._gathered(node, index, within)
        return [self._key(operand, index, within) for operand in node.inputs]

    def _gathered(self, node: Node, index: tuple[Expr, ...], within: tuple[Bound, ...]) -> list[Key]:
        """The index of a gather, and once that is there the source at the place that it tells."""
        source, axis = node.inputs[0], node.attr("axis")
        told = self._key(node.inputs[1], index, within)
        if told not in self._memo:
            return [told]
        self._check_source(node)
        place = self._place_of(self._memo[told], source.shape[axis], node.attr("wraps"))
        return [told, self._key(source, tuple(place if k == axis else i for k, i in enumerate(index)), within)]

    def _place_of(self, told: Value, extent: Dim, wraps: bool) -> Expr:
        """A symbol for the place that a value tells, or the position that it is where that surely lies inside."""
        position = self._positions.index(told)
        if position is not None and position.lo >= 0 and position.hi < wrap(extent).lo:
            return position
        pick = self._picks.get((told, extent, wraps))
        if pick is None:
            name = f"picked_{len(self._told) + 1}" if self._told else "picked"
            # A symbol that could only be 0 would drop out of the index, and its check with it.
            pick = Pick(sym(name, 0, max(wrap(extent).hi - 1, 1)), told, extent, wraps)
            self._picks[told, extent, wraps] = self._told[pick.symbol] = pick
        return pick.symbol

    def _check_source(self, node: Node) -> None:
        """UnsupportedError where a gather would compute elements of its source more often than once each."""
        source = node.inputs[0]
        while source not in self._inputs and (source.op in MOVES or source.op in ("copy", "gather")):
            source = source.inputs[0]
        again = add(source.size, mul(node.size, -1)).lo < 0
        if source not in self._inputs and again:
            raise UnsupportedError(f"gathers from {source.op} more elements than it has: each would be computed again")

    def _operand_index(self, node: Node, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The operand's index of a reduction: the column spread over the reduced dimensions."""
        index, place = self._of_ones(index, node.shape), self._domain.reduced_place(self._place)
        span = self._spanned(node)
        if any({self._col, span} & symbols(i) for i in index) or self._picks_in(*index):
            raise UnsupportedError(f"{node.op}: its result is needed in another order than its rows")
        return self._spread(node, index, place if span is None else span * self._domain.cols + place)

    def _spanned(self, node: Node) -> Expr | None:
        """The index of a row's blocks where all of them are reduced."""
        return None if width(node.inputs[0].shape, node.attr("axes")) == self._domain.cols else self._span

    def _spread(self, node: Node, index: tuple[Expr, ...], place: Expr) -> tuple[Expr, ...]:
        """The operand's index of a reduction whose elements are counted by `place`."""
        shape, axes = node.inputs[0].shape, node.attr("axes")
        columns = iter(delinearize(place, tuple(shape[a] for a in axes)))
        rest = iter(self._of_ones(index, node.shape))
        return tuple(next(columns) if k in axes else next(rest) for k in range(len(shape)))

    def _make(self, key: Key) -> Value:
        node, index, within = key
        if node in self._inputs:
            return self._load(node, index, within)
        parts = [self._memo[k] for k in self._operands(key)]
        if node.op in MOVES or node.op == "copy":
            return parts[0]
        if node.op == "gather":
            return parts[1]
        if node.op == "const":
            return self._constant(node.attr("value"), node)
        if node.op == "iota":
            at = substitute(index[0], self._plain)
            if self._picks_in(at):
                raise UnsupportedError("gathers from positions, which need no load")
            out = Value(self._names.take("position"), I64, self._axes(at))
            position = self._positions.note(self._add(Let(out, "index", (), (("expr", at),)), 0), at)
            return position if node.dtype is I64 else self._let(node, "cast", (position,), wish="position")
        if node in self._ahead:
            return self._reduced_ahead(node, parts[0])
        if node.op in REDUCES or node.op in SCANS:
            if any(b.expr is not self._col and self._col in symbols(b.expr) for b in within):
                raise UnsupportedError(f"{node.op} of a part whose place rows and columns decide together")
            return self._reduced(node, parts[0]) if node.op in REDUCES else self._scanned(node, parts[0], index)
        if node.op in JOINS:
            return self._joined(node, parts_of(node, index, within, self._space), parts)
        return self._let(node, node.op, tuple(parts), node.attrs)

    def _let(self, node: Node, op: str, args: tuple[Value, ...], attrs: Attrs = (), wish: str = "") -> Value:
        axes = tuple(s.name for s in self._walked if any(s.name in a.axes for a in args))
        made = Let(self._new(wish or node.hint or op, node, axes), op, args, attrs, node.source)
        return self._positions.follow(self._add(made, max((self.trace.depth[a] for a in args), default=0)), op, args)

    def _joined(self, node: Node, parts: list[Part], values: list[Value]) -> Value:
        """A choice between the values of the parts, the last one where no other is chosen."""
        found = values[-1]
        for part, value in reversed(list(zip(parts[:-1], values[:-1], strict=True))):
            known = part.node.hint and not GENERATED.match(part.node.hint)
            name = self._names.take(f"in_{part.node.hint if known else 'part'}")
            test = Value(name, BOOL, self._axes(*(b.expr for b in part.chosen)))
            test = self._add(Let(test, "within", (), (("bounds", part.chosen),)), 0)
            found = self._let(node, "where", (test, value, found))
        return found

    def _reduced_ahead(self, node: Node, part: Value) -> Value:
        """A reduction that is done before the columns are walked: what it gives is there in every phase."""
        if self._part.name not in part.axes or self.trace.depth[part] > 0:
            raise UnsupportedError(f"{node.op} of parts that are not there from the start")
        axes = tuple(a for a in part.axes if a != self._part.name)
        out = self._new(node.hint or node.op, node, axes)
        return self._add(Reduce(out, node.op, part, self._part.name, Scope.LANE), 0)

    def _reduced(self, node: Node, part: Value) -> Value:
        depth = self.trace.depth
        if (span := self._spanned(node)) is not None:
            return self._over_spans(node, part, span)
        if self._col.name in part.axes:
            return self._over(node, part, self._col)
        # Every column holds the same value: it is its own maximum, found first at 0, and its sum is a product.
        if node.op in PLACES:
            return self._add(Let(self._new(node.hint or node.op, node, ()), "const", (), (("value", 0),)), depth[part])
        cols = self._domain.cols
        if node.op == "spread":
            return self._made_of("sub", part, part)  # 0, or NaN of what is not finite
        if node.op == "expsum":
            lowest = self._constant(float(np.finfo(node.dtype.numpy).min), node)
            shift = self._made_of("maximum", part, lowest)
            part = self._made_of("exp", self._made_of("sub", part, shift))
        if node.op == "prod" and cols != 1:
            raise UnsupportedError("prod of a value that is the same in every column")
        if node.op in ("sum", "expsum") and cols != 1:
            count = self._count(cols, node)
            return self._add(Let(self._new(node.hint or node.op, node, part.axes), "mul", (part, count)), depth[part])
        return (
            part
            if part.dtype is node.dtype
            else self._add(Let(self._new(node.op, node, part.axes), "cast", (part,)), depth[part])
        )

    def _over(self, node: Node, part: Value, axis: Expr) -> Value:
        """The reduction of a value that varies over an axis."""
        out = self._new(node.hint or node.op, node, tuple(a for a in part.axes if a != axis.name))
        made = Reduce(out, node.op, part, axis.name, Scope.LANE)
        return self._add(made, self.trace.depth[part] + (axis is self._col))

    def _over_spans(self, node: Node, part: Value, span: Expr) -> Value:
        if node.op not in ("sum", "max", "min") or not {span.name, self._col.name} <= set(part.axes):
            raise UnsupportedError(f"{node.op} of rows beside reductions of their blocks")
        return self._over(node, self._over(node, part, self._col), span)

    def _count(self, size: Dim, node: Node) -> Value:
        """A size as a number of the node's type."""
        if isinstance(size, int):
            return self._constant(float(size) if node.dtype.is_float else size, node)
        count = self._add(Let(Value(self._names.take("count"), I64, ()), "index", (), (("expr", size),)), 0)
        return count if node.dtype is I64 else self._add(Let(self._new("count", node, ()), "cast", (count,)), 0)

    def _constant(self, value: float, node: Node) -> Value:
        made = self._add(Let(self._new("constant", node, ()), "const", (), (("value", value),)), 0)
        return self._positions.note_number(made, value)

    def _made_of(self, op: str, *args: Value) -> Value:
        """`op` of values that are the same in every column."""
        out = Value(self._names.take(op), args[0].dtype, args[0].axes)
        return self._add(Let(out, op, args), max(self.trace.depth[a] for a in args))

    def _scanned(self, node: Node, part: Value, index: tuple[Expr, ...]) -> Value:
        axis = node.attr("axis")
        if node.shape[axis] == 1:
            return part
        rest = [i for k, i in enumerate(index) if k != axis]
        if index[axis] is not self._place or any(self._col in symbols(i) for i in rest) or self._picks_in(*rest):
            raise UnsupportedError(f"{node.op}: its result is needed in another order than it is made")
        axes = tuple(s.name for s in self._walked if s is self._col or s.name in part.axes)
        out = self._new(node.hint or node.op, node, axes)
        return self._add(Scan(out, node.op, part, self._col.name, Scope.LANE), self.trace.depth[part])

    def _load(self, node: Node, index: tuple[Expr, ...], within: tuple[Bound, ...]) -> Value:
        layout = self._layouts[node]
        plain, other = (
            substitute(linear(i, layout.strides, layout.offset), self._plain)
            for i in (self._of_ones(index, node.shape), index)
        )
        # A joined part of one row may continue the columns of the others: (col // 64 - 5) * 64 + col % 64 is col - 320.
        at = other if coefficient(plain, self._col) is None and coefficient(other, self._col) is not None else plain
        # A buffer with a stride of 0 may be read at one place for many: then the bound says nothing of it.
        axes, picks = self._axes(at), self._picks_in(at)
        within = tuple(b for b in within if set(self._axes(b.expr)) & set(axes))
        if any(not set(self._axes(b.expr)) <= set(axes) for b in within):
            raise UnsupportedError("a part whose place more axes decide than it varies over")
        buffer = self.trace.reads.get(node)
        depth = max((self.trace.depth[p.value] for p in picks), default=0)
        if buffer is None:
            known = not GENERATED.match(node.hint)
            wish = re.sub(r"_\d+$", "", node.hint) if known else "x" if len(axes) == 2 else "v"
            buffer = self.trace.reads[node] = self._names.take(wish)
            return self._add(Load(Value(buffer, node.dtype, axes), buffer, at, within, picks), depth)
        return self._add(Load(self._new(buffer, node, axes), buffer, at, within, picks), depth)
