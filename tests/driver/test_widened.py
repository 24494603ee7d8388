"""Norms in float32 inside models of 16 bits. In: layers as Llama and T5 write them. Out: nothing wide between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("own_cache")


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def layers(x: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + F.linear(norm(x, weight), matrix)
    return norm(x, weight)


def given(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randn(*s, generator=generator).to(dtype) for s in ((8, 32), (32,), (32, 32)))


def run(f: Any, **options: Any) -> tuple[Any, Backend]:
    torch._dynamo.reset()
    backend = Backend(read(None, options))
    return torch.compile(f, backend=backend, dynamic=False), backend


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_handed_on_as_they_were_rounded(dtype: torch.dtype, race: bool) -> None:
    with torch.no_grad():
        fast, backend = run(layers, race=race)
        verdict = judge(layers, given(dtype), fast)
    assert verdict.ok, verdict
    plan = backend.compiled[0].plan
    assert plan is not None
    assert not [n for r in plan.regions for n in (*r.inputs, *r.outputs) if n.dtype.name == "f32"]
    for region in plan.regions:
        shares = [c.label for c in region.candidates]
        assert any(label.startswith("fused") for label in shares) or region.name == "linear"
    refused = [e for r in backend.records for e in r.of("race") if "error" in str(e.facts.get("reason", ""))]
    assert not refused


def test_a_wide_result_stays() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + weight
        wide = x.float()
        return wide, wide.mean(-1)

    with torch.no_grad():
        fast, _ = run(f, race=False)
        x, weight, _ = given(torch.bfloat16)
        verdict = judge(f, (x, weight), fast)
        assert verdict.ok, verdict


def test_what_the_library_reads_wide_stays() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        wide = (x + weight).float()
        return torch.sort(wide, -1).values + F.linear(wide, matrix.float()).sin()

    with torch.no_grad():
        fast, _ = run(f, race=False)
        verdict = judge(f, given(torch.bfloat16), fast)
    assert verdict.ok, verdict
