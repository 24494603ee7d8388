"""Sizes that change between calls, through the front doors: one compile, fused kernels, values inside the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import judge

UNBACKED = torch._dynamo.decorators.mark_unbacked
"""Marks a dimension as one whose size, 0 and 1 included, decides nothing; tracing then knows no example of it."""


pytestmark = pytest.mark.usefixtures("own_cache", "no_gradients")


def compiled(f: Callable[..., Any], dynamic: bool | None = True) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read())
    return torch.compile(f, backend=backend, dynamic=dynamic), backend


def families(backend: Backend) -> list[dict[str, str]]:
    """The chosen family of each region by name, a graph after another."""
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    return [{r.name: r.choice.family for r in c.plan.regions} for c in backend.compiled if c.plan]


def holds(
    f: Callable[..., Any], fast: Callable[..., Any], *inputs: torch.Tensor, mark: Callable[..., None] | None = None
) -> None:
    """The judge's verdict is good; `mark` is called on dimension 0 of the first argument, a copy of the judge."""

    def call(first: torch.Tensor, *others: torch.Tensor) -> Any:
        if mark is not None:
            mark(first, 0)
        return fast(first, *others)

    verdict = judge(f, inputs, call)
    assert verdict.ok, ([tuple(i.shape) for i in inputs], verdict.note)


class Feed(nn.Module):
    """A residual feed-forward layer with its norm, then the largest of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(12, 24), nn.Linear(24, 12), nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x)))).amax(-1)


def is_fused_feed(found: dict[str, str]) -> bool:
    """True where `found` has the regions of Feed, the norm fused: on some CPUs oneDNN's products need a workspace,
    more than eager holds beside so few rows, and stay with the library.
    """
    products = {found.get("linear+gelu"), found.get("linear")}
    return products <= {"provider", "library"} and found.get("add+layer_norm+amax") == "row, resident"


def test_batch_and_length_change_without_another_compile() -> None:
    model = Feed().eval()
    fast, backend = compiled(model)
    for batch, length in ((2, 16), (3, 7), (13, 11), (31, 2), (2, 127)):
        holds(model, fast, torch.randn(batch, length, 12))
    (found,) = families(backend)
    assert is_fused_feed(found) and len(found) == 3


def test_batches_of_none_and_one() -> None:
    model = Feed().eval()
    fast, backend = compiled(model)
    for batch in (3, 0, 1, 7):
        holds(model, fast, torch.randn(batch, 5, 12), mark=UNBACKED)
    assert len(backend.compiled) == 1
    assert is_fused_feed(families(backend)[0])


def test_a_marked_dimension() -> None:
    def f(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sigmoid(x + bias), torch.softmax(x, -1)

    fast, backend = compiled(f, dynamic=None)
    bias = torch.randn(9)
    for rows in (4, 5, 100):
        holds(f, fast, torch.randn(rows, 9), bias, mark=torch._dynamo.mark_dynamic)
    assert len(backend.compiled) == 1 and "library" not in families(backend)[0].values()


def test_a_size_in_the_middle_and_moved_dimensions() -> None:
    def f(x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + place
        heads = y.view(*x.shape[:2], 3, 4).transpose(1, 2)
        return torch.relu(heads), y[:, 1:] * 2

    fast, backend = compiled(f)
    for batch, length in ((2, 16), (5, 7), (3, 4)):
        holds(f, fast, torch.randn(batch, length, 12), torch.randn(length, 12))
    assert len(backend.compiled) == 1 and "library" not in families(backend)[0].values()


def test_transposed_inputs_of_a_changing_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 3, -1)

    fast, backend = compiled(f, dynamic=None)
    for rows in (4, 5, 11):
        holds(f, fast, torch.randn(8, rows).t(), mark=torch._dynamo.mark_dynamic)
    assert families(backend)[0] == {"mul+softmax": "row, resident"}


def test_rows_of_a_changing_width_are_fused() -> None:
    def f(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = x + r
        return F.layer_norm(s, (s.shape[-1],), w), torch.softmax(s, -1), s.var(-1), torch.cumsum(s, -1), s.amax(-1)

    fast, backend = compiled(f)
    for rows, cols in ((3, 40), (5, 7), (17, 1000), (2, 5000)):
        holds(f, fast, torch.randn(rows, cols), torch.randn(rows, cols), torch.randn(cols))
    assert len(backend.compiled) == 1 and "library" not in families(backend)[0].values()


def test_columns_of_a_changing_height_are_fused() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, 1), x.mean(1), torch.cumsum(x, 1)

    fast, backend = compiled(f)
    for batch, rows in ((2, 40), (3, 7), (5, 130)):
        holds(f, fast, torch.randn(batch, rows, 24))
    assert len(backend.compiled) == 1 and "library" not in families(backend)[0].values()


def test_a_length_of_which_nothing_is_known() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, 0), x.sum(0), F.layer_norm(x.t(), (x.shape[0],))

    fast, backend = compiled(f, dynamic=None)
    for rows in (0, 1, 7, 300):
        holds(f, fast, torch.randn(rows, 5), mark=UNBACKED)
    assert len(backend.compiled) == 1


def test_a_place_that_may_pass_32_bits_is_left_to_the_library_with_the_reason() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x, -1)

    fast, backend = compiled(f)
    for cols in (4, 5):
        holds(f, fast, torch.randn(3, cols))
    assert families(backend) == [{"argmax": "library"}]
    (region,) = backend.compiled[0].plan.regions  # type: ignore[union-attr]
    assert "pass 32 bits" in region.reason


def test_the_plan_adds_no_guards() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + 1, (16,))

    fast, backend = compiled(f)
    holds(f, fast, torch.randn(4, 16))
    held: list[int] = []
    for rows in (2, 1 << 10, 4097):
        holds(f, fast, torch.randn(rows, 16))
        held.append(len(backend.compiled))
    assert held == [1, 1, 1]


def test_a_race_is_run_at_the_size_of_the_example() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    with override(race=True):
        fast, backend = compiled(f, dynamic=None)
        holds(f, fast, torch.randn(6, 32), mark=torch._dynamo.mark_dynamic)
    (race,) = backend.records[0].of("race")
    assert list(race.facts["sizes"].values()) == [6] and len(race.facts["times"]) == 2
    assert race.facts["reason"].endswith(" = 6") and "measured at" in race.facts["reason"]


def test_without_an_example_size_the_prediction_stands() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    with override(race=True):
        fast, backend = compiled(f, dynamic=None)
        holds(f, fast, torch.randn(6, 32), mark=UNBACKED)
    (race,) = backend.records[0].of("race")
    assert race.facts["times"] == {} and "the example does not tell" in race.facts["reason"]


def test_training_a_growing_batch() -> None:
    model = Feed()
    fast, backend = compiled(model)
    with torch.enable_grad():
        for batch in (3, 5):
            x = torch.randn(batch, 7, 12)
            model.zero_grad()
            model(x).square().sum().backward()
            wanted = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            fast(x).square().sum().backward()
            for p, w in zip(model.parameters(), wanted, strict=True):
                torch.testing.assert_close(p.grad, w, rtol=1e-4, atol=1e-5)
    assert len(backend.compiled) == 2, "one forward and one backward graph"


def test_a_small_bert_of_any_batch_and_length() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()

    def f(ids: torch.Tensor) -> torch.Tensor:
        return model(ids).last_hidden_state

    fast, backend = compiled(f)
    for batch, length in ((2, 8), (3, 11), (5, 7)):
        ids = torch.randint(0, 50, (batch, length))
        torch.testing.assert_close(fast(ids), f(ids), rtol=1e-4, atol=1e-5)
    assert len(backend.compiled) == 1
    chosen = [r.choice.label for r in backend.compiled[0].plan.regions if "layer_norm" in r.name]  # type: ignore[union-attr]
    assert len(chosen) >= 4 and all("fused" in label for label in chosen)
