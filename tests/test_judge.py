"""The judge itself. In: right and wrong results. Out: it passes the right ones, and fails each sort of wrong one."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32
from interfuse.ir.evaluate import evaluate
from tests.judge import RULES, judge, judge_arrays, judge_region
from tests.strategies import arrays_for, regions


def _softmax(x):
    return torch.softmax(x, -1)


def _data(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _accepts(function, arguments, compiled, rule="fp64"):
    verdict = judge(function, arguments, compiled, rule)
    assert verdict.ok, verdict
    assert verdict.share <= 1


def _rejects(function, arguments, compiled, match, rule="fp64"):
    verdict = judge(function, arguments, compiled, rule)
    assert not verdict.ok, verdict
    assert match in verdict.note


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_eager_beside_itself_passes(rule, dtype):
    _accepts(lambda x: x * 3 + 1, (_data(5, 7).to(dtype),), lambda x: x * 3 + 1, rule)


def test_another_order_of_summation_passes():
    _accepts(lambda x: x.sum(-1), (_data(4, 1000),), lambda x: x.flip(-1).sum(-1))


def test_a_narrow_kernel_that_keeps_wide_values_passes():
    x = _data(64, 64, dtype=torch.bfloat16)
    _accepts(lambda x: torch.tanh(x * 3) + x, (x,), lambda x: (torch.tanh(x.float() * 3) + x.float()).bfloat16())


def test_an_error_in_one_block_is_found():
    def broken(x):
        out = x * 2
        out.view(-1)[5000] += 1e-3
        return out

    _rejects(lambda x: x * 2, (_data(3, 4096),), broken, "tensor 0: the error is")


def test_a_small_error_everywhere_is_found():
    _rejects(_softmax, (_data(64, 64),), lambda x: _softmax(x) * (1 + 3e-6), "the error is")


def test_half_precision_arithmetic_is_found():
    _rejects(_softmax, (_data(64, 64),), lambda x: _softmax(x.bfloat16()).float(), "the error is")


def test_ill_conditioned_functions_get_room():
    x = torch.full((4, 100), 0.37) + 1e-6 * _data(4, 100)
    var_in_pieces = lambda x: (x - x.flip(-1).mean(-1, keepdim=True)).square().mean(-1)  # noqa: E731
    _accepts(lambda x: x.var(-1, correction=0), (x,), var_in_pieces)


def test_the_textbook_variance_is_rejected():
    x = _data(4, 1000) + 300
    textbook = lambda x: x.square().mean(-1) - x.mean(-1).square()  # noqa: E731
    _rejects(lambda x: x.var(-1, correction=0), (x,), textbook, "the error is")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_must_stand_where_they_stand(value):
    x = _data(8)
    x[3] = value
    _accepts(lambda x: x + 1, (x,), lambda x: x + 1)
    _rejects(lambda x: x + 1, (x,), lambda x: torch.nan_to_num(x) + 1, "the error is inf")
    _rejects(lambda x: x + 1, (_data(8),), lambda x: torch.where(x == x[3], value, x + 1), "the error is inf")


def test_integers_and_booleans_are_exact():
    x = torch.arange(5000)
    _accepts(lambda x: (x * 2, x > 7), (x,), lambda x: (x + x, x > 7))
    _rejects(lambda x: x * 2, (x,), lambda x: x * 2 + (x == 4999), "the error is inf")
    _rejects(lambda x: x > 7, (x,), lambda x: x > 8, "the error is inf")
    _rejects(lambda x: x * 2, (x,), lambda x: x * 2 + (x == 4999), "the error is inf", "eager")


def test_codes_may_differ_by_one_in_a_thousand():
    x = torch.arange(5000) % 100
    _accepts(lambda x: x * 2, (x,), lambda x: x * 2 + (torch.arange(5000) == 9), "codes")
    _rejects(lambda x: x * 2, (x,), lambda x: x * 2 + 2 * (torch.arange(5000) == 9), "2 times", "codes")
    _rejects(lambda x: x * 2, (x,), lambda x: x * 2 + (torch.arange(5000) < 50), "10 times", "codes")


def test_codes_of_eight_bit_floats():
    x = _data(5000)

    def nudged(x):
        bits = x.to(torch.float8_e4m3fn).view(torch.uint8)
        return (bits + (torch.arange(5000) == 3)).view(torch.float8_e4m3fn)

    _accepts(lambda x: x.to(torch.float8_e4m3fn), (x,), nudged, "codes")
    assert not judge(lambda x: x.to(torch.float8_e4m3fn), (x,), nudged, "eager").ok
    _rejects(lambda x: x.to(torch.float8_e4m3fn), (x,), lambda x: (-x).to(torch.float8_e4m3fn), "times", "codes")


def test_eager_rule_allows_two_units_and_no_more():
    x = torch.ones(100)
    up = torch.nextafter(torch.nextafter(x, x * 2), x * 2)
    assert judge_arrays(up, x, rule="eager").ok
    far = x + 2.0**-23 * 9
    assert not judge_arrays(far, x, rule="eager").ok
    half = torch.ones(100, dtype=torch.bfloat16)
    assert not judge_arrays(half + 2.0**-7 * 3, half, rule="eager").ok


def test_type_shape_stride_and_number_must_agree():
    x = _data(4, 6)
    _rejects(lambda x: x + 1, (x,), lambda x: (x + 1).double(), "torch.float64[4, 6] for torch.float32[4, 6]")
    _rejects(lambda x: x + 1, (x,), lambda x: (x + 1).view(6, 4), "[6, 4] for")
    _rejects(lambda x: x + 1, (x,), lambda x: (x + 1).t().contiguous().t(), "strides (1, 4) for (6, 1)")
    _rejects(lambda x: (x, x + 1), (x,), lambda x: x, "2 tensors for 3")


def test_mutated_arguments_are_compared():
    _accepts(lambda x: x.add_(1).sum(), (_data(9),), lambda x: x.add_(1).sum())
    _rejects(lambda x: x.add_(1).sum(), (_data(9),), lambda x: (x + 1).sum(), "tensor 1: the error is")
    x = _data(9)
    before = x.clone()
    judge(lambda x: x.add_(1), (x,), lambda x: x.add_(1))
    assert torch.equal(x, before)


def test_modules_and_nested_arguments():
    norm = torch.nn.LayerNorm(16)
    _accepts(norm, (_data(4, 16),), lambda x: torch.nn.functional.layer_norm(x, (16,), norm.weight, norm.bias))
    assert norm.weight.dtype is torch.float32
    _accepts(lambda xs: xs["a"] + xs["b"][0], ({"a": _data(4), "b": [_data(4)]},), lambda xs: xs["b"][0] + xs["a"])


def test_the_float64_run_sees_no_narrow_cast():
    x = _data(64, 64, dtype=torch.bfloat16)
    through_f32 = lambda x: (x.float() * 1.1).to(torch.bfloat16)  # noqa: E731
    _accepts(through_f32, (x,), through_f32)
    # Were the casts left in the exact run, eager's own error would be nought and this one far too large for it.
    _accepts(lambda x: ((x * 1.1).bfloat16() * 1.1).bfloat16(), (x,), lambda x: (x.float() * 1.1 * 1.1).bfloat16())


def test_empty_results_pass():
    _accepts(lambda x: x[:0], (_data(4, 6),), lambda x: x[:0] * 2)


def test_numpy_arrays_of_narrow_types():
    x = np.linspace(-3, 3, 50)
    eager = x.astype(ml_dtypes.bfloat16)
    assert judge_arrays(eager, eager, x, x).ok
    assert not judge_arrays((x * 1.1).astype(ml_dtypes.bfloat16), eager, x, x).ok
    assert not judge_arrays(x.astype(np.float16), eager, x, x).ok


def test_unknown_rule():
    with pytest.raises(ValueError, match="there is no rule 'loose'"):
        judge_arrays(torch.ones(1), torch.ones(1), rule="loose")
    with pytest.raises(ValueError, match="fp64 needs"):
        judge_arrays(torch.ones(1), torch.ones(1))


@settings(max_examples=60)
@given(regions())
def test_the_reference_passes_for_every_region(region):
    inputs, outputs = region
    values = arrays_for(inputs)
    verdict = judge_region(outputs, values, evaluate(outputs, values))
    assert verdict.ok, verdict


def test_a_wrong_kernel_fails_for_a_region():
    x = b.placeholder("x", BF16, (4, 33))
    total = b.reduce("sum", b.cast(x, F32), (1,))
    values = arrays_for([x])
    right = evaluate([total], values)[0]
    assert judge_region([total], values, [right]).ok
    assert "output 0 (sum:f32[4])" in judge_region([total], values, [right * np.float32(1.0001)]).note
    assert not judge_region([total], values, [right.astype(np.float64)]).ok
