"""Architectures people use, made small. In: transformers' own code, random weights. Out: the contract, kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from interfuse.driver.backend import Backend
from tests.judge import judge

transformers = pytest.importorskip("transformers")

TEXT = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


pytestmark = pytest.mark.usefixtures("own_cache")


class Outputs(nn.Module):
    """A model called by keywords that gives its first output alone."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model.eval(), names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), use_cache=False)[0]


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 60, shape)


def _llama() -> Any:
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2)
    return Outputs(transformers.LlamaModel(config), "input_ids"), (_ids(2, 7),)


def _gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=4, n_positions=16)
    return Outputs(transformers.GPT2LMHeadModel(config), "input_ids"), (_ids(2, 7),)


def _t5() -> Any:
    config = transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    return Outputs(transformers.T5Model(config), "input_ids", "decoder_input_ids"), (_ids(2, 7), _ids(2, 5))


def _mixtral() -> Any:
    config = transformers.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1)
    config._experts_implementation = "eager"  # the grouped product has no float64
    return Outputs(transformers.MixtralModel(config), "input_ids"), (_ids(2, 7),)


class Classes(nn.Module):
    """A vision transformer's scores."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {k: v for k, v in TEXT.items() if k != "vocab_size"}
        # A bias of keys changes nothing: its gradient is what rounding leaves of zero, for eager as well.
        config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=5, qkv_bias=False)
        self.model = transformers.ViTForImageClassification(config).eval()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels).logits


def _vit() -> Any:
    return Classes(), (torch.randn(2, 3, 16, 16),)


MADE = {f.__name__.strip("_"): f for f in (_llama, _gpt2, _t5, _mixtral, _vit)}


def compiled(model: nn.Module) -> tuple[Callable[..., Any], Backend]:
    backend = Backend()
    return torch.compile(model, backend=backend), backend


def fused(backend: Backend) -> int:
    """Regions that run kernels or providers; nothing fell back."""
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    return sum(r.choice.family != "library" for c in backend.compiled if c.plan for r in c.plan.regions)


@pytest.mark.parametrize("name", ["llama", "t5", "mixtral"])
def test_a_forward_pass(name: str) -> None:
    model, inputs = MADE[name]()
    fast, backend = compiled(model)
    with torch.no_grad():
        verdict = judge(model, inputs, fast)
    assert verdict.ok, verdict.note
    assert fused(backend) > 5


class Step(nn.Module):
    """What a training step gives: outputs and the gradient of every parameter. `run` stands for the model, if given."""

    def __init__(self, model: nn.Module, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.model = model
        self.__dict__["run"] = run

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        run = self.model if self.run is None else self.run
        out = run(*inputs)
        loss = out.square().mean()
        return [out, *torch.autograd.grad(loss, [p for p in self.model.parameters() if p.requires_grad])]


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_a_training_step(name: str) -> None:
    model, inputs = MADE[name]()
    fast, backend = compiled(model)
    verdict = judge(Step(model), inputs, Step(model, fast))
    assert verdict.ok, verdict.note
    assert fused(backend) > 5
    assert {e.subject for r in backend.records for e in r.of("model")} == {"forward", "backward"}
