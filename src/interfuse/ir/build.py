"""Typed constructors of nodes. In: operators and operands. Out: nodes whose dtype and shape follow the table's rules.

Element-wise operands must already have one shape: broadcasting is spelled `expand`, here by `broadcast`. GraphError
says which rule an operand breaks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from interfuse.ir.check import (
    check_concat,
    check_operands,
    check_pad,
    check_value,
    picks_from,
    require,
    row_of,
    slice_fits,
)
from interfuse.ir.dtypes import BOOL, F32, I64, DType
from interfuse.ir.index import Dim, product, unwrap, wrap
from interfuse.ir.node import Node, make
from interfuse.ir.ops import ELEMENTWISE, REDUCE, SCAN, result_type


def constant(value: bool | int | float, dtype: DType) -> Node:
    """The 0-d constant `value` of `dtype`; GraphError where an integer type cannot hold it exactly."""
    if dtype.kind in ("int", "uint"):
        require(math.isfinite(value) and int(value) == value, f"{value!r} is no constant of {dtype}")
        value = int(value)
    else:
        value = bool(value) if dtype.kind == "bool" else float(value)
    check_value(value, dtype)
    return make("const", (), dtype, (), value=value)


def iota(size: Dim, dtype: DType = I64) -> Node:
    """0, 1, ..., size - 1, shape [size]."""
    require(dtype is not BOOL and wrap(size).hi >= 0, f"iota of {size} as {dtype}")
    return make("iota", (), dtype, (size,))


def placeholder(name: str, dtype: DType, shape: tuple[Dim, ...]) -> Node:
    """The graph input `name`."""
    require(bool(name) and all(wrap(d).hi >= 0 for d in shape), f"input {name!r} of shape {shape}")
    return make("input", (), dtype, tuple(shape), name=name, hint=name)


def apply(op: str, *inputs: Node, dtype: DType | None = None, source: str = "", hint: str = "", **attrs: Any) -> Node:
    """An element-wise operator on operands of one shape; `dtype` only for cast, whose result the table leaves open."""
    row = row_of(op, ELEMENTWISE)
    require(row.arity == len(inputs), f"{op} takes {row.arity} operands, not {len(inputs)}")
    same = all(i.shape == inputs[0].shape for i in inputs)
    require(same, f"{op} on shapes {[i.shape for i in inputs]}: broadcast first")
    types = tuple(i.dtype for i in inputs)
    check_operands(op, types)
    out = result_type(row, types) or dtype
    require(out is not None and dtype in (None, out), f"{op} gives {out}, not {dtype}")
    assert out is not None
    return make(op, inputs, out, inputs[0].shape, source=source, hint=hint, **attrs)


def cast(x: Node, dtype: DType) -> Node:
    """x converted to `dtype`: floats round to nearest even, float to integer truncates, anything to bool tests != 0."""
    return x if x.dtype is dtype else make("cast", (x,), dtype, x.shape, hint=x.hint)


def rounded(x: Node, to: DType) -> Node:
    """x (f32) rounded to the values that the narrow type `to` has, kept as f32: what eager's narrow result would be."""
    require(x.dtype is F32 and to.is_narrow, f"round from {x.dtype} to {to}")
    return make("round", (x,), F32, x.shape, to=to.name, hint=x.hint)


def reshape(x: Node, shape: tuple[Dim, ...]) -> Node:
    """x with another shape of as many elements, row-major order kept."""
    require(product(x.shape) == product(shape), f"reshape {x.shape} to {shape}")
    return x if x.shape == tuple(shape) else make("reshape", (x,), x.dtype, tuple(shape), hint=x.hint)


def permute(x: Node, order: tuple[int, ...]) -> Node:
    """x with dimension k of the result being dimension order[k] of x."""
    require(sorted(order) == list(range(len(x.shape))), f"permute {x.shape} by {order}")
    if tuple(order) == tuple(range(len(order))):
        return x
    return make("permute", (x,), x.dtype, tuple(x.shape[p] for p in order), order=tuple(order), hint=x.hint)


def expand(x: Node, shape: tuple[Dim, ...]) -> Node:
    """x with dimensions of size 1 repeated to `shape`, of the same rank."""
    fits = len(shape) == len(x.shape) and all(a in (b, 1) for a, b in zip(x.shape, shape, strict=True))
    require(fits, f"expand {x.shape} to {shape}")
    return x if x.shape == tuple(shape) else make("expand", (x,), x.dtype, tuple(shape), hint=x.hint)


def take_slice(x: Node, starts: tuple[Dim, ...], shape: tuple[Dim, ...], steps: tuple[int, ...] | None = None) -> Node:
    """x[starts[k] : : steps[k]] with shape[k] elements along each dimension; a negative step walks backwards."""
    steps = steps or (1,) * len(shape)
    ranks = len(starts) == len(shape) == len(x.shape) == len(steps)
    require(ranks and 0 not in steps, f"slice {x.shape} at {starts}")
    fits = all(map(slice_fits, x.shape, starts, steps, shape))
    require(fits, f"slice of {shape} at {starts} by {steps} leaves {x.shape}")
    if x.shape == tuple(shape) and all(s == 0 for s in starts) and all(s == 1 for s in steps):
        return x
    return make("slice", (x,), x.dtype, tuple(shape), starts=tuple(starts), steps=tuple(steps), hint=x.hint)


def flip(x: Node, axes: Sequence[int]) -> Node:
    """x with the order of its elements along `axes` turned round."""
    turned = [k in axes and d not in (0, 1) for k, d in enumerate(x.shape)]
    starts = tuple(unwrap(wrap(d) - 1) if t else 0 for d, t in zip(x.shape, turned, strict=True))
    return take_slice(x, starts, x.shape, tuple(-1 if t else 1 for t in turned))


def concat(parts: Sequence[Node], axis: int, hint: str = "concat", source: str = "") -> Node:
    """The parts one after another along `axis` (not negative): of one type, other sizes equal; a single part is
    itself.
    """
    check_operands("concat", tuple(p.dtype for p in parts))
    shape = check_concat(axis, [p.shape for p in parts])
    if len(parts) == 1:
        return parts[0]
    return make("concat", tuple(parts), parts[0].dtype, shape, source=source, hint=hint, axis=axis)


def pad(
    x: Node,
    lo: tuple[Dim, ...],
    hi: tuple[Dim, ...],
    value: bool | int | float = 0,
    hint: str = "pad",
    source: str = "",
) -> Node:
    """x with lo[k] elements `value` before it and hi[k] after it along each dimension, none of them negative."""
    shape = check_pad(x.shape, lo, hi)
    check_operands("pad", (x.dtype,))
    held = constant(value, x.dtype).attr("value")
    if all(p == 0 for p in (*lo, *hi)):
        return x
    return make("pad", (x,), x.dtype, shape, source=source, hint=hint, lo=tuple(lo), hi=tuple(hi), value=held)


def gather(source: Node, index: Node, axis: int, wraps: bool = False) -> Node:
    """source's elements at index[j] along `axis`, of index's shape (NumPy's take_along_axis).

    The index is i32 or i64 of the source's sizes but along the axis. With `wraps` negative ones count from the end;
    what lies outside the source is the caller's error, as in PyTorch.
    """
    check_operands("gather", (source.dtype, index.dtype))
    require(picks_from(source.shape, index.shape, axis), f"gather {index.shape} along {axis} of {source.shape}")
    return make("gather", (source, index), source.dtype, index.shape, axis=axis, wraps=wraps, hint="picked")


def broadcast(x: Node, shape: tuple[Dim, ...]) -> Node:
    """x broadcast to `shape` by PyTorch's rule: leading dimensions added, then sizes of 1 repeated."""
    require(len(x.shape) <= len(shape), f"broadcast {x.shape} to {shape}")
    return expand(reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def size(count: Dim, dtype: DType) -> Node:
    """A size as one number of `dtype`, of no dimensions: the place of the last of so many and one positions."""
    last = take_slice(iota(unwrap(wrap(count) + 1)), (count,), (1,))
    return reshape(cast(last, dtype), ())


def like(value: float, x: Node) -> Node:
    """A number in the type and shape of x."""
    return broadcast(constant(value, x.dtype), x.shape)


def spread_over(kept: Node, x: Node, axes: tuple[int, ...]) -> Node:
    """A reduction's result beside every element of x that went into it, over `axes`."""
    return expand(reshape(kept, tuple(1 if k in axes else d for k, d in enumerate(x.shape))), x.shape)


def reduce(
    op: str, x: Node, axes: tuple[int, ...], keepdims: bool = False, hint: str = "", source: str = "", **attrs: Any
) -> Node:
    """A reduction over `axes` (non-negative, sorted); `variance` takes correction=, argmax and argmin one axis.

    keepdims puts the reduced sizes back as 1 by a reshape. Reductions over no elements give the operator's identity
    (max and min of nothing are the caller's error, as in PyTorch).
    """
    row, arg = row_of(op, REDUCE), op in ("argmax", "argmin")
    require(len(set(axes)) == len(axes) and all(0 <= a < len(x.shape) for a in axes), f"{op} over {axes} of {x.shape}")
    require(not arg or len(axes) == 1, f"{op} takes one axis, not {axes}")
    require(set(attrs) == ({"correction"} if op == "variance" else set()), f"{op} with attributes {sorted(attrs)}")
    require(not ((arg or op in ("max", "min")) and any(x.shape[a] == 0 for a in axes)), f"{op} of no elements")
    check_operands(op, (x.dtype,))
    shape = tuple(d for k, d in enumerate(x.shape) if k not in axes)
    dtype = I64 if arg else BOOL if row.result == "bool" else x.dtype
    out = make(op, (x,), dtype, shape, axes=tuple(sorted(axes)), hint=hint or op, source=source, **attrs)
    return reshape(out, tuple(1 if k in axes else d for k, d in enumerate(x.shape))) if keepdims else out


def scan(op: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """A cumulative operator along one axis, of x's shape."""
    row_of(op, SCAN)
    check_operands(op, (x.dtype,))
    require(0 <= axis < len(x.shape), f"{op} along {axis} of {x.shape}")
    return make(op, (x,), x.dtype, x.shape, axis=axis, reverse=reverse)


def linear(x: Node, weight: Node, bias: Node | None = None, hint: str = "linear") -> Node:
    """x[M, K] by weight[N, K] transposed, plus bias[N] where given: [M, N]; sums in f32 or wider, rounded once."""
    fits = len(x.shape) == len(weight.shape) == 2 and x.shape[1] == weight.shape[1]
    require(fits, f"linear {x.shape} by {weight.shape}")
    require(bias is None or bias.shape == (weight.shape[0],), "linear: bias must be [N]")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    check_operands("linear", tuple(i.dtype for i in inputs))
    return make("linear", inputs, x.dtype, (x.shape[0], weight.shape[0]), hint=hint)
