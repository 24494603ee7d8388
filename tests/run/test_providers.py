"""Providers against what they claim to mean. In: providers, awkward operands. Out: the float64 evaluator agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from interfuse.base.errors import OptionError
from interfuse.capture.torch_types import from_torch
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.plan import routines
from interfuse.run import providers
from interfuse.run.providers import ACTIVATIONS, PROVIDERS, available, probe

HAS_ONEDNN = torch.backends.mkldnn.is_available()
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


def meaning(name: str, tensors: Sequence[torch.Tensor], attrs: dict[str, str]) -> np.ndarray:
    """What the provider stands for on these tensors, in float64."""
    nodes = [b.placeholder(f"t{k}", from_torch(t.dtype), tuple(t.shape)) for k, t in enumerate(tensors)]
    root = PROVIDERS[name].meaning(nodes, attrs)
    values = {n: t.double().numpy() for n, t in zip(nodes, tensors, strict=True)}
    assert root.dtype is nodes[0].dtype
    return evaluate([root], values, wide=True)[0]


def check(name: str, tensors: Sequence[torch.Tensor], attrs: dict[str, str]) -> None:
    got = PROVIDERS[name].run(tensors, attrs)
    want = meaning(name, tensors, attrs)
    assert got.dtype == tensors[0].dtype
    assert got.is_contiguous()
    allowed = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[got.dtype]
    np.testing.assert_allclose(got.double().numpy(), want, rtol=allowed, atol=allowed)


def operands(
    dtype: torch.dtype = torch.float32, batch: tuple[int, ...] = (5,), bias: bool = True
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(*batch, 12), torch.randn(7, 12) / 3]
    return [t.to(dtype) for t in (*made, *([torch.randn(7)] if bias else []))]


@needs_onednn
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "bias"), [((5,), True), ((2, 3), False), ((), True), ((0,), True)])
def test_onednn_linear(activation: str, dtype: torch.dtype, batch: tuple[int, ...], bias: bool) -> None:
    if available("onednn.linear", from_torch(dtype), "cpu") is not None:
        pytest.skip("this CPU has no such arithmetic")
    check("onednn.linear", operands(dtype, batch, bias), {"activation": activation})


@needs_onednn
@pytest.mark.parametrize(("batch", "bias"), [((5,), True), ((2, 3), False)])
def test_onednn_linear_add(batch: tuple[int, ...], bias: bool) -> None:
    tensors = [*operands(batch=batch, bias=bias), torch.randn(*batch, 7)]
    before = tensors[-1].clone()
    check("onednn.linear_add", tensors, {})
    assert torch.equal(tensors[-1], before)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("batch", "bias"), [((5,), True), ((2, 3), False), ((0,), True)])
def test_linear_of_tiles(activation: str, batch: tuple[int, ...], bias: bool) -> None:
    """More of it in test_linear.py."""
    if (reason := available("interfuse.linear", "f32", "cpu")) is not None:
        pytest.skip(reason)
    check("interfuse.linear", operands(batch=batch, bias=bias), {"activation": activation})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_aten_linear(dtype: torch.dtype) -> None:
    check("aten.linear", operands(dtype, (2, 3)), {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(dtype: torch.dtype) -> None:
    """More of it in test_attention.py."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, 16, 3, n).to(dtype).permute(0, 2, 3, 1) for n in (5, 7, 7)]
    attrs = {"scale": 0.25, "causal": False}
    got = PROVIDERS["interfuse.attention"].run(tensors, attrs)
    allowed = 1e-5 if dtype == torch.float32 else 2e-2
    want = meaning("interfuse.attention", tensors, attrs)  # type: ignore[arg-type]
    np.testing.assert_allclose(got.double().numpy(), want, rtol=allowed, atol=allowed)


@needs_onednn
@pytest.mark.parametrize("name", ["onednn.linear", "onednn.linear_add"])
def test_operands_that_are_not_contiguous(name: str) -> None:
    add = [torch.randn(7, 5).t()] if name == "onednn.linear_add" else []
    plain, weight = torch.randn(5, 12), torch.randn(7, 12)
    inside = torch.randn(80)[7:67].view(5, 12)
    for x in (torch.randn(12, 5).t(), torch.randn(5, 24)[:, ::2], torch.randn(1, 12).expand(5, 12), inside):
        check(name, [x, weight, torch.randn(7), *add], {})
    for w in (torch.randn(12, 7).t(), torch.randn(7, 24)[:, ::2]):
        check(name, [plain, w, torch.randn(7), *add], {})
    for bias in (torch.randn(14)[::2], torch.randn(1).expand(7)):
        check(name, [plain, weight, bias, *add], {})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["heads first", "turned", "heads inside"])
@pytest.mark.parametrize("name", ["flash.attention", "efficient.attention", "cudnn.attention"])
def test_attention_on_a_gpu(name: str, form: str, causal: bool) -> None:
    """More of it in tests/gpu/test_attention.py."""
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(2, 40, 3, 32, generator=generator).half().transpose(1, 2) for _ in range(3)]
    attrs = {"scale": 0.2, "causal": causal, "form": form}
    got = PROVIDERS[name].run([t.cuda() for t in tensors], attrs)
    assert got.is_contiguous() or (form == "heads inside" and got.transpose(1, 2).is_contiguous())
    want = meaning(name, tensors, attrs)
    np.testing.assert_allclose(got.cpu().double().numpy(), want, rtol=1e-2, atol=1e-2)


@needs_onednn
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation: str) -> None:
    x, weight = torch.randn(3, 12), torch.randn(7, 12)
    x[1, 4] = float("nan")
    got = PROVIDERS["onednn.linear"].run([x, weight], {"activation": activation})
    assert got.isnan().all(dim=1).tolist() == [False, True, False]
    assert got.isnan().sum() == 7


@needs_onednn
def test_weights_are_read_at_each_call() -> None:
    x, weight = torch.randn(3, 12), torch.randn(7, 12)
    run = PROVIDERS["onednn.linear"].run
    before = run([x, weight], {})
    weight.data.mul_(2)
    torch.testing.assert_close(run([x, weight], {}), before * 2)


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available("onednn.nothing", "f32", "cpu") == "there is no provider onednn.nothing"
    assert available("onednn.linear", "f32", "cuda:0") == "onednn.linear runs on cpu, not on cuda"
    assert available("onednn.linear", "i64", "cpu") == "onednn.linear does not take i64"
    assert available("cublaslt.linear_gelu", "f16", "cpu") == "cublaslt.linear_gelu runs on cuda, not on cpu"
    assert available("aten.linear", "f32", "cpu") is None
    if HAS_ONEDNN:
        assert available("onednn.linear", "f32", "cpu") is None
        assert probe("onednn.linear", "f32", "cpu", {"activation": "gelu"}) is None
        with torch.backends.mkldnn.flags(enabled=False):
            assert "switched off" in str(available("onednn.linear", "f32", "cpu"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "without oneDNN" in str(probe("onednn.linear", "f32", "cpu"))


def test_a_provider_that_fails_when_tried_gives_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensors: Sequence[torch.Tensor], attrs: object) -> torch.Tensor:
        raise RuntimeError("no primitive\nmore lines")

    worse = replace(PROVIDERS["aten.linear"], run=broken)
    monkeypatch.setattr(providers, "PROVIDERS", {**PROVIDERS, "aten.linear": worse})
    assert probe("aten.linear", "f32", "cpu") == "aten.linear fails here: no primitive"


def test_unknown_activations_are_named() -> None:
    nodes = [b.placeholder("x", F32, (2, 4)), b.placeholder("w", F32, (3, 4))]
    with pytest.raises(OptionError, match="no activation 'mish'; a provider knows none, gelu"):
        PROVIDERS["onednn.linear"].meaning(nodes, {"activation": "mish"})


def test_relu_costs_a_second_launch() -> None:
    launches = PROVIDERS["onednn.linear"].launches
    assert [launches({"activation": a}) for a in ("none", "gelu", "relu")] == [1, 1, 2]


TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def test_the_planner_counts_launches_as_the_providers_do() -> None:
    """plan/ may not import run/, so it says again how many kernels a routine starts."""
    for by_activation in routines.PROVIDERS.values():
        for activation, name in ((a, n) for a, names in by_activation.items() for n in names):
            assert routines.LAUNCHES.get(name, 1) == PROVIDERS[name].launches({"activation": activation})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [(64,), (2, 32)])
@pytest.mark.parametrize("name", ["cublas.linear", "cublaslt.linear_gelu", "cublaslt.linear_relu"])
def test_cublas(name: str, dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    if available(name, TYPES[dtype], "cuda") is not None:
        pytest.skip(f"{name} does not take {dtype}")
    tensors = [(torch.randn(s) / 4).to(dtype) for s in ((*batch, 64), (128, 64), (128,))]
    got = PROVIDERS[name].run([t.cuda() for t in tensors], {}).cpu()
    want = meaning(name, tensors, {})
    allowed = 1e-5 if dtype == torch.float32 else 1e-2
    np.testing.assert_allclose(got.double().numpy(), want, rtol=allowed, atol=allowed)
    tensors[0].view(-1, 64)[3, 5] = float("nan")
    got = PROVIDERS[name].run([t.cuda() for t in tensors], {}).view(-1, 128)
    assert got.isnan().any(dim=1).nonzero().flatten().tolist() == [3]
