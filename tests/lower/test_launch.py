"""What a launch is given. In: regions of rows. Out: warps."""

from __future__ import annotations

import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I8, DType
from interfuse.lower.kernel import Kernel, Role
from tests.emit import triton_cases as cases


def log_sums(rows: int, cols: int) -> Kernel:
    """The logarithm of the sum of exponentials of each row."""
    x = b.placeholder("x", F16, (rows, cols))
    wide = b.cast(x, F32)
    top = b.reduce("max", wide, (1,))
    weights = b.apply("exp", b.apply("sub", wide, b.spread_over(top, wide, (1,))))
    return cases.lowered([x], [b.apply("add", top, b.apply("log", b.reduce("sum", weights, (1,))))])[0]


@pytest.mark.parametrize(("rows", "early"), ((2048, True), (1 << 15, False)))
def test_few_rows_have_all_that_they_need_on_its_way_first(rows: int, early: bool) -> None:
    """Many rows that are stored in bytes read what is the same in all of them when they need it."""
    x, w = b.placeholder("x", F16, (rows, 4096)), b.placeholder("w", F16, (4096,))
    wide = b.cast(x, F32)
    root = b.apply("rsqrt", b.reduce("sum", b.apply("mul", wide, wide), (1,)))
    normed = b.apply(
        "mul", b.apply("mul", wide, b.spread_over(root, wide, (1,))), b.spread_over(b.cast(w, F32), x, (0,))
    )
    text = emit(cases.lowered([x, w], [b.cast(normed, I8)])[0]).text
    assert (text.index("tl.load(w_ptr") < text.index("tl.sum(")) is early


@pytest.mark.parametrize(("rows", "few"), ((2048, True), (1 << 15, False)))
def test_few_rows_that_are_scanned_have_fewer_warps_and_all_that_they_need_first(rows: int, few: bool) -> None:
    x, w = b.placeholder("x", F16, (rows, 4096)), b.placeholder("w", F16, (4096,))
    wide = b.cast(x, F32)
    scaled = b.apply("mul", b.scan("cumsum", wide, 1), b.spread_over(b.cast(w, F32), wide, (0,)))
    kernel = cases.lowered([x, w], [scaled])[0]
    text = emit(kernel).text
    assert kernel.warps == (4 if few else 8)
    assert (text.index("tl.load(w_ptr") < text.index("tl.associative_scan(")) is few


@pytest.mark.parametrize(("dtype", "outer", "warps"), ((F16, 512, 1), (F16, 32, 2), (F32, 512, 2)))
def test_a_thread_has_whole_columns_where_many_programs_add_up_narrow_ones(
    dtype: DType, outer: int, warps: int
) -> None:
    x = b.placeholder("x", dtype, (outer, 64, 1024))
    kernel = cases.lowered([x], [b.reduce("sum", b.cast(x, F32), (1,))])[0]
    assert (kernel.family, [a.block for a in kernel.axes[-2:]], kernel.warps) == ("column", [64, 64], warps)


@pytest.mark.parametrize(("outer", "family"), ((512, "column, streamed"), (16, "column")))
def test_many_longer_columns_that_are_added_up_are_streamed(outer: int, family: str) -> None:
    x = b.placeholder("x", F16, (outer, 128, 768))
    assert cases.lowered([x], [b.reduce("sum", b.cast(x, F32), (1,))])[0].family == family


def test_columns_of_a_unit_have_as_many_steps_on_their_way_as_it_holds() -> None:
    x = b.placeholder("x", F16, (2048, 4096))
    wide = b.cast(x, F32)
    kernel = cases.lowered([x], [b.reduce("mean", wide, (0,)), b.reduce("variance", wide, (0,), correction=1)])[0]
    assert (kernel.axes[-1].block, kernel.axes[-2].block, kernel.warps, kernel.stages) == (128, 32, 4, 8)
    assert "apart_from(" in emit(kernel).text, "the mean is infinite where an element is"


def test_long_rows_of_two_tensors_have_twice_the_warps_of_one() -> None:
    one, two = cases.softmax_region(F16, 1 << 15, 4096), cases.normed_region(F16, 1 << 15, 4096)
    x, mask = (b.placeholder(n, F16, (1 << 15, 4096)) for n in ("x", "m"))
    wide = b.apply("add", b.cast(x, F32), b.cast(mask, F32))
    top = b.spread_over(b.reduce("max", wide, (1,)), wide, (1,))
    e = b.apply("exp", b.apply("sub", wide, top))
    masked = [x, mask], [b.cast(b.apply("div", e, b.spread_over(b.reduce("sum", e, (1,)), e, (1,))), F16)]
    warps = [cases.lowered(*region)[0].warps for region in (one, two, masked)]
    assert warps == [4, 8, 4], "exponentials take their time"


@pytest.mark.parametrize(("rows", "cols", "warps"), [(1 << 15, 4096, 2), (2048, 4096, 4), (256, 8192, 8)])
def test_rows_walked_in_one_step_have_more_warps_where_there_is_room(rows: int, cols: int, warps: int) -> None:
    kernel = log_sums(rows, cols)
    col = kernel.axes[-1]
    assert (col.role, col.block, kernel.warps) == (Role.SERIAL, cols, warps)


@pytest.mark.parametrize(("count", "warps"), [(96, 4), (1 << 12, 8)])
def test_a_small_map_has_a_warp_for_each_scheduler(count: int, warps: int) -> None:
    """96 elements are one of each thread, instead of four that a thread does one after the other."""
    x = b.placeholder("x", F32, (count,))
    kernel = cases.lowered([x], [b.apply("tanh", x)])[0]
    assert (kernel.family, kernel.warps) == ("map", warps)
