"""Unsupported parts are listed. In: a model of calls that no kernel holds. Out: the ledger names each, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import interfuse
from interfuse.base.knobs import override


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    settings = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with settings, override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False):
        yield


def several(x: torch.Tensor, image: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Something of every sort that stays a library call, with what can be fused around it."""
    values, _ = torch.topk(torch.tanh(x) * 2, 3)
    chosen = torch.masked_select(x, x > 0) * 2
    either = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
    spectrum = torch.fft.rfft(x).abs()
    return values, chosen, either, spectrum, F.dropout(x, 0.5), F.conv2d(image, kernel), x.to(torch.complex64) * 2


REASONS = {
    "aten.topk.default": "no lowering for aten.topk.default yet",
    "aten.masked_select.default": "data-dependent size",
    "higher_order.cond": "a call that runs a graph of its own",
    "aten._fft_r2c.default": "no kernels for complex numbers",
    "aten.native_dropout.default": "random",
    "aten.convolution.default": "a convolution runs as a library kernel",
}


def test_explain_lists_what_is_not_fused_and_why() -> None:
    x, image, kernel = torch.randn(4, 8), torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    account = interfuse.explain(several, (x, image, kernel), measure=False)
    listed = {target: unfused.reason for unfused in account.unfused for target, _ in unfused.targets}
    assert REASONS.items() <= listed.items()
    assert all(reason.strip() for reason in listed.values())
    printed = " ".join(str(account).split())
    for target, reason in REASONS.items():
        assert target in printed
        assert f"({reason})" in printed
    assert any(r.choice.family != "library" for r in account.regions), "what is around them is fused"
    assert account.fallbacks == ()


def test_every_region_says_why_it_runs_as_it_does() -> None:
    x, image, kernel = torch.randn(4, 8), torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    account = interfuse.explain(several, (x, image, kernel), measure=False, fuse=False)
    assert {r.choice.family for r in account.regions} == {"library"}
    assert all(r.reason for r in account.regions)


def test_without_a_compiler_the_ledger_says_what_to_install() -> None:
    with override(cxx="no-such-compiler"):
        account = interfuse.explain(
            several, (torch.randn(4, 8), torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3)), measure=False
        )
    (said,) = account.warnings
    assert "no-such-compiler" in said
    assert "apt-get install g++" in said
    assert f"warning: {said}" in " ".join(str(account).split())
    reasons = [r.reason for r in account.regions]
    assert said.rstrip(".") in reasons and not any("for this device" in r for r in reasons)
