"""What each operator means, in NumPy. In: a node and its operands' arrays. Out: the array that the node stands for.

`wide` asks for the judge's meaning: every float in float64 and roundings left out; without it, the types that the node
states. Written for being right, not fast: tests judge by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interfuse.ir.dtypes import ALL, F8E4M3, DType

Array = np.ndarray
Meaning = Callable[[Any, Sequence[Array], bool], Array]


def held_type(dtype: DType, wide: bool) -> np.dtype:
    """The NumPy type in which a value of `dtype` is held: float64 for floats where wide."""
    return np.dtype(np.float64) if wide and dtype.is_float else dtype.numpy


def _each(wrap: Callable[[Callable[..., Any]], Meaning], *functions: Callable[..., Any]) -> list[Meaning]:
    return [wrap(f) for f in functions]


def _pointwise(f: Callable[..., Any]) -> Meaning:
    def meaning(node: Any, args: Sequence[Array], wide: bool) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(f(*args)).astype(held_type(node.dtype, wide), copy=False)

    return meaning


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _erf_any(x: Array) -> Array:
    return _erf(x.astype(np.float64)) if x.size else x


def _normal_cdf(x: Array) -> Array:
    return 0.5 * _erfc(-math.sqrt(0.5) * x.astype(np.float64)) if x.size else x


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)) + x * 0  # x * 0 keeps NaN; inf gives NaN, mended below


def _stable_sigmoid(x: Array) -> Array:
    return np.where(np.isinf(x), (x > 0).astype(x.dtype), _sigmoid(x))


def _truncated_div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    floored = np.floor_divide(a, b)
    return floored + ((floored < 0) & (floored * b != a))


def _remainder(a: Array, b: Array) -> Array:
    # The C remainder, moved by one divisor where its sign differs; NumPy's own gives a zero the divisor's sign.
    if a.dtype.kind != "f":
        return np.remainder(a, b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _floordiv(a: Array, b: Array) -> Array:
    # The exact quotient of a less its remainder, then floored, as Python does; x / 0 keeps IEEE's infinity.
    if a.dtype.kind != "f":
        return np.floor_divide(a, b)
    rest = np.fmod(a, b)
    quotient = (a - rest) / b - ((rest != 0) & ((b < 0) != (rest < 0)))
    near = np.floor(quotient)
    near = np.where(quotient - near > 0.5, near + 1, near)
    return np.where(b == 0, a / b, np.where(quotient == 0, np.copysign(np.zeros_like(a), a / b), near))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b)
    # Integers: 1 / a**n truncates to 0 but for a = 1 and a = -1.
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _narrowed(x: Array, dtype: DType) -> Array:
    """x as a narrow float: wider floats and integers pass through float32, and f8e4m3, which has no infinity,
    saturates.
    """
    x = x if x.dtype.itemsize < 4 and x.dtype.kind != "i" else x.astype(np.float32)
    return (np.clip(x.astype(np.float32), -448, 448) if dtype is F8E4M3 else x).astype(dtype.numpy)


copy = _pointwise(lambda x: x)
neg, absolute, sqrt, exp, exp2, expm1 = _each(_pointwise, np.negative, np.abs, np.sqrt, np.exp, np.exp2, np.expm1)
log, log2, log10, log1p, sin, cos, tan = _each(_pointwise, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan)
asin, acos, atan, sinh, cosh, tanh = _each(_pointwise, np.arcsin, np.arccos, np.arctan, np.sinh, np.cosh, np.tanh)
floor, ceil, trunc, rint, isnan, isinf = _each(_pointwise, np.floor, np.ceil, np.trunc, np.rint, np.isnan, np.isinf)
rsqrt, sigmoid, erf, invert = _each(_pointwise, lambda x: 1 / np.sqrt(x), _stable_sigmoid, _erf_any, np.invert)
normal_cdf = _pointwise(_normal_cdf)
sign = _pointwise(lambda x: np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x))
add, sub, mul, div = _each(_pointwise, np.add, np.subtract, np.multiply, _truncated_div)
floordiv, remainder, fmod, power = _each(_pointwise, _floordiv, _remainder, np.fmod, _power)
atan2, maximum, minimum = _each(_pointwise, np.arctan2, np.maximum, np.minimum)
bit_and, bit_or, bit_xor, shift_left, shift_right = _each(
    _pointwise, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift
)
lt, le, gt, ge, eq, ne = _each(_pointwise, np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
where = _pointwise(np.where)


def cast(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Conversion; floats to integers truncate (NaN and values out of range are unspecified, as in PyTorch)."""
    with np.errstate(all="ignore"):
        if node.dtype.kind == "bool":
            return args[0] != 0
        if node.dtype.is_narrow and not wide:
            return _narrowed(args[0], node.dtype)
        return args[0].astype(held_type(node.dtype, wide))


def round_to(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Round to the narrow type named by attribute `to` and back; nothing where wide."""
    with np.errstate(all="ignore"):
        return args[0] if wide else _narrowed(args[0], ALL[node.attr("to")]).astype(args[0].dtype)


def const(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The 0-d constant."""
    return np.asarray(node.attr("value")).astype(held_type(node.dtype, wide))


def iota(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """0, 1, ..., n - 1."""
    return np.arange(node.shape[0]).astype(held_type(node.dtype, wide))


def reshape(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Another shape, row-major order kept."""
    return args[0].reshape(node.shape)


def permute(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Dimensions reordered."""
    return args[0].transpose(node.attr("order"))


def expand(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Sizes of 1 repeated."""
    return np.broadcast_to(args[0], node.shape)


def take_slice(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """A strided part along every dimension."""
    out = args[0]
    for axis, (start, step, n) in enumerate(zip(node.attr("starts"), node.attr("steps"), node.shape, strict=True)):
        out = np.take(out, start + step * np.arange(n), axis)
    return out


def concat(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The operands one after another along an axis."""
    return np.concatenate(args, node.attr("axis"))


def pad(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The operand with a constant before and after it along every axis."""
    out = np.full(node.shape, node.attr("value")).astype(held_type(node.dtype, wide))
    out[tuple(slice(lo, lo + n) for lo, n in zip(node.attr("lo"), args[0].shape, strict=True))] = args[0]
    return out


def gather(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The source's elements whose place along one axis the index gives; IndexError where it leaves the source."""
    source, index, axis = args[0], args[1].astype(np.int64), node.attr("axis")
    size = source.shape[axis]
    index = np.where(index < 0, index + size, index) if node.attr("wraps") else index
    if ((index < 0) | (index >= size)).any():
        raise IndexError(f"an index leaves the {size} places of axis {axis}")
    return np.take_along_axis(source, index, axis)


def _reduction(f: Callable[..., Array]) -> Meaning:
    def meaning(node: Any, args: Sequence[Array], wide: bool) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(f(args[0], axis=node.attr("axes"))).astype(held_type(node.dtype, wide), copy=False)

    return meaning


reduce_sum, reduce_prod, reduce_max, reduce_min, reduce_any, reduce_all, reduce_mean = _each(
    _reduction, np.sum, np.prod, np.max, np.min, np.any, np.all, np.mean
)


def reduce_variance(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Squared distance from the mean, summed, over (elements - correction), which counts as 0 when negative."""
    axes = node.attr("axes")
    count = math.prod(args[0].shape[a] for a in axes)
    with np.errstate(all="ignore"):
        centred = args[0] - args[0].mean(axis=axes, keepdims=True)
        total = (centred * centred).sum(axis=axes)
        out = total / np.float64(max(count - node.attr("correction"), 0))
        return np.asarray(out).astype(held_type(node.dtype, wide))


def reduce_spread(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Squared distances from the mean, summed."""
    axes = node.attr("axes")
    with np.errstate(all="ignore"):
        centred = args[0] - args[0].mean(axis=axes, keepdims=True)
        return np.asarray((centred * centred).sum(axis=axes)).astype(held_type(node.dtype, wide))


def reduce_expsum(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """exp(element - largest element), summed; -inf adds nothing, whatever the largest is."""
    x, axes = args[0], node.attr("axes")
    with np.errstate(all="ignore"):
        parts = np.where(x == -np.inf, 0, np.exp(x - x.max(axis=axes, keepdims=True)))
        return np.asarray(parts.sum(axis=axes)).astype(held_type(node.dtype, wide))


def argmax(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The first index of the largest element; NaN counts as largest."""
    return np.argmax(args[0], axis=node.attr("axes")[0]).astype(np.int64)


def argmin(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """The first index of the smallest element; NaN counts as smallest."""
    return np.argmin(args[0], axis=node.attr("axes")[0]).astype(np.int64)


def _scan(f: Any) -> Meaning:
    def meaning(node: Any, args: Sequence[Array], wide: bool) -> Array:
        axis = node.attr("axis")
        x = np.flip(args[0], axis) if node.attr("reverse") else args[0]
        with np.errstate(all="ignore"):
            out = f.accumulate(x, axis=axis, dtype=held_type(node.dtype, wide))
        return np.flip(out, axis) if node.attr("reverse") else out

    return meaning


cumsum, cumprod, cummax, cummin = _each(_scan, np.add, np.multiply, np.maximum, np.minimum)


def linear(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """x @ weight.T (+ bias), summed in at least float32 and rounded once."""
    at = np.float64 if wide or node.dtype.bytes == 8 else np.float32
    out = np.matmul(args[0].astype(at), args[1].astype(at).T)
    if len(args) == 3:
        out = out + args[2].astype(at)
    return out.astype(held_type(node.dtype, wide))


def matmul(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Batched matrix product of operands of one rank; narrow floats sum in float32 and round once."""
    at = np.dtype(np.float32) if node.dtype.is_narrow and not wide else held_type(node.dtype, wide)
    return np.matmul(args[0].astype(at), args[1].astype(at)).astype(held_type(node.dtype, wide))


def unreachable(node: Any, args: Sequence[Array], wide: bool) -> Array:
    """Inputs are given, and library calls have no meaning here."""
    raise NotImplementedError(f"{node.op} has no NumPy meaning: give its value to the evaluator")
