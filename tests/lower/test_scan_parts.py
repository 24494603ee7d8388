"""Scans in parts. In: regions with long scans of few rows or columns. Out: two kernels that mean the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I64, DType
from interfuse.ir.node import Node
from interfuse.lower import scan_parts
from interfuse.lower.kernel import PART, Kernel, Role
from interfuse.lower.target import CPU, GPU
from tests import null_device, parts
from tests.judge import judge_region

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "row": ((960,), 0),
    "rows": ((3, 960), 1),
    "columns": ((960, 7), 0),
    "columns of several": ((2, 960, 5), 1),
}


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_parts, "ENOUGH", 0)


def region(op: str, dtype: DType, shape: tuple[int, ...], axis: int, reverse: bool) -> parts.Region:
    """Two scans of what is computed first, joined after."""
    x = b.placeholder("x", dtype, shape)
    wide = b.cast(x, F32) if dtype.is_narrow else x
    shifted = b.apply("add", wide, b.like(1, wide))
    both = b.apply("sub", b.scan(op, shifted, axis, reverse), b.scan("cummax", wide, axis, reverse))
    return [x], [b.cast(both, dtype)]


def run(made: parts.Region, arrays: dict[Node, np.ndarray]) -> list[np.ndarray]:
    def on_null(kernel: Kernel, given: list[np.ndarray], outputs: tuple[Node, ...]) -> list[np.ndarray]:
        return null_device.run(kernel, given, [math.prod(n.shape) for n in outputs])

    return parts.in_order(made, GPU, arrays, on_null)


@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ("cumsum", "cumprod", "cummax", "cummin"))
def test_parts_mean_what_the_whole_means(op: str, shape: str, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, axis = SHAPES[shape]
    monkeypatch.setattr(scan_parts, "ROW", 64)
    rng = np.random.default_rng(3)
    for dtype in (F32, F16, I64):
        made = region(op, dtype, sizes, axis, reverse)
        array = (rng.standard_normal(sizes) / (99 if op == "cumprod" else 1) * (1 if dtype.is_float else 3)).astype(
            dtype.numpy
        )
        verdict = judge_region(made[1], {made[0][0]: array}, run(made, {made[0][0]: array}))
        assert verdict.ok, (dtype, verdict.note)


def test_the_second_kernel_joins_what_came_before_for_itself() -> None:
    x = b.placeholder("x", F32, (2048, 4096))
    work = parts.works(([x], [b.scan("cumsum", x, 0)]), GPU)
    assert len(work) == 2 and work[0].outputs[0].shape == (32, 4096)
    (axis,) = work[1].joined
    assert (axis.name, axis.extent, axis.role) == (PART, 32, Role.TILE)


def test_what_stays_whole() -> None:
    x = b.placeholder("x", F32, (2048, 4096))
    assert not parts.works(([x], [b.scan("cumsum", x, 0)]), CPU), "a CPU"
    assert not parts.works(([x], [b.scan("cumsum", b.scan("cumsum", x, 0), 0)]), GPU), "scans of scans"
    total = b.spread_over(b.reduce("sum", x, (0,)), x, (0,))
    assert not parts.works(([x], [b.apply("add", b.scan("cumsum", x, 0), total)]), GPU), "reductions beside scans"
    wide = b.placeholder("x", F32, (4096, 16384))
    assert not parts.works(([wide], [b.scan("cumsum", wide, 0)]), GPU), "columns for every unit"
    prime = b.placeholder("x", F32, (2039, 4096))
    assert not parts.works(([prime], [b.scan("cumsum", prime, 0)]), GPU), "parts of one length"
