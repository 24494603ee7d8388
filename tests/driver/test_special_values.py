"""Infinities, NaN and signed zeros. In: functions whose results hang on them. Out: what eager gives, sign for sign."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import interfuse

pytestmark = pytest.mark.usefixtures("empty_cache", "no_gradients")

MOMENTS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "var_mean": lambda x, dim: torch.var_mean(x, dim),
    "std_mean": lambda x, dim: torch.std_mean(x, dim, correction=0),
    "mean": lambda x, dim: x.mean(dim),
    "apart": lambda x, dim: x - torch.var_mean(x, dim)[1].unsqueeze(dim),
    "normalised": lambda x, dim: (x - x.mean(dim, keepdim=True)) * x.var(dim, keepdim=True).rsqrt(),
}


def kinds(t: torch.Tensor) -> torch.Tensor:
    """0 for finite numbers, 1 NaN, 2 inf, 3 -inf."""
    return t.isnan() * 1 + t.isposinf() * 2 + t.isneginf() * 3


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("width", [60, 2100])
def test_statistics_of_infinities(moment: str, dim: int, width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, width)
    x[1, 7] = x[3, :] = x[4, 0] = math.inf
    x[2, 9], x[2, 11], x[5, 3] = math.inf, -math.inf, -math.inf
    x = x if dim else x.t().contiguous()
    f = MOMENTS[moment]
    fast = interfuse.compile(lambda x: f(x, dim), dynamic=False, race=False)
    for want, got in zip(tree_leaves(f(x, dim)), tree_leaves(fast(x)), strict=True):
        assert torch.equal(kinds(want), kinds(got))
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("shape", [(4, 1), (1, 4)])
def test_the_norm_of_one_number_needs_no_square(shape: tuple[int, ...]) -> None:
    x = torch.tensor([1e30, -1e-30, 3.0, -0.0]).view(shape)
    dim = shape.index(1)
    fast = interfuse.compile(lambda x: F.normalize(x, dim=dim, eps=0.0), dynamic=False, race=False)
    assert torch.equal(fast(x)[x != 0], x[x != 0].sign())


CLAMPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp(max=0),
    "clamp": lambda x: x.clamp(0, 1),
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 1.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("clamp", CLAMPS)
def test_the_sign_of_zero_at_a_limit(clamp: str, dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0, math.nan, math.inf, -math.inf], dtype=dtype).repeat(11)
    want, got = CLAMPS[clamp](x), interfuse.compile(CLAMPS[clamp], dynamic=False, race=False)(x)
    assert torch.equal(torch.signbit(want) & ~want.isnan(), torch.signbit(got) & ~got.isnan())
    torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)
