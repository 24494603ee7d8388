"""Regions of statistics that kernels reduce in one pass, and data that is hard on them. In: sizes. Out: nodes, arrays.

`REGIONS` makes (inputs, outputs) from a type, a shape and an axis; `DATA` makes an array from a shape and an axis;
`check` judges what a kernel made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, F64, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node
from tests.judge import Array, judge_region

Region = tuple[list[Node], list[Node]]
Shape = tuple[int, ...]


def _input(dtype: DType, shape: Shape) -> tuple[Node, Node]:
    x = b.placeholder("x", dtype, shape)
    return x, b.cast(x, F32) if dtype.is_narrow else x


def axes_of(axis: int | Shape) -> Shape:
    """The axes that are reduced, of one or several."""
    return (axis,) if isinstance(axis, int) else axis


def _along(op: str, x: Node, axis: int | Shape) -> Node:
    return b.expand(b.reduce(op, x, axes_of(axis), keepdims=True), x.shape)


def moments(dtype: DType, shape: Shape, axis: int | Shape) -> Region:
    """Mean, variance, and the elements normalised by them."""
    x, wide = _input(dtype, shape)
    mean, variance = b.reduce("mean", wide, axes_of(axis)), b.reduce("variance", wide, axes_of(axis), correction=1)
    spread = b.expand(b.reduce("variance", wide, axes_of(axis), keepdims=True, correction=0), shape)
    root = b.apply("rsqrt", b.apply("add", spread, b.broadcast(b.constant(1e-5, wide.dtype), shape)))
    normal = b.apply("mul", b.apply("sub", wide, _along("mean", wide, axis)), root)
    return [x], [b.cast(n, dtype) for n in (mean, variance, normal)]


def softmax(dtype: DType, shape: Shape, axis: int | Shape) -> Region:
    """softmax, its maximum and the logarithm of its sum beside it."""
    x, wide = _input(dtype, shape)
    e = b.apply("exp", b.apply("sub", wide, _along("max", wide, axis)))
    total = b.reduce("sum", e, axes_of(axis))
    outputs = (b.apply("div", e, _along("sum", e, axis)), b.reduce("max", wide, axes_of(axis)), b.apply("log", total))
    return [x], [b.cast(n, dtype) for n in outputs]


def logsumexp(dtype: DType, shape: Shape, axis: int | Shape) -> Region:
    """log of the summed exponentials as eager's logsumexp does it: shifted by 0 where the maximum is infinite."""
    x, wide = _input(dtype, shape)
    top = b.reduce("max", wide, axes_of(axis), keepdims=True)
    zero = b.broadcast(b.constant(0, wide.dtype), top.shape)
    shift = b.apply("where", b.apply("isinf", top), zero, top)
    e = b.apply("exp", b.apply("sub", wide, b.expand(shift, shape)))
    total = b.reduce("sum", e, axes_of(axis), keepdims=True)
    return [x], [b.cast(b.apply("add", b.apply("log", total), shift), dtype)]


REGIONS: dict[str, Callable[[DType, Shape, Any], Region]] = {f.__name__: f for f in (moments, softmax, logsumexp)}


def _random(shape: Shape, axis: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def _first(shape: Shape, axis: int, value: float) -> np.ndarray:
    """Random data whose first element along the axis is far from the others."""
    x = _random(shape, axis)
    x[(slice(None),) * axis + (0,)] = value
    return x


def _special(shape: Shape, axis: int) -> np.ndarray:
    """Along the axis: random, all -inf, begun by -inf, one inf, two, one NaN first or last, inf and -inf, as there is
    room.
    """
    x = np.moveaxis(_random(shape, axis), axis, -1).copy()
    rows = x.reshape(-1, x.shape[-1])
    half, rest = rows.shape[1] // 2, [np.nan, np.inf, -np.inf]
    for k, row in enumerate(rows):
        if k % 8 in (1, 2):
            row[: row.size if k % 8 == 1 else half] = -np.inf
        elif k % 8 == 3:
            row[0] = np.inf
        elif k % 8 == 4:
            row[[half, -1]] = np.inf
        elif k % 8 in (5, 6):
            row[0 if k % 8 == 5 else -1] = np.nan
        elif k % 8 == 7:
            row[[0, half]] = rest[1:]
    return np.moveaxis(x, -1, axis)


DATA: dict[str, Callable[[Shape, int], np.ndarray]] = {
    "random": _random,
    "large": lambda shape, axis: _random(shape, axis) * 1e4,
    "tiny": lambda shape, axis: _random(shape, axis) * 1e-4,
    "constant": lambda shape, axis: np.full(shape, 0.37),
    "offset": lambda shape, axis: _random(shape, axis) + 1e4,
    "growing": lambda shape, axis: np.sort(_random(shape, axis), axis) * 30,
    "outlier": lambda shape, axis: _first(shape, axis, 3e3),
    "special": _special,
}


def check(outputs: Sequence[Node], values: Mapping[Node, np.ndarray], got: Sequence[Array]) -> None:
    """The contract; in float64, whose exact values are not known, agreement to some digits."""
    if outputs[0].dtype is not F64:
        verdict = judge_region(outputs, values, got)
        assert verdict.ok, verdict.note
        return
    size = max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in values.values())
    for g, exact in zip(got, evaluate(outputs, values), strict=True):
        np.testing.assert_allclose(np.asarray(g), exact, rtol=1e-10, atol=1e-10 * size)
