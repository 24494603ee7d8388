"""Attention of our own inside compiled functions. In: attention as models ask for it. Out: right values; who ran it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.build.compilers import supports
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.report.gather import gather
from tests.judge import judge

pytestmark = [
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not supports("avx2"), reason="PyTorch's own is faster without AVX2"),
]

OURS, LIBRARY = "interfuse.attention", "library: attention"


def heads(length: int, head: int = 32, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, length, 3 * head, generator=torch.Generator().manual_seed(length)).to(dtype)


def split(x: torch.Tensor, head: int = 32) -> torch.Tensor:
    return x.view(*x.shape[:2], -1, head).transpose(1, 2)


def run(f: Any) -> tuple[Any, Backend]:
    torch._dynamo.reset()
    backend = Backend(read("no-race", {}))
    return torch.compile(f, backend=backend), backend


def chosen(backend: Backend) -> list[str]:
    return [r.choice.label for c in backend.compiled if c.plan for r in c.plan.regions if r.name == "attention"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inside_a_layer(dtype: torch.dtype) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(96, 96, dtype=dtype)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found = F.scaled_dot_product_attention(split(self.query(x)), split(y), split(y * 0.5))
            return F.gelu(found.transpose(1, 2).reshape(x.shape)) + x

    torch.manual_seed(0)
    layer = Layer()
    given = heads(40, dtype=dtype), heads(50, dtype=dtype)
    with torch.no_grad():
        fast, backend = run(layer)
        verdict = judge(layer, given, fast)
    assert verdict.ok, verdict
    assert chosen(backend) == [OURS]
    assert not [e for r in backend.records for e in r.of("fallback")]
    assert not any("attention" in u.reason for u in gather(backend.records).unfused)


@pytest.mark.parametrize("kind", ["causal", "mask", "bool", "scale"])
def test_kinds(kind: str) -> None:
    given = heads(40), heads(50)
    mask = torch.randn(2, 1, 40, 50, generator=torch.Generator().manual_seed(3))
    options: dict[str, dict[str, Any]] = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": mask},
        "bool": {"attn_mask": mask > 0},
        "scale": {"scale": 0.3},
    }

    def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(split(x), split(y), split(y), **options[kind])

    with torch.no_grad():
        fast, backend = run(attend)
        verdict = judge(attend, given, fast)
    assert verdict.ok, verdict
    assert chosen(backend) == [OURS]


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("keys", [50, 200])
def test_rows_that_see_nothing(value: float, keys: int) -> None:
    given = heads(40), heads(keys)
    mask = torch.zeros(40, keys)
    mask[3], mask[7, 20:] = -math.inf, -math.inf
    given[1][0, 10, 5] = value

    def attend(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(split(x), split(y), split(z), attn_mask=mask)

    with torch.no_grad():
        fast, backend = run(attend)
        verdict = judge(attend, (given[0], heads(keys), given[1]), fast)
    assert verdict.ok, verdict
    assert chosen(backend) == [OURS]


def test_sizes_that_change() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(split(x), split(x), split(x), is_causal=True).transpose(1, 2) + 1.0

    with torch.no_grad():
        fast, backend = run(attend)
        torch._dynamo.mark_dynamic(first := heads(40), 1)
        fast(first)
        for length in (40, 7, 300):
            verdict = judge(attend, (heads(length),), fast)
            assert verdict.ok, verdict
    assert set(chosen(backend)) == {OURS}
    assert len(backend.compiled) == 1


def test_the_library_keeps_gradients_dropout_and_odd_heads() -> None:
    def attend(x: torch.Tensor, dropout: float = 0.0, head: int = 32) -> torch.Tensor:
        return F.scaled_dot_product_attention(*(split(x, head),) * 3, dropout_p=dropout).transpose(1, 2)

    for f, needs_grad in ((attend, True), (lambda x: attend(x, 0.5), False), (lambda x: attend(x, head=24), False)):
        fast, backend = run(f)
        x = heads(40).requires_grad_(needs_grad)
        found = fast(x)
        if needs_grad:
            found.sum().backward()
            assert x.grad is not None and not math.isnan(float(x.grad.sum()))
        assert OURS not in chosen(backend)
