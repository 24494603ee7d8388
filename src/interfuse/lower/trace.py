"""Tracing a region over its domain. In: outputs, inputs, a domain and its two index symbols. Out: values in order.

Each node is asked for at an index; movements turn into other indices, inputs into loads, everything else into one
value. A value's depth counts the reductions that must be finished before it; it becomes the value's phase in the loop
tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import I64
from interfuse.ir.index import Dim, Expr, const, delinearize, linear, mod, product, substitute, symbols, unwrap
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES, REDUCES, SCANS
from interfuse.lower.domain import Domain, core_of, pull, push
from interfuse.lower.kernel import Let, Load, Reduce, Scan, Scope, Store, Value

Made = Union[Load, Let, Reduce, Scan]


@dataclass
class Trace:
    """What a region computes: `made` in an order that respects operands, `stores`, and each value's depth."""

    made: list[Made] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    depth: dict[Value, int] = field(default_factory=dict)
    reads: dict[Node, str] = field(default_factory=dict)


_GENERATED = re.compile(
    r"^((arg|primals|tangents|input|view|permute|getitem|t|_unsafe_view)[_\d]*|l_.*)?$", re.IGNORECASE
)


class _Names:
    """Readable, unique names."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {"outer": 1, "row": 1, "col": 1, "at": 1, "tl": 1, "triton": 1}

    def take(self, wish: str) -> str:
        """`wish` as an identifier, numbered where it is taken."""
        wish = re.sub(r"\W", "_", wish).strip("_").lower() or "v"
        wish = f"v_{wish}" if wish[0].isdigit() else wish
        count = self._used.get(wish, 0) + 1
        self._used[wish] = count
        return wish if count == 1 else self.take(f"{wish}_{count}")


class Tracer:
    """Traces one region. `row`, `col` and `inner` are the indices along the domain's rows, columns and what lies after
    them: symbols, or 0 where there is one index only.
    """

    def __init__(
        self,
        inputs: frozenset[Node],
        layouts: Mapping[Node, Layout],
        domain: Domain,
        row: Expr,
        col: Expr,
        inner: Expr = const(0),
    ) -> None:
        self._inputs, self._layouts, self._domain = inputs, layouts, domain
        self._row, self._col, self._inner = row, col, inner
        # While indices are worked out, `% size` says of an index that it stays below a size that changes.
        bounded = {mod(i, n): i for i, n in ((col, domain.cols), (inner, domain.inner)) if isinstance(n, Expr)}
        self._plain: dict[Expr, Dim] = dict(bounded) if domain.rows != 1 or domain.reduces else {}
        marked = {i: b for b, i in self._plain.items()}
        self._place = domain.cols - 1 - col if domain.backwards else marked.get(col, col)  # the column that is walked
        self._within = marked.get(inner, inner)
        self._memo: dict[tuple[Node, tuple[Expr, ...]], Value] = {}
        self._names = _Names()
        self.trace = Trace()

    def _axes(self, *expressions: Expr) -> tuple[str, ...]:
        found = frozenset().union(*(symbols(e) for e in expressions)) if expressions else frozenset()
        return tuple(s.name for s in (self._row, self._col, self._inner) if s in found)

    def _new(self, wish: str, node: Node, axes: tuple[str, ...]) -> Value:
        return Value(self._names.take(wish), node.dtype, axes)

    def _add(self, made: Made, depth: int) -> Value:
        self.trace.made.append(made)
        self.trace.depth[made.out] = depth
        return made.out

    def output(self, node: Node, buffer: str) -> None:
        """Trace an output and store it into `buffer`, laid out as the region's layouts say."""
        domain = self._domain
        core, chain = core_of(node, self._inputs)
        wide = domain.cols != 1 and product(node.shape) == unwrap(domain.kept * domain.cols)
        flat = (self._row * domain.cols + self._place if wide else self._row) * domain.inner + self._within
        index = delinearize(flat, core.shape)
        value = self.value(core, index)
        layout = self._layouts[node]
        at = substitute(linear(push(node, index, chain), layout.strides, layout.offset), self._plain)
        self.trace.stores.append(Store(buffer, at, value))

    def value(self, node: Node, index: tuple[Expr, ...]) -> Value:
        """The value of `node` at `index`. Iterative over long chains: operands are made before their users."""
        stack = [(node, index)]
        while stack:
            n, i = stack[-1]
            if (n, i) in self._memo:
                stack.pop()
                continue
            missing = [k for k in self._operands(n, i) if k not in self._memo]
            if missing:
                stack.extend(reversed(missing))
                continue
            self._memo[n, i] = self._make(n, i)
            stack.pop()
        return self._memo[node, index]

    def _operands(self, node: Node, index: tuple[Expr, ...]) -> list[tuple[Node, tuple[Expr, ...]]]:
        if node in self._inputs:
            return []
        if node.op in MOVES:
            return [(node.inputs[0], pull(node, index))]
        if node.op in REDUCES:
            return [(node.inputs[0], self._operand_index(node, index))]
        return [(operand, index) for operand in node.inputs]

    def _operand_index(self, node: Node, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The operand's index of a reduction: the column spread over the reduced dimensions."""
        if any(self._col in symbols(i) for i in index):
            raise UnsupportedError(f"{node.op}: its result is needed in another order than its rows")
        shape, axes = node.inputs[0].shape, node.attr("axes")
        columns = iter(delinearize(self._place, tuple(shape[a] for a in axes)))
        rest = iter(index)
        return tuple(next(columns) if k in axes else next(rest) for k in range(len(shape)))

    def _make(self, node: Node, index: tuple[Expr, ...]) -> Value:
        depth = self.trace.depth
        if node in self._inputs:
            return self._load(node, index)
        parts = [self._memo[k] for k in self._operands(node, index)]
        if node.op in MOVES or node.op == "copy":
            return parts[0]
        if node.op == "const":
            return self._add(Let(self._new("constant", node, ()), "const", (), node.attrs), 0)
        if node.op == "iota":
            at = substitute(index[0], self._plain)
            out = Value(self._names.take("position"), I64, self._axes(at))
            position = self._add(Let(out, "index", (), (("expr", at),)), 0)
            if node.dtype is I64:
                return position
            return self._add(Let(self._new("position", node, out.axes), "cast", (position,)), 0)
        if node.op in REDUCES:
            return self._reduced(node, parts[0])
        if node.op in SCANS:
            return self._scanned(node, parts[0], index)
        order = (self._row.name, self._col.name, self._inner.name)
        axes = tuple(name for name in order if any(name in p.axes for p in parts))
        made = Let(self._new(node.hint or node.op, node, axes), node.op, tuple(parts), node.attrs, node.source)
        return self._add(made, max((depth[p] for p in parts), default=0))

    def _reduced(self, node: Node, part: Value) -> Value:
        depth = self.trace.depth
        if self._col.name in part.axes:
            axes = tuple(a for a in part.axes if a != self._col.name)
            out = self._new(node.hint or node.op, node, axes)
            return self._add(Reduce(out, node.op, part, self._col.name, Scope.LANE), depth[part] + 1)
        # Every column holds the same value: it is its own maximum, found first at 0, and its sum is a product.
        if node.op in ("argmax", "argmin"):
            return self._add(Let(self._new(node.hint or node.op, node, ()), "const", (), (("value", 0),)), depth[part])
        cols = self._domain.reduced
        if node.op == "prod" and cols > 1:
            raise UnsupportedError("prod of a value that is the same in every column")
        if node.op == "sum" and cols > 1:
            value = float(cols) if node.dtype.is_float else cols
            count = self._add(Let(self._new("columns", node, ()), "const", (), (("value", value),)), 0)
            return self._add(Let(self._new(node.hint or node.op, node, part.axes), "mul", (part, count)), depth[part])
        return (
            part
            if part.dtype is node.dtype
            else self._add(Let(self._new(node.op, node, part.axes), "cast", (part,)), depth[part])
        )

    def _scanned(self, node: Node, part: Value, index: tuple[Expr, ...]) -> Value:
        axis = node.attr("axis")
        if node.shape[axis] == 1:
            return part
        rest = [i for k, i in enumerate(index) if k != axis]
        if index[axis] is not self._place or any(self._col in symbols(i) for i in rest):
            raise UnsupportedError(f"{node.op}: its result is needed in another order than it is made")
        axes = tuple(s.name for s in (self._row, self._col, self._inner) if s is self._col or s.name in part.axes)
        out = self._new(node.hint or node.op, node, axes)
        return self._add(Scan(out, node.op, part, self._col.name, Scope.LANE), self.trace.depth[part])

    def _load(self, node: Node, index: tuple[Expr, ...]) -> Value:
        layout = self._layouts[node]
        at = substitute(linear(index, layout.strides, layout.offset), self._plain)
        buffer = self.trace.reads.get(node)
        axes = self._axes(at)
        if buffer is None:
            known = not _GENERATED.match(node.hint)
            wish = re.sub(r"_\d+$", "", node.hint) if known else "x" if len(axes) == 2 else "v"
            buffer = self.trace.reads[node] = self._names.take(wish)
            return self._add(Load(Value(buffer, node.dtype, axes), buffer, at), 0)
        return self._add(Load(self._new(buffer, node, axes), buffer, at), 0)
