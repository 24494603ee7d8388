"""Rows and columns in one pass. In: regions that reduce both. Out: kernels that follow each other and mean the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32
from interfuse.ir.index import sym
from interfuse.ir.node import Node
from interfuse.lower.axes import mixed_parts
from interfuse.lower.domain import Domain
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Reduce, walk
from interfuse.lower.target import CPU, GPU, Target
from tests import mixed, null_device, parts
from tests.judge import judge_region

TARGETS = {"cpu": CPU, "gpu": GPU}


def on_null(kernel: Kernel, given: list[np.ndarray], outputs: tuple[Node, ...]) -> list[np.ndarray]:
    return null_device.run(kernel, given, [math.prod(n.shape) for n in outputs])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", mixed.SHAPES, ids=str)
@pytest.mark.parametrize("name", mixed.REGIONS)
def test_kernels_mean_what_the_region_means(name: str, shape: tuple[int, int], target: Target) -> None:
    for dtype in (F32, BF16, F16):
        region = mixed.REGIONS[name](dtype, *shape)
        for kind in mixed.KINDS if dtype is F32 else ("random",):
            given = mixed.values(region[0], kind)
            verdict = judge_region(region[1], given, parts.in_order(region, target, given, on_null, mixed.works))
            assert verdict.ok, f"{dtype} {kind}: {verdict.note}"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("rows", (0, 1, 7, 300))
def test_rows_may_change_between_calls(rows: int, target: Target) -> None:
    def run(
        kernel: Kernel, given: list[np.ndarray], shapes: list[tuple[int, ...]], sizes: dict[str, int]
    ) -> list[np.ndarray]:
        return null_device.run(kernel, given, list(map(math.prod, shapes)), sizes)

    for name in ("layer_norm_backward", "relu_backward"):
        verdict = mixed.growing(name, target, rows, run)
        assert verdict.ok, f"{name}: {verdict.note}"


@pytest.mark.parametrize("shape", ((300, 128), (4096, 1000)), ids=str)
@pytest.mark.parametrize("name", mixed.REGIONS)
def test_warps_are_powers_of_two_however_many_matrices_are_read(name: str, shape: tuple[int, int]) -> None:
    for dtype in (F32, F16):
        kernels = [lower("kernel", work, GPU)[0] for work in mixed.works(mixed.REGIONS[name](dtype, *shape), GPU)]
        assert all(k.warps in (1, 2, 4, 8, 16, 32) for k in kernels), [k.warps for k in kernels]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_one_kernel_reads_the_data_and_one_joins(target: Target) -> None:
    first, second = mixed.works(mixed.layer_norm_backward(F32, 64, 128), target)
    kernel, reads = lower("kernel", first, target)
    assert {n.hint for n in reads} == {"g", "x", "mean", "rstd", "weight"}
    assert {s.axis for s in walk(kernel.body) if isinstance(s, Reduce)} == {"row", "col"}
    assert kernel.axis("row").among == "chunk" and kernel.family == "mixed"
    assert {o.shape for o in first.outputs} == {(64, 128), (8 if target is CPU else 4, 128)}
    assert lower("kernel", second, target)[0].family.startswith("column")


def test_whole_rows_that_wait_for_columns_are_a_third_kernel() -> None:
    assert len(mixed.works(mixed.centred(F32, 64, 128), CPU)) == 3


def test_parts_depend_on_rows_and_the_kind_of_device_alone() -> None:
    found = [mixed_parts(Domain(rows, 4096, True), 4, GPU) for rows in (1, 8, 9, 4095, 8192, 1 << 20)]
    assert found == [1, 1, 2, 264, 264, 264]
    assert mixed_parts(Domain(sym("s0", 1), 64, True), 4, GPU) == 264
    assert mixed_parts(Domain(8192, 8192, True), 4, GPU) == 132, "a long step: one part a unit"
    assert mixed_parts(Domain(8192, 4096, False), 4, GPU) == 33, "eight programs beside each other"
    assert mixed_parts(Domain(300, 64, True), 4, CPU) == 30


def test_what_only_rows_or_only_columns_reduce_is_no_matter_of_both() -> None:
    x = b.placeholder("x", F32, (64, 128))
    for axis in (0, 1):
        assert not mixed.works(([x], [b.reduce("sum", x, (axis,))]), CPU)
    places = [b.reduce("sum", x, (1,)), b.reduce("argmax", x, (0,))]
    assert not mixed.works(([x], places), CPU), "no program carries places of columns"


def test_columns_too_many_to_hold_are_refused() -> None:
    first, *_ = mixed.works(mixed.layer_norm_backward(F32, 64, CPU.widest + 1), CPU)
    with pytest.raises(UnsupportedError, match="sums of 8193 columns beside reductions of rows"):
        lower("kernel", first, CPU)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_an_extreme_of_columns_is_not_looked_for_among_rows_that_are_reduced_again(target: Target) -> None:
    x = b.placeholder("x", F32, (300, 131))
    less = b.apply("sub", x, b.spread_over(b.reduce("mean", x, (1,)), x, (1,)))
    least = b.spread_over(b.reduce("min", less, (0,)), less, (0,))
    found = b.cast(b.apply("eq", less, least), F32)
    assert not mixed.works(([x], [found]), target)
    assert len(mixed.works(([x], [b.apply("sub", less, least)]), target)) == 3
