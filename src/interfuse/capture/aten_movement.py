"""Movement and constants. In: ATen calls of views, copies, parts, fills and ranges. Out: movements of their operands,
iotas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, axis_of, convert, expand, number, permute, reshape, unsupported
from interfuse.ir import build, index
from interfuse.ir.dtypes import F64, I64
from interfuse.ir.index import Dim
from interfuse.ir.node import Node


@lowers("view", "_unsafe_view", "_reshape_alias", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze")
def _reshape(c: Maker, self: Node, *_: Any, **__: Any) -> Node:
    return reshape(self, c.shape)


@lowers("alias", "detach")
def _same(c: Maker, self: Node, *_: Any) -> Node:
    return self


@lowers("expand")
def _expand(c: Maker, self: Node, size: Sequence[Dim], implicit: bool = False) -> Node:
    return expand(self, c.shape)


@lowers("permute")
def _permute(c: Maker, self: Node, dims: Sequence[int]) -> Node:
    return permute(self, [axis_of(d, len(self.shape)) for d in dims])


@lowers("t")
def _t(c: Maker, self: Node) -> Node:
    return self if len(self.shape) < 2 else permute(self, (1, 0))


@lowers("transpose.int")
def _transpose(c: Maker, self: Node, dim0: int, dim1: int) -> Node:
    order = list(range(len(self.shape)))
    if order:
        a, b = axis_of(dim0, len(order)), axis_of(dim1, len(order))
        order[a], order[b] = order[b], order[a]
    return permute(self, order)


def clamped(value: Any, size: Dim, missing: Dim) -> Dim:
    """A slice bound counted from the front and kept inside the dimension. UnsupportedError where symbols decide."""
    if value is None:
        return missing
    if isinstance(value, int) and value >= index.wrap(size).hi:
        return size
    if not isinstance(value, int) or (value < 0 and not isinstance(size, int)):
        # A symbolic bound: keep it where it surely lies in the dimension.
        bound = index.add(value, size) if isinstance(value, int) else value
        if bound.lo < 0 or not (bound is index.wrap(size) or index.add(size, index.mul(bound, -1)).lo >= 0):
            raise unsupported("a slice whose ends depend on sizes")
        return index.unwrap(bound)
    if isinstance(size, int):
        return max(0, min(size, value + size if value < 0 else value))
    if value <= size.lo:
        return value
    raise unsupported("a slice whose ends depend on sizes")


@lowers("slice.Tensor")
def _slice(c: Maker, self: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Node:
    axis = axis_of(dim, len(self.shape))
    first = clamped(start, self.shape[axis], 0)
    if not isinstance(step, int) or any(
        k != axis and a != b for k, (a, b) in enumerate(zip(self.shape, c.shape, strict=True))
    ):
        raise unsupported("a slice whose ends depend on sizes")
    return c.part(self, axis, 0 if c.shape[axis] == 0 else first, c.shape[axis], step)


@lowers("select.int")
def _select(c: Maker, self: Node, dim: int, index: Any) -> Node:
    axis = axis_of(dim, len(self.shape))
    return reshape(_one(c, self, axis, index), c.shape)


def _one(c: Maker, x: Node, axis: int, at: Any) -> Node:
    """x's single element at a position along one axis, kept as a dimension of 1."""
    size = x.shape[axis]
    position = index.unwrap(index.add(at, size)) if isinstance(at, int) and at < 0 else at
    if not (isinstance(position, int) and isinstance(size, int)) and not (
        index.wrap(position).lo >= 0 and index.add(size, index.mul(position, -1)).lo >= 1
    ):
        raise unsupported("a position that depends on sizes")
    return c.part(x, axis, position, 1)


@lowers("unbind.int")
def _unbind(c: Maker, self: Node, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, len(self.shape))
    return tuple(reshape(c.part(self, axis, k, 1), shape) for k, shape in enumerate(c.shapes))


@lowers("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "unsafe_split_with_sizes")
def _split(c: Maker, self: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, len(self.shape))
    start: Dim = 0
    parts = []
    for shape in c.shapes:
        parts.append(c.part(self, axis, start, shape[axis]))
        start = index.unwrap(index.add(start, shape[axis]))
    return tuple(parts)


# Constants: what a fill writes, without its buffer.


@lowers("full", "full_like", "new_full", "fill.Scalar")
def _full(c: Maker, first: Any, *rest: Any, **_: Any) -> Node:
    return c.constant(_typed(number(rest[-1]), c), c.dtype, c.shape)


@lowers("scalar_tensor")
def _scalar_tensor(c: Maker, s: Any, **_: Any) -> Node:
    return c.constant(_typed(number(s), c), c.dtype)


def _typed(value: bool | int | float, c: Maker) -> bool | int | float:
    if c.dtype.kind in ("int", "uint") and isinstance(value, float):
        if not math.isfinite(value):
            raise unsupported("a fill that its type cannot hold")
        return int(value)
    return value


@lowers("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(c: Maker, *_: Any, **__: Any) -> Node:
    return c.constant(0, c.dtype, c.shape)


@lowers("ones", "ones_like", "new_ones")
def _ones(c: Maker, *_: Any, **__: Any) -> Node:
    return c.constant(1, c.dtype, c.shape)


@lowers("arange", "arange.start", "arange.start_step", "prims.iota")
def _arange(c: Maker, *numbers: Any, **named: Any) -> Node:
    start, step = _range(c.name, numbers, named)
    x = build.iota(c.shape[0], I64)
    if c.dtype.is_float:
        x = build.cast(x, F64)
    else:
        start, step = int(start), int(step)  # as eager truncates them for an integer range
    x = x if step == 1 else c("mul", x, step, hint="steps")
    x = x if start == 0 else c("add", x, start, hint="range")
    return c.narrow(convert(x, c.dtype))


def _range(name: str, numbers: Sequence[Any], named: dict[str, Any]) -> tuple[Any, Any]:
    """(start, step) of one of arange's forms."""
    if name.startswith("prims"):
        return number(named.get("start", 0)), number(named.get("step", 1))
    if name.endswith("default"):
        return 0, 1
    return number(numbers[0]), number(numbers[2]) if len(numbers) > 2 else 1


@lowers("tril", "triu")
def _triangle(c: Maker, self: Node, diagonal: Any = 0) -> Node:
    lead = len(self.shape) - 2
    rows, columns = (
        expand(reshape(build.iota(n, I64), (n, 1) if k == 0 else (1, n)), self.shape[lead:])
        for k, n in enumerate(self.shape[lead:])
    )
    gap = c("sub", columns, rows, hint="diagonal")
    kept = c("le" if "tril" in c.name else "ge", gap, number(diagonal), hint="triangle")
    return c.narrow(c("where", expand(kept, self.shape), convert(self, c.dtype), 0, hint=c.name.split(".")[1]))
