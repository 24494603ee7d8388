"""The front doors against eager: any model runs, values stay inside the contract, what is not fused has a reason."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import interfuse
from interfuse.base.errors import BuildError, OptionError
from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.report.ledger import ledger
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("own_cache")


def compiled(f: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read(None, options))
    return torch.compile(f, backend=backend), backend


def reasons(backend: Backend) -> list[str]:
    return [e.facts["reason"] for r in backend.records for e in r.of("region")]


def fused(backend: Backend) -> list[str]:
    """The names of the regions that run a generated kernel or a provider."""
    return [r.name for c in backend.compiled if c.plan for r in c.plan.regions if r.choice.family != "library"]


def no_fallback(backend: Backend) -> None:
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []


class Block(nn.Module):
    """A transformer block: attention, two residual norms, a GELU network."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.drop, self.heads = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
            heads,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, w)
        x = self.norm1(x + self.drop(self.out(a)))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


def test_a_graph_may_be_kept_for_a_second_backward() -> None:
    layers = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8), nn.BatchNorm1d(8))
    fast, backend = compiled(layers)
    fast(torch.randn(4, 8)).sum().backward()
    layers.zero_grad()
    loss = fast(torch.randn(4, 8)).pow(2).sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in layers.parameters()]
    loss.backward()
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(layers.parameters(), once, strict=True))
    no_fallback(backend)


def test_a_block_is_fused_and_right() -> None:
    block = Block().eval()
    with torch.no_grad():
        fast, backend = compiled(block)
        verdict = judge(block, (torch.randn(2, 16, 32),), fast)
    assert verdict.ok, verdict.note
    no_fallback(backend)
    assert fused(backend).count("add+layer_norm") == 2


def test_every_call_through_the_library_gives_eagers_bits() -> None:
    block, x = Block().eval(), torch.randn(2, 16, 32)
    with torch.no_grad():
        fast, backend = compiled(block, fuse=False)
        assert torch.equal(fast(x), block(x))
    no_fallback(backend)
    assert fused(backend) == []


def test_training_gives_eagers_gradients() -> None:
    block, x = Block(), torch.randn(2, 16, 32)
    block.drop.p = 0.0
    twin = copy.deepcopy(block)
    fast, backend = compiled(twin)
    for model, run in ((block, block), (twin, fast)):
        run(x).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
    for (name, a), b in zip(block.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6, msg=name)
    no_fallback(backend)
    assert {c.record.of("model")[0].subject for c in backend.compiled} == {"forward", "backward"}


def test_a_training_step_with_an_optimiser() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    twin = copy.deepcopy(model)
    fast, _ = compiled(twin)
    for m, run in ((model, model), (twin, fast)):
        optimiser = torch.optim.SGD(m.parameters(), lr=0.1)
        for step in range(3):
            optimiser.zero_grad()
            run(torch.full((4, 8), 0.1 * step + 0.1)).sum().backward()
            optimiser.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_an_unsupported_operator_has_a_reason_and_the_rest_is_fused() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(torch.tanh(x) * 2 + 1, 3)
        return torch.softmax(values * 0.5, -1), places

    x = torch.randn(5, 33)
    fast, backend = compiled(f)
    torch.testing.assert_close(fast(x)[0], f(x)[0])
    assert torch.equal(fast(x)[1], f(x)[1])
    no_fallback(backend)
    assert any("topk" in r for r in reasons(backend))
    assert len(fused(backend)) == 2


def test_a_graph_break_keeps_the_values() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return torch.softmax(y * 2, -1)

    x = torch.randn(4, 20)
    fast, backend = compiled(f)
    torch.testing.assert_close(fast(x), f(x))
    assert len(backend.compiled) == 2
    no_fallback(backend)


def test_in_place_updates_of_inputs_and_buffers() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            self.seen.add_(x.sum(0))
            return torch.exp(x) * self.seen

    eager, twin = Counter(), Counter()
    fast, backend = compiled(twin)
    for _ in range(2):
        a, b = torch.ones(3, 4), torch.ones(3, 4)
        torch.testing.assert_close(fast(b), eager(a))
        assert torch.equal(a, b)
    assert torch.equal(eager.seen, twin.seen)
    no_fallback(backend)


def test_running_statistics_in_a_narrow_type() -> None:
    x = torch.randn(4, 3, 5).bfloat16()
    eager, twin = nn.BatchNorm1d(3).bfloat16(), nn.BatchNorm1d(3).bfloat16()
    fast, backend = compiled(twin)
    torch.testing.assert_close(fast(x), eager(x))
    # One rounding to bfloat16 may go the other way: eager sums in another order.
    torch.testing.assert_close(twin.running_mean, eager.running_mean, rtol=2**-7, atol=0)
    torch.testing.assert_close(twin.running_var, eager.running_var, rtol=2**-7, atol=0)
    no_fallback(backend)


def test_dropout_draws_a_new_mask_each_time() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(x, 0.5), F.dropout(x, 0.5)

    x = torch.ones(10_000)
    fast, backend = compiled(f)
    a, b = fast(x)
    assert not torch.equal(a, b)
    assert not torch.equal(a, fast(x)[0])
    assert abs(a.mean().item() - 1) < 0.05
    assert set(a.unique().tolist()) == {0.0, 2.0}
    no_fallback(backend)


def test_equal_outputs_are_different_tensors() -> None:
    fast, _ = compiled(lambda x: (x + 1, x + 1, (x + 1).view(-1)))
    a, b, c = fast(torch.zeros(2, 2))
    a.fill_(7)
    assert b.sum() == 4
    assert c.sum() == 4


def test_a_growing_batch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1) + x.sum(-1, keepdim=True)

    fast, backend = compiled(f)
    for batch in (2, 3, 5, 8):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(fast(x), f(x))
    no_fallback(backend)
    assert len(backend.compiled) == 2
    assert [[r.choice.family for r in c.plan.regions] for c in backend.compiled if c.plan] == [["row, resident"]] * 2


def test_a_size_that_depends_on_data() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    x = torch.randn(50)
    fast, _ = compiled(f)
    torch.testing.assert_close(fast(x), f(x))


def test_inference_mode_deepcopy_and_state_dict() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    fast = interfuse.compile(model)
    x = torch.randn(3, 6)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x))
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), model(x))
        next(model.parameters()).mul_(2)
        torch.testing.assert_close(fast(x), model(x))
    assert list(fast.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    pickle.loads(pickle.dumps(model))


def test_weights_are_live_after_a_data_swap() -> None:
    model, x = nn.Linear(6, 6), torch.randn(3, 6)
    fast = interfuse.compile(model)
    with torch.no_grad():
        fast(x)
        model.weight.data = torch.randn(6, 6)
        torch.testing.assert_close(fast(x), model(x))


def test_the_backend_is_found_by_name() -> None:
    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(torch.sin, backend="interfuse")(x), torch.sin(x))


def test_the_kill_switch() -> None:
    fast, backend = compiled(lambda x: torch.tanh(x) + 1)
    with override(disable=True):
        fast(torch.zeros(3))
    assert backend.compiled == []


def test_a_region_switched_off_by_name() -> None:
    block = Block().eval()
    with torch.no_grad():
        fast, backend = compiled(block, off="layer_norm")
        fast(torch.randn(2, 16, 32))
    assert "add+layer_norm" not in fused(backend)
    assert "switched off by name" in reasons(backend)


def test_racing_keeps_values_and_says_what_it_measured() -> None:
    block = Block().eval()
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        fast, backend = compiled(block, race=True)
        torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-5)
    races = [e for r in backend.records for e in r.of("race")]
    assert races
    assert all(e.facts["reason"] for e in races)
    no_fallback(backend)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fusion": True}, "there is no option 'fusion'"),
        ({"fuse": "yes"}, "must be bool"),
        ({"race_seconds": "long"}, "must be int or float"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        interfuse.compile(nn.Identity(), **options)


def test_bad_modes_and_models_are_named() -> None:
    with pytest.raises(OptionError, match="no mode 'fastest'"):
        interfuse.compile(nn.Identity(), mode="fastest")
    with pytest.raises(OptionError, match="takes a model or a function"):
        interfuse.compile(3)  # type: ignore[arg-type]


def test_without_a_compiler_the_library_runs_and_the_record_says_why() -> None:
    with override(cxx="no-such-compiler"):
        fast, backend = compiled(lambda x: torch.tanh(x) + 1)
        x = torch.randn(5)
        torch.testing.assert_close(fast(x), torch.tanh(x) + 1)
    assert fused(backend) == []
    assert any("no-such-compiler" in str(e.facts) for r in backend.records for e in r.of("warning"))
    no_fallback(backend)


def test_a_kernel_that_does_not_build_leaves_the_library_and_a_true_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise BuildError("no kernel today.")

    monkeypatch.setattr("interfuse.build.cpp.build", fail)
    fast, backend = compiled(lambda x: torch.tanh(x) + 1)
    x = torch.randn(5)
    torch.testing.assert_close(fast(x), torch.tanh(x) + 1)
    (region,) = ledger(backend.records).regions
    assert region.choice.family == "library"
    assert "no kernel today" in region.reason
    assert fused(backend) == []


def test_a_planner_that_fails_leaves_a_ledger_of_library_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("lost the plot")

    monkeypatch.setattr("interfuse.driver.compiler.plan", fail)
    fast, backend = compiled(lambda x: torch.tanh(x) + 1)
    torch.testing.assert_close(fast(torch.ones(3)), torch.tanh(torch.ones(3)) + 1)
    account = ledger(backend.records)
    assert "lost the plot" in account.fallbacks[0]
    assert [r.name for r in account.regions] == ["tanh", "add"]


@pytest.mark.parametrize(("level", "words"), [(0, ""), (1, "plan: "), (2, "drop_rounds: "), (3, "for col:")])
def test_debug_says_what_the_stages_did(level: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with override(debug=level):
        fast, _ = compiled(lambda x: torch.softmax(x, -1))
        fast(torch.randn(4, 40))
    said = capsys.readouterr().err
    assert words in said
    assert bool(said) == (level > 0)
