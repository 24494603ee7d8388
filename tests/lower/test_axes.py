"""The axes of families. In: regions where rows far apart share what they read. Out: axes in the order of programs."""

from __future__ import annotations

import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, DType
from interfuse.ir.index import symbols
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Load, walk
from interfuse.lower.nested import find_blocks
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests.emit import triton_cases as cases


def _masked(shape: tuple[int, ...], mask: tuple[int, ...], target: Target = GPU) -> Kernel:
    """The largest element of each row of x + mask, beside the sum itself."""
    x, m = b.placeholder("x", F32, shape), b.placeholder("m", F32, mask)
    total = b.apply("add", x, b.expand(m, shape))
    outs = total, b.reduce("max", total, (len(shape) - 1,))
    layouts = {n: contiguous(n.shape) for n in (x, m, *outs)}
    return lower("k", Work(outs, frozenset((x, m)), layouts), target)[0]


@pytest.mark.parametrize(
    ("dtype", "groups", "image", "block"),
    (
        (F16, 128, 1 << 14, 1 << 14),
        (F16, 256, 1 << 14, 2048),  # more rows than units
        (F16, 128, 1 << 13, 2048),  # a row that is not long
        (F16, 128, 12000, 2048),  # steps that are not full
        (F32, 128, 1 << 14, 2048),  # elements of more than two bytes
    ),
)
def test_a_row_a_unit_is_walked_in_the_longest_steps(dtype: DType, groups: int, image: int, block: int) -> None:
    kernel, _ = cases.lowered(*cases.groups_region(dtype, groups, 8, image))
    assert kernel.axes[-1].block == block and kernel.warps == (32 if block > 2048 else 8)
    weights = [s for s in walk(kernel.body) if isinstance(s, Load) and s.param == "gain"]
    by_step = "gain_ptr + ((COLS - 1)" in emit(kernel).text
    assert weights and by_step == (image % block == 0), "one for each step that lies in one channel"


@pytest.mark.parametrize(
    ("shape", "mask", "axes"),
    (
        ((6, 40, 2048), (1, 40, 2048), [("row", 40), ("turn", 6)]),
        ((3, 6, 40, 2048), (3, 1, 40, 2048), [("outer", 3), ("row", 40), ("turn", 6)]),
        ((3, 6, 40, 2048), (1, 6, 1, 2048), [("row", 240), ("turn", 3)]),
        ((6, 40, 2048), (6, 1, 2048), [("row", 240)]),
        ((6, 40, 2048), (6, 40, 2048), [("row", 240)]),
    ),
)
def test_rows_that_share_a_mask_follow_each_other(
    shape: tuple[int, ...], mask: tuple[int, ...], axes: list[tuple[str, int]]
) -> None:
    kernel = _masked(shape, mask)
    assert [(a.name, a.extent) for a in kernel.axes[:-1]] == axes
    if axes[-1][0] == "turn":
        read = next(s for s in walk(kernel.body) if isinstance(s, Load) and s.param == "m")
        assert "turn" not in {s.name for s in symbols(read.index)} and "turn" not in read.out.axes


def test_short_rows_share_a_program_and_a_mask() -> None:
    for images, rows in ((600, 16), (6, 8)):  # fewer where there are few for all units
        kernel = _masked((images, 40, 64), (1, 40, 64))
        assert [(a.name, a.block) for a in kernel.axes] == [("row", rows), ("turn", 1), ("col", 64)]


def test_a_cpu_walks_rows_as_they_lie() -> None:
    assert [a.name for a in _masked((6, 40, 2048), (1, 40, 2048), CPU).axes] == ["row", "col"]


@pytest.mark.parametrize(
    ("cols", "block", "warps"), ((131072, 16384, 32), (50257, 8192, 8), (32000, 8192, 8), (100001, 8192, 8))
)
def test_rows_that_are_read_twice_and_fill_a_cache_have_a_unit_each(cols: int, block: int, warps: int) -> None:
    inputs, outputs = cases.odd_region(F16, 512, cols)
    kernel, _ = cases.lowered(inputs, outputs[:1])
    assert (kernel.axes[-1].block, kernel.warps, kernel.stages) == (block, warps, 1)


@pytest.mark.parametrize("scans", (16, 33))
def test_a_step_of_many_scans_has_a_row(scans: int) -> None:
    x = b.placeholder("x", F32, (150, 64))
    kernel, _ = cases.lowered([x], [b.scan("cumsum", b.apply("mul", x, b.like(k + 1.0, x)), 0) for k in range(scans)])
    assert kernel.axis("row").block == (2 if scans == 16 else 1)


def test_rows_of_nothing_are_no_blocks() -> None:
    nothing, x = b.placeholder("nothing", F32, (1, 0)), b.placeholder("x", F32, (1, 30))
    found = [b.reduce("sum", n, (1,)) for n in (nothing, x)]
    assert find_blocks(found, {1}, GPU) is None


@pytest.mark.parametrize(("rows", "warps"), ((16384, 1), (16, 8)))
def test_a_short_row_that_is_reduced_time_and_again_has_one_warp(rows: int, warps: int) -> None:
    """But where there are few rows, it has more: nobody uses the room otherwise."""
    x = b.placeholder("x", F16, (rows, 768))
    wide = b.cast(x, F32)
    variance = b.reduce("variance", wide, (1,), keepdims=True, correction=0)
    apart = b.apply("sub", wide, b.expand(b.reduce("mean", wide, (1,), keepdims=True), wide.shape))
    kernel, _ = cases.lowered([x], [b.cast(b.apply("mul", apart, b.expand(variance, wide.shape)), F16)])
    assert (kernel.axes[-1].block, kernel.warps) == (1024, warps)


@pytest.mark.parametrize(("outer", "form"), ((8, (128, 32, 2, 4)), (7, (64, 64, 1, 3)), (1, (32, 64, 1, 3))))
def test_many_columns_are_scanned_side_by_side_in_shorter_steps(outer: int, form: tuple[int, ...]) -> None:
    x = b.placeholder("x", F16, (outer, 4096, 4096))
    kernel, _ = cases.lowered([x], [b.cast(b.scan("cumsum", b.cast(x, F32), 1), F16)])
    assert (*(a.block for a in kernel.axes[-2:]), kernel.warps, kernel.stages) == form
    short = b.placeholder("y", F16, (64 * outer, 64, 4096))
    held = cases.lowered([short], [b.scan("cumsum", b.cast(short, F32), 1)])[0].axes
    assert [a.block for a in held[-2:]] == [64, 64], "what a step holds keeps its step"
