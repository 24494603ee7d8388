"""Attention of our own. In: awkward sizes, masks, types and layouts. Out: what float64 gives, at every vector level."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from interfuse.base.knobs import current, override
from interfuse.build.compilers import supports
from interfuse.capture.torch_types import from_torch
from interfuse.ir import build as b
from interfuse.ir.evaluate import evaluate
from interfuse.run.attention import Function, attention, built, meaning
from tests.judge import judge_arrays

LEVELS = [level for level in ("avx512", "avx2", "portable") if supports(level)]
TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@cache
def function(dtype: str, mask: str, head: int, level: str) -> Function:
    with override(vector=level):
        return built(dtype, mask, head, current())


def operands(
    queries: int, keys: int, head: int, dtype: torch.dtype = torch.float32, batch: int = 2, heads: int = 3
) -> list[torch.Tensor]:
    """Query, key and value as they come out of matrix products: heads beside each other in a row."""
    generator = torch.Generator().manual_seed(queries * keys + head)
    made = [torch.randn(batch, n, heads, head, generator=generator) for n in (queries, keys, keys)]
    return [t.to(dtype).transpose(1, 2) for t in made]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    scores = q.double() @ k.double().transpose(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return torch.nan_to_num(torch.softmax(scores, -1), nan=0.0) @ v.double()


def run(
    tensors: list[torch.Tensor], mask: torch.Tensor | None = None, causal: bool = False, level: str = LEVELS[0]
) -> torch.Tensor:
    dtype, seen, head = tensors[0].dtype, TYPES[mask.dtype] if mask is not None else "", tensors[0].shape[-1]
    given = [*tensors, *([mask] if mask is not None else [])]
    attrs = {"scale": head**-0.5, "causal": causal}
    return attention(given, attrs, function(TYPES[dtype], seen, head, level))


def check(
    tensors: list[torch.Tensor], mask: torch.Tensor | None = None, causal: bool = False, level: str = LEVELS[0]
) -> None:
    got = run(tensors, mask, causal, level)
    q, k, v = tensors
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    verdict = judge_arrays(got, eager, exact(q, k, v, mask, causal))
    assert verdict.ok, verdict
    assert got.transpose(1, 2).is_contiguous()


SIZES = [(1, 1), (7, 5), (24, 128), (25, 129), (250, 300), (3, 200)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(level: str, queries: int, keys: int, causal: bool) -> None:
    if causal and queries > keys:
        pytest.skip("what PyTorch gives for queries before all keys is its own affair")
    check(operands(queries, keys, 32), causal=causal, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("head", "dtype"), [(16, torch.float32), (80, torch.float32), (256, torch.bfloat16), (64, torch.float16)]
)
def test_heads_and_types(level: str, head: int, dtype: torch.dtype) -> None:
    check(operands(30, 140, head, dtype, heads=2), level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 1, 37, 150), (2, 3, 37, 150), (2, 1, 1, 150), (37, 150), (1, 1, 1, 1)])
def test_masks(level: str, shape: tuple[int, ...]) -> None:
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    hidden = mask > 0.5
    if mask.numel() > 1:
        mask = mask.masked_fill(hidden, -math.inf)
    check(operands(37, 150, 32), mask, level=level)
    check(operands(37, 150, 32, torch.bfloat16), mask.bfloat16(), level=level)


def test_a_mask_of_another_layout() -> None:
    mask = torch.randn(150, 37).t()
    check(operands(37, 150, 32), mask)


def test_a_row_that_sees_nothing_is_zero() -> None:
    mask = torch.zeros(37, 150)
    mask[5] = -math.inf
    mask[6, :140] = -math.inf  # nothing in the first block
    check(operands(37, 150, 32), mask)
    assert not run(operands(37, 150, 32), mask)[:, :, 5].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_stays_so(bad: float) -> None:
    q, k, v = operands(30, 140, 32)
    q[1, 2, 3, 4] = bad
    got = run([q, k, v])
    assert got[1, 2, 3].isnan().all()
    assert got.isnan().sum() == 32


def test_large_scores_do_not_overflow() -> None:
    q, k, v = operands(30, 300, 32)
    check([q * 100, k * 100, v])


def test_elements_apart_are_copied_first() -> None:
    q, k, v = (torch.randn(2, 3, 32, n).transpose(2, 3) for n in (20, 40, 40))
    check([q, k, v])


@pytest.mark.parametrize("size", [(0, 3, 20, 40), (2, 3, 0, 40)])
def test_nothing_to_do(size: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = size
    assert run(operands(queries, keys, 32, batch=batch, heads=heads)).shape == (batch, heads, queries, 32)


def test_threads_do_not_change_a_bit() -> None:
    tensors, before = operands(250, 300, 64), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(tensors)
        torch.set_num_threads(2)
        assert torch.equal(alone, run(tensors))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_meaning(causal: bool, masked: bool) -> None:
    tensors = [*operands(5, 7, 16), *([torch.randn(1, 1, 5, 7)] if masked else [])]
    nodes = [b.placeholder(f"t{k}", from_torch(t.dtype), tuple(t.shape)) for k, t in enumerate(tensors)]
    root = meaning(nodes, {"scale": 0.25, "causal": causal})
    values = {n: t.double().numpy() for n, t in zip(nodes, tensors, strict=True)}
    (found,) = evaluate([root], values, wide=True)
    mask = tensors[3] if masked else None
    np.testing.assert_allclose(found, exact(*tensors[:3], mask, causal).numpy(), rtol=1e-10, atol=1e-10)
