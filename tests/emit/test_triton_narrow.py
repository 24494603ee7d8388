"""Softmax weights of narrow results. In: softmax in several types. Out: cheap powers of two where nobody can see it."""

from __future__ import annotations

import itertools

import pytest

from interfuse.emit.triton import emit, options
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F8E4M3, F16, F32, DType
from interfuse.ir.node import Node
from tests.emit import triton_cases as cases


def _softmax(dtype: DType, cols: int = 300) -> tuple[list[Node], Node, Node]:
    """x of one type, and its softmax and weights in f32."""
    x = b.placeholder("x", dtype, (64, cols))
    wide = b.cast(x, F32) if dtype.is_narrow else x
    weights = b.apply("exp", b.apply("sub", wide, b.expand(b.reduce("max", wide, (1,), keepdims=True), wide.shape)))
    total = b.reduce("sum", weights, (1,), keepdims=True)
    return [x], b.apply("div", weights, b.expand(total, wide.shape)), weights


@pytest.mark.parametrize("cols", (300, 40000), ids=("held", "streamed"))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_weights_of_narrow_results_are_powers_of_two(dtype: DType, cols: int) -> None:
    inputs, softmax, _ = _softmax(dtype, cols)
    source = emit(cases.lowered(inputs, [b.cast(softmax, dtype)])[0])
    assert source.text.count("libdevice.exp2(") == 1 and source.text.count("tl.div_rn(1.0, ") == 1
    assert source.text.index("tl.div_rn") < source.text.index("tl.store"), "one division a row"
    assert source.text.count("tl.div_rn") == 1 and source.flushes


def test_weights_that_are_seen_in_full_are_exact() -> None:
    inputs, softmax, weights = _softmax(F32)
    assert "exp2" not in emit(cases.lowered(inputs, [softmax])[0]).text
    inputs, softmax, weights = _softmax(F16)
    source = emit(cases.lowered(inputs, [b.cast(softmax, F16), weights])[0])
    assert "libdevice.exp(" in source.text
    assert "exp2" not in source.text and not source.flushes


def test_tails_of_gelu_are_flushed() -> None:
    x = b.placeholder("x", F32, (64, 300))
    curve = b.apply("normal_cdf", x)
    assert emit(cases.lowered([x], [b.apply("mul", x, curve)])[0]).flushes
    assert not emit(cases.lowered([x], [curve])[0]).flushes


def test_sigmoids_are_coarse_where_results_are_narrow() -> None:
    x = b.placeholder("x", F32, (64, 300))
    silu = b.apply("mul", x, b.apply("sigmoid", x))
    for out, coarse in ((b.cast(silu, BF16), True), (b.cast(b.rounded(silu, F16), F16), True), (silu, False)):
        source = emit(cases.lowered([x], [out])[0])
        assert ("= coarse_sigmoid(x)" in source.text) is source.flushes is coarse


def test_sigmoids_are_coarse_before_codes_that_came_through_a_reduction() -> None:
    x = b.placeholder("x", F32, (64, 300))
    silu = b.rounded(b.apply("mul", x, b.apply("sigmoid", x)), BF16)
    scaled = b.apply("div", silu, b.expand(b.reduce("max", silu, (1,), True), x.shape))
    for out, coarse in ((scaled, True), (silu, False)):
        source = emit(cases.lowered([x], [b.cast(out, F8E4M3)])[0])
        assert ("= coarse_sigmoid(x)" in source.text) is coarse


def test_subnormal_numbers_are_kept_where_a_function_meets_them() -> None:
    inputs, softmax, _ = _softmax(F16)
    logs = b.cast(b.apply("log", b.cast(inputs[0], F32)), F16)
    assert not emit(cases.lowered(inputs, [b.cast(softmax, F16), logs])[0]).flushes
    assert options("cuda", True)["enable_reflect_ftz"] and not options("cuda", False)["enable_reflect_ftz"]
    assert "enable_reflect_ftz" not in options("hip", True)


def test_of_the_steps_that_sum_exponentials_only_the_last_has_a_mask() -> None:
    for cols, apart in ((40000, True), (40960, False)):
        inputs, softmax, _ = _softmax(BF16, cols)
        lines = emit(cases.lowered(inputs, [b.cast(softmax, BF16)])[0]).text.splitlines()
        start = next(k for k, line in enumerate(lines) if line.startswith("    for col_start"))
        steps = [*itertools.takewhile(lambda line: line.startswith("        "), lines[start + 1 :])]
        assert ("// BLOCK * BLOCK" in lines[start]) is apart and not any("inside" in line for line in steps)
        after = lines[start + 1 + len(steps) :]
        assert ("tl.where(inside, x, float" in "\n".join(after[:6])) is apart
