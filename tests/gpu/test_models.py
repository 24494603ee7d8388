"""Whole models on a GPU: right by the contract, fused, and the ledger's launches are those that the profiler sees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import interfuse
from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.cases import CASES
from tests.driver.test_backend import Block, fused, no_fallback
from tests.judge import judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted"),
]


def on_gpu(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.cuda() if isinstance(t, torch.Tensor) else t, tree)


def compiled(f: Callable[..., Any]) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read(None, {}))
    return torch.compile(f, backend=backend, dynamic=False), backend


def kernels(call: Callable[[], Any]) -> list[str]:
    """The names of the kernels that one call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if str(e.device_type).endswith("CUDA")]
    return [n for n in names if not n.startswith(("Memcpy", "Memset"))]


def counted(backend: Backend) -> tuple[int, int]:
    """Launches before and after, as the ledger counts them."""
    regions = [r for c in backend.compiled if c.plan for r in c.plan.regions]
    return sum(r.library.launches for r in regions), sum(r.choice.launches for r in regions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gated_layer_of_one_token(dtype: torch.dtype) -> None:
    """Its matrix products are reductions in kernels, with the norm, the gate and the sum beside them."""

    def layer(
        x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, b: Any
    ) -> Any:
        y = F.rms_norm(x, (512,), w)
        return x + F.linear(F.silu(y @ gate) * (y @ up), down, b)

    shapes = (1, 512), (512,), (512, 1500), (512, 1500), (512, 1500), (512,)
    inputs = [torch.randn(*s, device="cuda").mul(0.1).to(dtype) for s in shapes]
    with torch.no_grad():
        fast, backend = compiled(layer)
        assert judge(layer, inputs, fast).ok
        before, after = counted(backend)
    assert after <= 5 < before
    no_fallback(backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_block(dtype: torch.dtype) -> None:
    block = Block(64, 4).eval().cuda().to(dtype)
    x = torch.randn(2, 128, 64, device="cuda", dtype=dtype)
    with torch.no_grad():
        fast, backend = compiled(block)
        verdict = judge(block, (x,), fast)
        assert verdict.ok, verdict.note
        no_fallback(backend)
        assert "add+layer_norm" in fused(backend)


def chain(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x + w) + r, (w.numel(),), w, w).softmax(-1)


def test_launches_are_those_that_the_profiler_sees() -> None:
    x, r, w = (torch.randn(*s, device="cuda", dtype=torch.float16) for s in ((64, 512), (64, 512), (512,)))
    fast, backend = compiled(chain)
    with torch.no_grad():
        after = kernels(lambda: fast(x, r, w))
        before = kernels(lambda: chain(x, r, w))
    assert counted(backend) == (len(before), len(after)), (before, after)
    assert len(after) == 1


def test_launches_of_a_block_are_those_that_the_profiler_sees() -> None:
    block = Block(64, 4).eval().cuda().half()
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.float16)
    fast, backend = compiled(block)
    with torch.no_grad():
        after = kernels(lambda: fast(x))
        before = kernels(lambda: block(x))
    assert counted(backend) == (len(before), len(after)), "\n".join((*before, "after:", *after))


def test_a_training_step() -> None:
    block = Block(64, 4).cuda()
    block.drop.p = 0.0
    twin = copy.deepcopy(block)
    fast, backend = compiled(twin)
    x = torch.randn(2, 32, 64, device="cuda")
    for run in (block, fast):
        run(x).square().mean().backward()
    for (name, a), b in zip(block.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5, msg=name)
    no_fallback(backend)


def test_a_users_own_graph_capture() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        fast, _ = compiled(model)
        fast(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(x)
        x.copy_(torch.randn(32, 64))
        graph.replay()
        torch.testing.assert_close(y, model(x))


def test_another_stream() -> None:
    stream = torch.cuda.Stream()
    x = torch.randn(1 << 20, device="cuda")
    fast, _ = compiled(lambda t: torch.tanh(t) * 2)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = fast(x)
    stream.synchronize()
    torch.testing.assert_close(y, torch.tanh(x) * 2)


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, large: bool) -> None:
    function, arguments = CASES[name].build(large)
    with torch.no_grad():
        fast, backend = compiled(function)
        verdict = judge(function, on_gpu(arguments), fast, CASES[name].rule)
    assert verdict.ok, verdict.note
    no_fallback(backend)


def test_explain_measures() -> None:
    block = Block(64, 4).eval().cuda()
    with override(race=True):
        ledger = interfuse.explain(block, (torch.randn(2, 128, 64, device="cuda"),), rounds=3)
    assert {m.name for m in ledger.measures} == {"eager", "interfuse"}
    assert all(m.launches and m.median_ms and m.peak_bytes for m in ledger.measures)
