"""What lowerings build values with. In: one call's results as captured, and operands. Out: IR nodes with eager's
meaning.

Narrow floats compute in f32: `wide` gives an operand's f32 value, `narrow` rounds a result to the call's type. A
value that was narrowed and is widened again is the rounded f32 expression itself, so graphs carry one `round` a call
and no pairs of casts. Movements of movements are one movement where they can be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import torch

from interfuse.base.errors import UnsupportedError
from interfuse.capture.torch_types import from_torch, to_torch
from interfuse.ir import build
from interfuse.ir.dtypes import BOOL, F32, I64, DType, compute_type
from interfuse.ir.index import Dim, Expr, product, unwrap
from interfuse.ir.node import Node
from interfuse.ir.ops import JOINS, MOVES

Value = Union[Node, bool, int, float]
"""An operand: a tensor or a plain number."""

_EXACT = frozenset(("neg", "abs", "maximum", "minimum", "max", "min", *MOVES, *JOINS))
"""Operators whose result is one of their operands' values, up to sign."""


def fits(value: bool | int | float, dtype: DType) -> bool:
    """True where an integer type holds `value`; floats hold everything."""
    if dtype.kind not in ("int", "uint"):
        return True
    info = np.iinfo(dtype.numpy)
    return info.min <= value <= info.max


def unsupported(reason: str) -> UnsupportedError:
    """The error that keeps one call on the library path; the reason goes on the call."""
    return UnsupportedError(reason)


def number(value: Any) -> bool | int | float:
    """A plain real number. UnsupportedError for a size symbol, a complex number or a tensor."""
    if isinstance(value, Expr):
        raise unsupported("a size symbol used as a number")
    if not isinstance(value, (bool, int, float)):
        raise unsupported(
            "an operand that is no real number" if isinstance(value, complex) else "a tensor where a number is needed"
        )
    return value


# Movement, with neighbours merged.


def reshape(x: Node, shape: Sequence[Dim]) -> Node:
    """x in another shape; a reshape of a reshape is one."""
    while x.op == "reshape":
        x = x.inputs[0]
    return build.reshape(x, tuple(shape))


def permute(x: Node, order: Sequence[int]) -> Node:
    """x with dimensions reordered; permutes of permutes are one, and one that only moves sizes of 1 is a reshape."""
    if x.op == "permute":
        inner = x.attr("order")
        return permute(x.inputs[0], [inner[p] for p in order])
    moved = [p for p in order if x.shape[p] != 1]
    if moved == sorted(moved):
        return reshape(x, [x.shape[p] for p in order])
    return build.permute(x, tuple(order))


def expand(x: Node, shape: Sequence[Dim]) -> Node:
    """x broadcast to `shape` by PyTorch's rule; an expand of an expand is one."""
    while x.op == "expand" and len(x.shape) == len(shape):
        x = x.inputs[0]
    if len(x.shape) != len(shape):
        x = reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    return build.expand(x, tuple(shape))


def take_slice(x: Node, axis: int, start: Dim, count: Dim, step: int = 1) -> Node:
    """`count` elements of x from `start` along one axis."""
    starts: list[Dim] = [0] * len(x.shape)
    shape, steps = list(x.shape), [1] * len(x.shape)
    starts[axis], shape[axis], steps[axis] = start, count, step
    return build.take_slice(x, tuple(starts), tuple(shape), tuple(steps))


def axis_of(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


def axes_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Reduced dimensions from the front, sorted; None and [] mean all."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    return tuple(sorted({axis_of(d, rank) for d in ([dims] if isinstance(dims, int) else dims)}))


# Width.


def _as_held(value: float, to: DType) -> float:
    """`value` rounded to the floating type `to`."""
    with np.errstate(over="ignore"):
        return float(np.asarray(value, np.float32).astype(to.numpy))


def _already(x: Node, to: DType, depth: int = 8) -> bool:
    """True where the f32 value x surely is one of `to`'s values, so that rounding it changes nothing."""
    if x.op == "round":
        return x.attr("to") == to.name
    if x.op == "cast":
        return x.inputs[0].dtype in (to, BOOL)
    if x.op == "const":
        value = x.attr("value")
        return math.isnan(value) or float(_as_held(value, to)) == value
    if depth == 0:
        return False
    if x.op == "pad" and not _already(build.constant(x.attr("value"), x.dtype), to):
        return False
    if x.op == "where":
        return all(_already(i, to, depth - 1) for i in x.inputs[1:])
    return x.op in _EXACT and all(_already(i, to, depth - 1) for i in x.inputs)


def wide(x: Node) -> Node:
    """x in its compute type. For a narrow float that is f32: the f32 expression behind it where there is one, else a
    cast, before movements."""
    if not x.dtype.is_narrow:
        return x
    moves: list[Node] = []
    while x.op in MOVES:
        moves.append(x)
        x = x.inputs[0]
    if x.op == "const":
        out = build.constant(_as_held(x.attr("value"), x.dtype), F32)
    elif x.op == "cast" and x.inputs[0].dtype is F32 and _already(x.inputs[0], x.dtype):
        out = x.inputs[0]
    else:
        out = build.cast(x, F32)
    for m in reversed(moves):
        out = _moved(m, out)
    return out


def _moved(move: Node, x: Node) -> Node:
    """The movement `move` applied to x instead."""
    if move.op == "reshape":
        return reshape(x, move.shape)
    if move.op == "permute":
        return permute(x, move.attr("order"))
    if move.op == "expand":
        return expand(x, move.shape)
    return build.take_slice(x, move.attr("starts"), move.shape, move.attr("steps"))


def rounded(x: Node, to: DType) -> Node:
    """The wide value x as eager's result of type `to` would hold it, still wide."""
    return x if not to.is_narrow or _already(x, to) else build.rounded(x, to)


def narrow(x: Node, to: DType) -> Node:
    """The wide value x as a node of type `to`."""
    return build.cast(rounded(x, to), to) if to.is_narrow else build.cast(x, to)


def convert(x: Node, to: DType) -> Node:
    """x converted to `to` and then to to's compute type: what eager's kernel sees of it after type promotion."""
    if x.dtype is to:
        return wide(x)
    return rounded(build.cast(wide(x), compute_type(to)), to)


# Type promotion.

_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def _category(value: Value) -> int:
    if isinstance(value, Node):
        return _CATEGORY[value.dtype.kind]
    return 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2


def promote(*values: Value) -> DType:
    """PyTorch's common type: tensors with dimensions decide, unless a 0-d tensor, or after that a plain number, is of a
    higher category (bool, integer, float)."""
    numbers = (torch.bool, torch.int64, torch.get_default_dtype())
    groups = (
        [v for v in values if isinstance(v, Node) and v.shape],
        [v for v in values if isinstance(v, Node) and not v.shape],
        [v for v in values if not isinstance(v, Node)],
    )
    found, top = torch.bool, -1
    for group in groups:
        highest = max(map(_category, group), default=-1)
        if highest > top:
            types = [to_torch(v.dtype) if isinstance(v, Node) else numbers[_category(v)] for v in group]
            found, top = functools.reduce(torch.promote_types, types), highest
    return from_torch(found)


def broadcast_shape(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape by PyTorch's rule. UnsupportedError where symbolic sizes do not surely agree."""
    rank = max(map(len, shapes), default=0)
    out: list[Dim] = []
    for k in range(rank):
        sizes = {s[len(s) - rank + k] for s in shapes if len(s) - rank + k >= 0} - {1}
        if len(sizes) > 1:
            raise unsupported("sizes that may differ")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


class Maker:
    """Builds the nodes of one call. `dtypes` and `shapes` are its results' as captured; `dtype`, `shape` the first
    one's.
    """

    def __init__(self, dtypes: Sequence[DType], shapes: Sequence[tuple[Dim, ...]], source: str, name: str) -> None:
        self.dtypes, self.shapes, self.source, self.name = tuple(dtypes), tuple(shapes), source, name
        self.dtype, self.shape = self.dtypes[0], self.shapes[0]

    def __call__(self, op: str, *values: Value, hint: str = "") -> Node:
        """An element-wise operator on operands of one type; numbers take that type, and shapes are broadcast."""
        nodes = [v for v in values if isinstance(v, Node)]
        dtype = next((v.dtype for v in reversed(nodes) if op != "where" or v is not values[0]), nodes[0].dtype)
        shape = broadcast_shape([v.shape for v in nodes])
        full = [expand(v, shape) if isinstance(v, Node) else self.constant(v, dtype, shape) for v in values]
        return build.apply(op, *full, source=self.source, hint=hint or op)

    def constant(self, value: bool | int | float, dtype: DType, shape: Sequence[Dim] = ()) -> Node:
        """A constant of a shape. UnsupportedError where an integer type does not hold it."""
        if not fits(value, dtype):
            raise unsupported(f"the number {value} is outside {dtype}")
        return expand(build.constant(value, dtype), tuple(shape))

    def reduce(
        self, op: str, x: Node, axes: Sequence[int], keepdims: bool = False, hint: str = "", **attrs: Any
    ) -> Node:
        """A reduction; one over no dimensions (of a 0-d tensor) runs over a dimension of size 1 put there for it."""
        if not x.shape:
            return self.reduce(op, reshape(x, (1,)), (0,), False, hint, **attrs)
        if not axes:
            return self.reduce(op, reshape(x, (*x.shape, 1)), (len(x.shape),), False, hint, **attrs)
        if op in ("max", "min") and product(tuple(x.shape[a] for a in axes)) == 0:
            raise unsupported("the largest or smallest of no elements")
        return build.reduce(op, x, tuple(axes), keepdims, hint=hint or op, source=self.source, **attrs)

    def count(self, x: Node, axes: Sequence[int]) -> Dim:
        """How many elements a reduction over `axes` joins."""
        return unwrap(product(tuple(x.shape[a] for a in axes)))

    def part(self, x: Node, axis: int, start: Dim, count: Dim, step: int = 1) -> Node:
        """`count` elements of x from `start` along one axis."""
        return take_slice(x, axis, start, count, step)

    def narrow(self, x: Node, k: int = 0) -> Node:
        """The wide value x as result k."""
        return narrow(x, self.dtypes[k])

    def iota(self, size: Dim, dtype: DType = I64) -> Node:
        """0, 1, ..., size - 1."""
        return build.iota(size, dtype)
