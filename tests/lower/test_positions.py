"""Values that tell positions: what they pick is reached by arithmetic, exactly as PyTorch picks it, or looked up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, F64, I32, I64, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Load, walk
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests import null_device

TARGETS = pytest.mark.parametrize("target", (CPU, GPU), ids=("cpu", "gpu"))


def _scaled(size: int, factor: float, dtype: DType, shift: float = 0.0) -> Node:
    """Positions that went through a type: cut off after shift and factor."""
    at = b.cast(b.iota(size), dtype)
    at = b.cast(at, F32) if dtype.is_narrow else at
    return b.cast(b.apply("mul", b.apply("add", at, b.like(shift, at)), b.like(factor, at)), I64)


def _larger(x: Node, rows: Node, cols: Node) -> Node:
    """x[rows, cols] of every pair."""
    tall = b.gather(x, b.broadcast(b.reshape(rows, (*rows.shape, 1)), (*rows.shape, x.shape[1])), 0, True)
    return b.gather(tall, b.broadcast(cols, (*rows.shape, *cols.shape)), 1, True)


def _lowered(x: Node, y: Node, target: Target) -> tuple[Kernel, np.ndarray, np.ndarray]:
    layouts = {n: contiguous(n.shape) for n in (x, y)}
    kernel, _ = lower("kernel", Work((y,), frozenset((x,)), layouts), target)
    array = np.random.default_rng(3).standard_normal(x.shape).astype(x.dtype.numpy)
    (got,) = null_device.run(kernel, [array.ravel()], [math.prod(y.shape)])
    return kernel, got.reshape(y.shape), evaluate([y], {x: array})[0]


def _looked_up(kernel: Kernel) -> int:
    return sum(len(s.picks) for s in walk(kernel.body) if isinstance(s, Load))


@TARGETS
@pytest.mark.parametrize(("dtype", "factor", "shift"), ((F32, 0.5, 0.0), (F64, 0.25, 1.0), (F16, 0.5, 2.0)), ids=str)
def test_upsampling_reads_by_arithmetic(dtype: DType, factor: float, shift: float, target: Target) -> None:
    x = b.placeholder("x", F32, (9, 34))
    kernel, got, exact = _lowered(x, _larger(x, _scaled(12, factor, dtype), _scaled(60, factor, dtype, shift)), target)
    np.testing.assert_array_equal(got, exact)
    assert _looked_up(kernel) == 0


@TARGETS
@pytest.mark.parametrize(
    ("size", "factor", "dtype", "shift"),
    (
        (12, 1 / 3, F32, 0.0),  # rounded
        (12, 0.5, F32, -3.0),  # counted from the end
        (12, 2.0, F32, 0.0),  # beyond the end for all the compiler knows
        (2100, 0.5, F16, 0.0),  # f16 does not hold 2049
    ),
)
def test_what_is_not_known_exactly_is_looked_up(
    size: int, factor: float, dtype: DType, shift: float, target: Target
) -> None:
    x = b.placeholder("x", F32, (2000, 3) if size > 12 else (23, 3))
    at = _scaled(size, factor, dtype, shift)
    y = b.gather(x, b.broadcast(b.reshape(at, (size, 1)), (size, 3)), 0, True)
    kernel, got, exact = _lowered(x, y, target)
    np.testing.assert_array_equal(got, exact)
    assert _looked_up(kernel) == (0 if factor == 2.0 else 1)


@TARGETS
def test_integers_count_on(target: Target) -> None:
    x = b.placeholder("x", F32, (40,))
    at = b.cast(
        b.apply("add", b.apply("mul", b.iota(12, I32), b.like(3, b.iota(12, I32))), b.like(2, b.iota(12, I32))), I64
    )
    kernel, got, exact = _lowered(x, b.gather(x, at, 0), target)
    np.testing.assert_array_equal(got, exact)
    assert _looked_up(kernel) == 0
