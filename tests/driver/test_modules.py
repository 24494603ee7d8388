"""A compiled module is the module. In: modules trained, copied, changed, called in other ways. Out: eager's results."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import interfuse
from tests.driver.made import calls, compiled, no_fallback, step
from tests.judge import judge

close = torch.testing.assert_close


pytestmark = pytest.mark.usefixtures("own_cache")


class Net(nn.Module):
    """A layer, a norm with a buffer, a dropout; and a weight that is tied to the layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 8, bias=False),
        )
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.last(self.drop(F.gelu(self.norm(self.first(x))))) * 2, -1)


# --- Copies


def _by_pickle(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


def _by_file(module: Any) -> Any:
    kept = io.BytesIO()
    torch.save(module, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("copied", [copy.deepcopy, _by_pickle, _by_file], ids=["deepcopy", "pickle", "save"])
def test_copies_of_a_compiled_module(copied: Callable[[Any], Any], called: bool) -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    fast = interfuse.compile(model, off="gelu", race=False)
    with torch.no_grad():
        if called:
            fast(x)
        twin = copied(fast)
        assert type(twin) is type(fast)
        assert list(twin.state_dict()) == [f"_orig_mod.{name}" for name in model.state_dict()]
        assert twin.last.weight is twin.first.weight is not model.first.weight
        close(twin(x), model(x))
        twin.first.weight.zero_()
        close(fast(x), model(x))
        assert not torch.equal(twin(x), fast(x))


def test_a_module_compiled_in_place() -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    names, plain = list(model.state_dict()), copy.deepcopy(model)
    model.compile(backend="interfuse")
    with torch.no_grad():
        for it in (model, copy.deepcopy(model), _by_pickle(model)):
            close(it(x), plain(x))
    assert list(model.state_dict()) == names


# --- Training


def test_training_and_evaluation_take_turns() -> None:
    model, x = Net(), torch.randn(6, 8)
    twin = copy.deepcopy(model)
    fast, backend = compiled(twin)
    for training in (True, False, True):
        model.train(training), twin.train(training)
        for ours, theirs in zip(step(fast, twin, x), step(model, model, x), strict=True):
            close(ours, theirs, rtol=1e-4, atol=1e-5)
    no_fallback(backend)
    assert len(backend.compiled) == 4, "a forward and a backward graph a mode"


def test_weights_change_betweencalls() -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    fast, backend = compiled(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        step(fast, model, x)
        optimiser.step()
        close(fast(x), model(x))
    with torch.no_grad():
        model.first.weight.mul_(2)
        close(fast(x), model(x))
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
        close(fast(x), model(x))
        model.last.weight = nn.Parameter(torch.randn(8, 8))
        close(fast(x), model(x))
    no_fallback(backend)


def test_a_parameter_is_written_in_forward() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.scale.mul_(0.9).clamp_(min=0.1)
                self.calls += 1
            return x * self.scale

    model, x = Counted(), torch.randn(3, 8)
    twin = copy.deepcopy(model)
    fast, backend = compiled(twin)
    for _ in range(3):
        for ours, theirs in zip(step(fast, twin, x), step(model, model, x), strict=True):
            close(ours, theirs)
    close(twin.state_dict(), model.state_dict())
    no_fallback(backend)


def test_a_module_changes_its_type() -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    fast, backend = compiled(model)
    with torch.no_grad():
        for kind in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
            model.to(kind)
            assert (verdict := judge(model, (x.to(kind),), fast)).ok, verdict.note
    assert len(backend.compiled) == 3
    no_fallback(backend)


def test_hooks_run() -> None:
    def scaled(run: Callable[..., Any], model: nn.Module) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
        seen: list[torch.Tensor] = []
        x.register_hook(seen.append)
        return [*step(run, model, x), *seen]

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    model.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    model[0].weight.register_hook(lambda grad: grad * 3)
    fast, backend = compiled(model)
    ours, theirs = scaled(fast, model), scaled(model, model)
    close(ours, theirs)
    assert len(ours) == 4
    no_fallback(backend)


@pytest.mark.parametrize("norm", [nn.LayerNorm(16), nn.GroupNorm(4, 16)], ids=["layer_norm", "group_norm"])
def test_training_under_autocast(norm: nn.Module) -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), norm, nn.Linear(16, 4)), torch.randn(3, 8)
    fast, backend = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for ours, theirs in zip(step(fast, model, x), step(model, model, x), strict=True):
            assert ours.dtype == theirs.dtype
            close(ours, theirs, rtol=0.05, atol=0.05)
    close(fast(x), model(x))
    no_fallback(backend)


def test_checkpointed_activations_with_dropout() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def inner(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(self.down(F.gelu(self.up(x))), 0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(checkpoint(self.inner, x, use_reentrant=False)) + x

    model, x = Checkpointed(), torch.randn(4, 8)
    fast, backend = compiled(model)
    for ours, theirs in zip(step(fast, model, x), step(model, model, x), strict=True):
        close(ours, theirs)
    no_fallback(backend)
    assert len(backend.compiled) == 2


def test_a_gradient_of_a_gradient_is_refused_in_one_sentence() -> None:
    fast, _ = compiled(lambda x: torch.tanh(x).square().sum())
    x = torch.randn(4, requires_grad=True)
    (slope,) = torch.autograd.grad(fast(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        slope.sum().backward()


# --- Random numbers


def test_dropout() -> None:
    fast, backend = compiled(lambda x: F.dropout(x, 0.3) * 2)
    x = torch.ones(100_000)
    torch.manual_seed(5)
    first, second = fast(x), fast(x)
    torch.manual_seed(5)
    assert torch.equal(fast(x), first)
    torch.manual_seed(5)
    assert torch.equal(F.dropout(x, 0.3) * 2, first), "eager draws the same numbers"
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean() - 0.3) < 0.01
    assert abs(first.mean() - 2) < 0.02
    no_fallback(backend)


def test_every_random_call_draws_what_eager_draws() -> None:
    def f(x: torch.Tensor) -> Any:
        made = torch.rand(4, 8) + x, torch.randint(0, 9, (4,)), torch.randn_like(x) * 2, torch.randperm(5)
        chance = torch.bernoulli(torch.full((4,), 0.5)), torch.multinomial(torch.ones(5), 3), torch.normal(x, 1.0)
        filled = torch.empty(4).normal_(), (x + 1).uniform_(), torch.empty(3).exponential_()
        return *made, *chance, *filled, torch.rand(4, 8) + (x + 1).sum(), F.rrelu(x, training=True)

    fast, backend = compiled(f)
    x = torch.randn(4, 8)
    torch.manual_seed(2)
    ours, state = fast(x), torch.get_rng_state()
    torch.manual_seed(2)
    close(ours, f(x))
    assert torch.equal(torch.get_rng_state(), state)
    no_fallback(backend)


# --- Sizes


def test_a_batch_that_grows_is_compiled_twice() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    fast, backend = compiled(model)
    for batch in (2, 3, 4, 5, 9):
        x = torch.randn(batch, 8)
        for ours, theirs in zip(step(fast, model, x), step(model, model, x), strict=True):
            close(ours, theirs, rtol=1e-4, atol=1e-4)  # the squares of a norm hardly change
    assert len(backend.compiled) == 4, "two forward and two backward graphs"
    no_fallback(backend)


def test_numbers_as_arguments() -> None:
    def f(x: torch.Tensor, scale: float, count: int) -> Any:
        return torch.tanh(x[:, :count] * scale) + count, x.shape[0] * count, count * 0.5

    fast, backend = compiled(f)
    for scale, count in ((0.5, 2), (float("inf"), 3), (0.0, 4), (-2.5, 5)):
        x = torch.randn(3, 8)
        close(fast(x, scale, count), f(x, scale, count), equal_nan=True)
    assert len(backend.compiled) <= 3
    no_fallback(backend)


def test_sizes_that_depend_on_values_inside_a_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        chosen = torch.masked_select(x, x > 0) * 2
        count = x.sum().long().clamp(1, 3).item()
        torch._check(count >= 1)
        torch._check(count <= 4)
        return torch.nonzero(x > 0) + 1, torch.tanh(chosen) * 3, chosen.sum(), x[:count] * x.mean().item()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        fast, backend = compiled(f, fullgraph=True)
        for x in (torch.randn(4, 8), torch.randn(4, 8), -torch.ones(4, 8)):
            close(fast(x), f(x))
    assert len(backend.compiled) == 1
    assert any("data-dependent size" in c["reason"] for c in calls(backend))
    no_fallback(backend)
