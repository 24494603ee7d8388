"""Attention on a GPU: every routine, each form of it, raced. In: attention as models write it. Out: right values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.plan.plan import Region
from interfuse.run.providers import PROVIDERS, available
from tests.attentions import HEADS, batches, by_hand, halves, masked, scaled_before
from tests.judge import judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

B, H, S, D = 2, HEADS, 160, 64
ROUTINES = ("cudnn.attention", "flash.attention", "efficient.attention")
Made = Callable[[torch.Tensor], torch.Tensor]


def captured(x: torch.Tensor) -> torch.Tensor:
    """Handed over as one of PyTorch's kernels."""
    return F.scaled_dot_product_attention(*halves(x)).transpose(1, 2).reshape(B, S, H * D)


def causal(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*halves(x), is_causal=True)


def by_positions(x: torch.Tensor) -> torch.Tensor:
    """As transformers makes the mask of GPT-2 and Llama, for which PyTorch chooses a kernel that adds it."""
    place = torch.arange(S, device=x.device)
    seen = (place[None, :] <= place[:, None]) & (place >= 0)
    return F.scaled_dot_product_attention(*halves(x), attn_mask=seen[None, None].expand(B, 1, S, S))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Queries and keys that are computed heads first, as rotary embeddings leave them: so lies what PyTorch gives."""
    q, k, v = (t.contiguous() for t in halves(x))
    return F.scaled_dot_product_attention(q + k, k - q, v, is_causal=True).transpose(1, 2).reshape(B, S, H * D)


def heads_first(x: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.contiguous() for t in halves(x))
    return F.scaled_dot_product_attention(q + k, k - q, v)


def spread(x: torch.Tensor) -> torch.Tensor:
    """Queries that share keys and values."""
    q, k, v = halves(x)
    k, v = (t[:, :1].expand(-1, H, -1, -1) for t in (k, v))
    return ((q @ k.transpose(-1, -2) / 8).softmax(-1)) @ v


def bias_of(dtype: torch.dtype, length: int) -> torch.Tensor:
    return torch.randn(length, length, H, generator=torch.Generator().manual_seed(3)).to(dtype).cuda()


@pytest.mark.parametrize("length", [S, 37, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [False, True])
def test_bias(dtype: torch.dtype, length: int, hidden: bool) -> None:
    """As T5's: a bias of each head that does not lie row by row; one row sees nothing where some are hidden."""
    bias = bias_of(dtype, length)
    if hidden:
        bias[length // 2], bias[:, : length // 3] = -math.inf, -math.inf

    def f(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(B, S, 3, H, D)[:, :length].permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.permute(2, 0, 1)[None].expand(B, -1, -1, -1))

    torch._dynamo.reset()
    backend = Backend(read("no-race", {}))
    with torch.no_grad():
        verdict = judge(f, (given(dtype), bias), torch.compile(f, backend=backend, dynamic=False))
    assert verdict.ok, verdict
    if length == S:
        (region,) = regions(backend)
        assert region.choice.label == "efficient.attention"


@pytest.mark.parametrize("start", [1, 3, 8])
def test_odd_places(start: int) -> None:
    """Queries that begin between the addresses that the kernels read at."""

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x[:, :, start : start + 3 * 64].view(B, S, 3, 1, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v

    torch._dynamo.reset()
    x = torch.randn(B, S, 3 * H * D + 5, generator=torch.Generator().manual_seed(7)).bfloat16().cuda()
    with torch.no_grad():  # the race runs every routine
        verdict = judge(f, (x,), torch.compile(f, backend=Backend(read("default", {})), dynamic=False))
    assert verdict.ok, verdict


HANDED_OVER: list[Made] = [captured, causal, by_positions, rotated, heads_first]
"""Attention that PyTorch has chosen a kernel for."""
FUNCTIONS: list[Made] = [masked, by_hand, scaled_before, batches, spread, *HANDED_OVER]


def regions(backend: Backend) -> list[Region]:
    return [r for c in backend.compiled if c.plan for r in c.plan.regions if r.name == "attention"]


def given(dtype: torch.dtype, value: float | None = None) -> torch.Tensor:
    x = torch.randn(B, S, 3 * H * D, generator=torch.Generator().manual_seed(7))
    if value is not None:
        x[1, 33, 5] = value
    return x.to(dtype).cuda()


@pytest.mark.parametrize("routine", [*ROUTINES, "race"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_routines(f: Made, dtype: torch.dtype, routine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each routine alone where it can be had, and the fastest of all."""
    others = [] if routine == "race" else [r for r in ROUTINES if r != routine]
    for name in others:
        monkeypatch.setitem(PROVIDERS, name, _gone(name))
    torch._dynamo.reset()
    backend = Backend(read("default" if routine == "race" else "no-race", {}))
    fast = torch.compile(f, backend=backend)
    with torch.no_grad():
        verdict = judge(f, (given(dtype),), fast)
    assert verdict.ok, verdict
    (region,) = regions(backend)
    labels = [c.label for c in region.candidates]
    assert not set(others) & set(labels)
    if routine != "race" and f not in HANDED_OVER and routine in labels:
        assert region.choice.label == routine
    assert not [e for r in backend.records for e in r.of("fallback")]


def _gone(name: str) -> Any:
    return dataclasses.replace(PROVIDERS[name], dtypes=())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e4])
@pytest.mark.parametrize("f", [masked, by_hand, captured], ids=lambda f: f.__name__)
def test_special_values(f: Made, value: float) -> None:
    torch._dynamo.reset()
    fast = torch.compile(f, backend=Backend(read("no-race", {})))
    with torch.no_grad():
        verdict = judge(f, (given(torch.bfloat16, value),), fast)
    assert verdict.ok, verdict


def test_training_is_left_to_the_library() -> None:
    """The backward pass reads the logarithms of sums."""
    torch._dynamo.reset()
    fast = torch.compile(captured, backend=Backend(read("no-race", {})))
    x, y = (given(torch.float32).requires_grad_() for _ in range(2))
    fast(x).square().sum().backward()
    captured(y).square().sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_under_a_graph_of_cuda() -> None:
    torch._dynamo.reset()
    fast = torch.compile(by_hand, backend=Backend(read("no-race", {})))
    x = given(torch.bfloat16)
    with torch.no_grad():
        expected = fast(x).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fast(x)
        x.copy_(x.roll(1, 0))
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(out, expected.roll(1, 0))


def test_switched_off_by_the_user() -> None:
    """What PyTorch's switches turn off is not offered."""
    torch._dynamo.reset()
    backend = Backend(read("no-race", {}))
    with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
        torch.compile(by_hand, backend=backend)(given(torch.bfloat16))
        assert available("flash.attention", "bf16", "cuda") is not None
    (region,) = regions(backend)
    assert not {c.label for c in region.candidates} & set(ROUTINES)
