"""The Triton emitter's text. In: kernels. Out: golden modules, 64-bit indices only where needed, masks, refusals."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.emit.triton import chained, emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, F64, I64, U8, DType
from interfuse.ir.index import evaluate, sym
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Store, Value
from tests import golden
from tests.emit import triton_cases as cases
from tests.kernels import BUILDERS


def rows(count: int, cols: int, dtype: DType = F16) -> Kernel:
    return BUILDERS["add_layer_norm"](count, cols, dtype, "tile")


def flat(count: int, block: int = 1024) -> Kernel:
    axis = Axis("i", count, Role.GRID, block)
    x = Value("x", F32, ("i",))
    return Kernel(
        "copy",
        (Param("x", F32, (count,), (1,)), Param("y", F32, (count,), (1,), "out")),
        (axis,),
        (Load(x, "x", axis.symbol), Store("y", axis.symbol, x)),
    )


def test_kernels_that_follow_each_other_overlap_where_the_device_can() -> None:
    first, last = (emit(replace(flat(1000), leads=k == 0, follows=k == 1)) for k in range(2))
    assert "gdc_launch_dependents()" in first.text and "gdc_wait()" not in first.text.partition("def copy")[2]
    assert "    gdc_wait()" in last.text and "    gdc_launch_dependents()" not in last.text
    for source in (first, last):
        assert ("CHAINED", 0) in source.constants, "nothing of it unless a launch says so"
        assert chained(source, "cuda:80") == chained(source, "hip:gfx942") == {}
    assert chained(first, "cuda:90") == {"CHAINED": 1}, "a library's kernel may come before it"
    assert chained(last, "cuda:90") == {"CHAINED": 1, "launch_pdl": True}
    assert chained(emit(flat(1000)), "cuda:90") == {} and "CHAINED" not in emit(flat(1000)).text


# --- golden modules


def test_flat_map(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(BUILDERS["relu_half"](64, 1000, F32, "tile")).text)


def test_odd_rows_in_half(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(BUILDERS["softmax"](32768, 4000, F16, "tile")).text)


def test_rows_of_a_power_of_two(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(rows(8192, 4096, BF16)).text)


def test_tiles_of_two_axes(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(cases.transposed(1000, 77, F32, 8, 32)).text)


def test_carried_reductions(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(cases.carried(512, 100000, F32, block=4096)).text)


def test_short_rows_share_a_program(request: pytest.FixtureRequest) -> None:
    kernel, _ = cases.lowered(*cases.reduction_region(F64, 1000, 100))
    golden.check(request, emit(kernel).text)


def test_two_sums_of_the_same_lanes_are_one() -> None:
    x = b.placeholder("x", F32, (64, 1024))
    variance, largest = b.reduce("variance", x, (1,), correction=0), b.reduce("max", x, (1,))
    held = emit(cases.lowered([x], [b.apply("mul", x, b.spread_over(variance, x, (1,)))])[0]).text
    assert "squares, left_out = tl.reduce((squared, centred), 0, plus_both)" in held
    assert held.count("tl.sum(") == 1, "of all elements, for the mean"
    apart = emit(cases.lowered([x], [b.apply("sub", b.reduce("sum", x, (1,)), largest)])[0]).text
    assert "sum, max = tl.reduce((x, x), 0, plus_and_max)" in apart, "a sum and a maximum"
    least = emit(cases.lowered([x], [b.apply("sub", b.reduce("min", x, (1,)), largest)])[0]).text
    assert "plus_and_max" not in least and least.count("tl.reduce(") == 2


# --- what a launch needs


def test_arguments_constants_and_grid() -> None:
    source = emit(rows(8192, 4000))
    assert [n for n, _ in source.arguments] == ["x_ptr", "r_ptr", "weight_ptr", "bias_ptr", "s_ptr", "y_ptr"]
    assert {t for _, t in source.arguments} == {"*fp16"}
    assert source.constants == (("COLS", 4000), ("BLOCK", 4096))
    assert (source.grid, source.warps, source.entry) == (8192, 4, "add_layer_norm")


def test_size_symbols_are_arguments() -> None:
    n = sym("n", 1, 1 << 20)
    axis = Axis("i", n, Role.GRID, 256)
    x = Value("x", F32, ("i",))
    kernel = Kernel(
        "copy",
        (Param("x", F32, (n,), (1,)), Param("y", F32, (n,), (1,), "out")),
        (axis,),
        (Load(x, "x", axis.symbol), Store("y", axis.symbol, x)),
        symbols=("n",),
    )
    source = emit(kernel)
    assert source.arguments[-1] == ("n", "i32") and "inside = i < n" in source.text
    assert evaluate(source.grid, {"n": 257}) == 2 and evaluate(source.grid, {"n": 256}) == 1


def test_no_programs_for_no_elements() -> None:
    assert emit(flat(0)).grid == 0


def test_masks_only_where_a_block_passes_the_end() -> None:
    assert "mask" not in emit(flat(4096)).text and "mask=inside" in emit(flat(4097)).text
    assert "mask" not in emit(rows(7, 64)).text and "mask=inside" in emit(rows(7, 63)).text


# --- 64-bit indices


@pytest.mark.parametrize(
    ("count", "cols", "wide"),
    ((1 << 19, 4096, False), ((1 << 19) + 1, 4096, True), (1 << 25, 64, False), (1 << 25, 65, True)),
)
def test_rows_are_wide_where_an_index_passes_32_bits(count: int, cols: int, wide: bool) -> None:
    assert ("tl.program_id(0).to(tl.int64)" in emit(rows(count, cols)).text) is wide


def test_masked_lanes_past_32_bits_are_compared_in_64() -> None:
    # The index itself fits; the last block's masked lanes would wrap to negative numbers and pass the comparison.
    assert ".to(tl.int64)" in emit(flat((1 << 31) - 10)).text
    assert ".to(tl.int64)" not in emit(flat((1 << 31) - 1024 * 4)).text


def test_a_part_that_overflows_is_wide_though_the_sum_fits() -> None:
    row, col = Axis("row", 1 << 16, Role.GRID), Axis("col", 64, Role.TILE, 64)
    x = Value("x", F32, ("row", "col"))
    index = row.symbol * (1 << 16) + row.symbol * col.symbol
    kernel = Kernel(
        "far",
        (Param("x", F32, (1 << 33,), (1,)), Param("y", F32, (1 << 22,), (1,), "out")),
        (row, col),
        (Load(x, "x", index % (1 << 20)), Store("y", row.symbol * 64 + col.symbol, x)),
    )
    assert "row = tl.program_id(0).to(tl.int64)" in emit(kernel).text


# --- names and texts


def test_names_that_are_taken_get_an_underscore() -> None:
    axis = Axis("i", 10, Role.GRID, 16)
    names = ("tl", "inside", "lambda", "i", "BLOCK")
    values = [Value(n, F32, ("i",)) for n in names]
    params = (*(Param(f"p{k}", F32, (10,), (1,)) for k in range(5)), Param("out", F32, (10,), (1,), "out"))
    total, body = values[0], [Load(v, f"p{k}", axis.symbol) for k, v in enumerate(values)]
    for k, v in enumerate(values[1:]):
        made = Value(f"sum{k}", F32, ("i",))
        body.append(Let(made, "add", (total, v)))
        total = made
    text = emit(Kernel("class", params, (axis,), (*body, Store("out", axis.symbol, total)))).text
    ast.parse(text)
    assert (
        "def class_kernel(" in text and "tl_ = tl.load(p0_ptr" in text and "inside_ = " in text and "lambda_ = " in text
    )


def test_the_docstring_survives_odd_characters() -> None:
    kernel = BUILDERS["relu_half"](2, 8, F32, "tile")
    odd = Kernel(kernel.name, kernel.params, kernel.axes, kernel.body, ('says """quotes""" and \\N{backslash}',))
    assert ast.get_docstring(ast.parse(emit(odd).text)) is not None


def test_lines_stay_short() -> None:
    many = [f"a_rather_long_parameter_name_{k}" for k in range(12)]
    axis = Axis("i", 64, Role.GRID, 64)
    values = [Value(n, F32, ("i",)) for n in many]
    kernel = Kernel(
        "wide",
        tuple(Param(n, F32, (64,), (1,), "out" if k > 5 else "in") for k, n in enumerate(many)),
        (axis,),
        (
            *(Load(v, v.name, axis.symbol) for v in values[:6]),
            *(Store(n, axis.symbol, v) for n, v in zip(many[6:], values[:6], strict=True)),
        ),
    )
    text = emit(kernel).text
    ast.parse(text)
    assert max(len(line) for line in text.splitlines() if not line.endswith(".")) <= 120


@pytest.mark.parametrize("dtype", (F32, F64, I64, U8), ids=str)
def test_operators_of_every_kind_parse(dtype: DType) -> None:
    kernel, _ = cases.lowered(*cases.operator_region(dtype, cases.operators(dtype), 100))
    ast.parse(emit(kernel).text)


# --- what has no text


def test_refusals() -> None:
    scratch = BUILDERS["softmax"](4, 64, F32, "serial")
    with pytest.raises(UnsupportedError, match="scratch"):
        emit(scratch)
    with pytest.raises(UnsupportedError, match="integer powers"):
        emit(cases.lowered(*cases.operator_region(I64, ["pow"], 8))[0])
    with pytest.raises(UnsupportedError, match="at most 1048576"):
        emit(flat(1 << 22, 1 << 21))
    with pytest.raises(UnsupportedError, match="programs"):
        emit(flat(1 << 40, 1))
