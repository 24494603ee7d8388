"""Rows as 8-bit codes with a scale each. In: an element type and what scales are made of. Out: regions, values."""

from __future__ import annotations

import numpy as np

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F8E4M3, F32, I8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node
from tests.emit import triton_cases as cases

COLS = 4096
LIMITS = {I8: 127.0, F8E4M3: 448.0}
LEAST = 1e-4


def codes(
    x: Node, dtype: DType, least: float = 0.0, clamp: tuple[float, float] | None = None, by: Node | None = None
) -> Node:
    """x over the largest of each row's `by` (x itself) / 127 or / 448, clamped, rounded, as codes."""
    limit = LIMITS[dtype]
    lo, hi = clamp or (-limit, limit)
    top = b.reduce("max", b.apply("abs", x if by is None else by), (1,), True)
    top = b.apply("maximum", top, b.like(least, top)) if least else top
    scaled = b.apply("div", x, b.expand(b.apply("div", top, b.like(limit, top)), x.shape))
    near = b.apply("minimum", b.apply("maximum", scaled, b.like(lo, x)), b.like(hi, x))
    return b.cast(b.apply("rint", near) if dtype is I8 else near, dtype)


def normed(x: Node, weight: Node | None = None) -> Node:
    """x over the root mean square of each row, times a weight where there is one."""
    mean = b.reduce("mean", b.apply("mul", x, x, hint="power"), (1,), True)
    scaled = b.apply("mul", x, b.expand(b.apply("rsqrt", b.apply("add", mean, b.like(1e-6, mean))), x.shape))
    return scaled if weight is None else b.apply("mul", scaled, b.broadcast(weight, x.shape))


def check_normed(device: str) -> None:
    """Codes of normed rows, whose largest element is found beside their norm, are those of float32 or a neighbour of
    theirs.
    """
    x, w = b.placeholder("x", F32, (9, COLS)), b.placeholder("w", F32, (COLS,))
    outputs = [codes(normed(x, w), I8)]
    kernel, _ = cases.lowered([x, w], outputs)
    assert "plus_and_max" in emit(kernel).text
    values, weight = rows(), np.linspace(-2, 2, COLS, dtype=np.float32)
    (got,) = cases.run(kernel, [values, weight], device)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(outputs, {x: values, w: weight})
    real = [0, 1, 7, 8]  # squares of the others are no numbers, or give a norm of 0
    apart = np.abs(got[real].astype(int) - wanted[real])
    assert apart.max() <= 1 and (apart != 0).mean() < 1e-3
    assert not got[4].any() and not got[5].any(), "zeros over 0, and NaN, are code 0"


def rows() -> np.ndarray:
    """A row of each kind that a scale can make trouble with."""
    x = np.random.default_rng(3).standard_normal((9, COLS)).astype(np.float32)
    x[1] *= 1e-30  # scales whose inverse is infinite, or subnormal themselves
    x[2] *= 1e-42
    x[3] *= 1e25
    x[4] = 0
    x[5, 7] = np.nan
    x[6, 5:7] = np.inf, -np.inf
    x[7] = np.arange(COLS) % 255 - 127 + 0.5 * (np.arange(COLS) % 3 == 0)  # halves, and a scale of 3
    x[7] = np.clip(3 * x[7], -381, 381)
    x[8] = np.float32(0.1) * (np.arange(COLS) % 255 - 127)
    return x


def check(dtype: DType, device: str) -> None:
    """Codes of all kinds of rows are what float32 divisions give; a kernel has one test a row, and no limits beside."""
    for least in (0.0, LEAST):
        x = b.placeholder("x", F32, (9, COLS))
        outputs = [codes(x, dtype, least)]
        kernel, _ = cases.lowered([x], outputs)
        assert "_within(x, " in emit(kernel).text and "tl.maximum(-" not in emit(kernel).text
        values = rows()
        (got,) = cases.run(kernel, [values], device)
        with np.errstate(all="ignore"):
            (wanted,) = evaluate(outputs, {x: values})
        if dtype is I8:
            real = ~np.isnan(values) & np.isfinite(values).all(1, keepdims=True) & values.any(1, keepdims=True)
            np.testing.assert_array_equal(got[real], wanted[real])
            assert not got[5 if least else 4 : 6].any(), "NaN is code 0"
        else:
            cases.check_region(outputs, {x: values}, [got])
