"""The accuracy contract. In: results with known faults. Out: a share above one for each fault, below one without."""

from __future__ import annotations

import math

import pytest
import torch

from interfuse.tune.judge import WORST, judge, moved
from tests.judge import judge_arrays


def case(dtype: torch.dtype = torch.float32, n: int = 10000) -> tuple[torch.Tensor, torch.Tensor]:
    """(eager, exact): eager is off by up to one ulp."""
    generator = torch.Generator().manual_seed(1)
    exact = torch.randn(n, generator=generator, dtype=torch.float64)
    return exact.to(dtype), exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_eager_itself_passes(dtype: torch.dtype) -> None:
    eager, exact = case(dtype)
    found = judge([eager], [eager], [exact])
    assert found.ok
    assert found.rms < torch.finfo(dtype).eps


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (8.0, False)])
def test_the_whole_may_be_off_by_half_more_than_eager(factor: float, ok: bool) -> None:
    _, exact = case()
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1e-5
    eager = (exact + noise).float()
    assert judge([(exact + noise * factor).float()], [eager], [exact]).ok == ok


def test_one_bad_block_is_enough() -> None:
    eager, exact = case(n=100000)
    got = eager.clone()
    got[50000] += 1e-5
    found = judge([got], [eager], [exact])
    assert found.share > 1
    assert found.rms < 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_stand_where_they_should(value: float) -> None:
    eager, exact = case(n=10)
    bad = eager.clone()
    bad[3] = value
    assert judge([bad], [eager], [exact]).share == WORST
    assert judge([eager], [bad], [bad.double()]).share == WORST
    assert judge([bad], [bad], [bad.double()]).ok
    # Where eager and float64 disagree (an overflow of the narrow type), anything goes.
    assert judge([eager], [bad], [exact]).ok


def test_integers_and_booleans_are_exact() -> None:
    a = torch.arange(5)
    assert judge([a], [a], [a]).ok
    assert not judge([a + (a == 3)], [a], [a]).ok
    assert not judge([a > 2], [a > 1], None).ok


def test_types_shapes_and_counts_must_agree() -> None:
    a = torch.ones(4)
    assert not judge([a.double()], [a], [a.double()]).ok
    assert not judge([a.view(2, 2)], [a], [a.double()]).ok
    assert not judge([], [a], [a.double()]).ok
    assert judge([a[:0]], [a[:0]], [a[:0].double()]).ok


def test_without_float64_closeness_to_eager_decides() -> None:
    eager, _ = case()
    assert judge([eager * (1 + 2.0**-23)], [eager], None).ok
    assert not judge([eager * (1 + 2.0**-18)], [eager], None).ok


def test_what_moved_inputs_change_is_allowed_on_top() -> None:
    """x - y of near neighbours: a result off by the inputs' own last bits is held against nobody, more is."""
    x = torch.linspace(1, 2, 10000, dtype=torch.float32)
    y = x * (1 - 2.0**-12)

    def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b

    eager, exact = difference(x, y), difference(x.double(), y.double())
    nearby = [difference(*moved([x, y]))]
    got = difference(x * (1 + 2.0**-23), y)
    assert not judge([got], [eager], [exact]).ok
    assert judge([got], [eager], [exact], nearby).ok
    assert not judge([difference(x * (1 + 2.0**-20), y)], [eager], [exact], nearby).ok


def test_moved_inputs_are_near_wide_and_the_same_each_time() -> None:
    x, count, code = torch.randn(1000), torch.arange(3), torch.ones(4).to(torch.float8_e4m3fn)
    near, same, as_is, text = moved([x, count, code, "text"])
    assert near.dtype == torch.float64 and same is count and as_is is code and text == "text"
    assert 0 < ((near - x).abs() / x.abs()).max() <= 2.0**-24
    assert torch.equal(near, moved([x])[0])
    assert ((moved([x.double()])[0] - x).abs() / x.abs()).max() <= 2.0**-52


@pytest.mark.parametrize(("wrong", "by", "ok"), [(0, 0, True), (4, 1, True), (5, 1, False), (1, 2, False)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_codes_behind_a_reduction_may_be_one_off_in_a_thousand(
    dtype: torch.dtype, wrong: int, by: int, ok: bool
) -> None:
    eager = torch.arange(4096).remainder(90).to(torch.uint8)
    got = eager.clone()
    got[:wrong] += by
    got, eager = (t.view(dtype) for t in (got, eager))
    assert judge([got], [eager], None, codes={0}).ok == ok
    assert judge([got], [eager], None).ok == (wrong == 0)


def test_nan_is_no_neighbour_of_the_largest_code() -> None:
    eager = torch.full((4096,), 448.0).to(torch.float8_e4m3fn)
    got = eager.clone().view(torch.uint8)
    got[7] += 1
    got = got.view(torch.float8_e4m3fn)
    assert got.float()[7].isnan()
    assert not judge([got], [eager], None, codes={0}).ok and not judge([eager], [got], None, codes={0}).ok
    assert judge([got], [got], None, codes={0}).ok
    assert not judge_arrays(got, eager, rule="codes").ok and judge_arrays(got, got, rule="codes").ok


def test_codes_change_sign_at_zero() -> None:
    eager = torch.tensor([2.0**-9] * 2000).to(torch.float8_e4m3fn)  # the smallest number of this type
    got = eager.clone()
    got[0] = -0.0
    assert judge([got], [eager], None, codes={0}).ok
    got[0] = -(2.0**-9)
    assert not judge([got], [eager], None, codes={0}).ok
