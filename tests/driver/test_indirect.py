"""Indirect loads through the front doors: embeddings, picks and label losses fuse, and bad indices raise as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("own_cache")


def compiled(f: Callable[..., Any], dynamic: bool | None = None) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read())
    return torch.compile(f, backend=backend, dynamic=dynamic), backend


def families(backend: Backend) -> list[str]:
    """The family of each region of every graph."""
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    return [r.choice.family for c in backend.compiled if c.plan for r in c.plan.regions]


def holds(f: Callable[..., Any], fast: Callable[..., Any], *inputs: torch.Tensor) -> None:
    verdict = judge(f, inputs, fast)
    assert verdict.ok, verdict.note


class Embeddings(nn.Module):
    """What a BERT begins with: three tables, positions from a buffer, one norm."""

    def __init__(self, words: int = 50, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places, self.kinds = nn.Embedding(16, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("order", torch.arange(16)[None])

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        place = self.places(self.order[:, : ids.shape[1]])
        return self.norm(self.words(ids) + self.kinds(kinds) + place)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_embeddings_and_their_norm_are_one_kernel(dtype: torch.dtype) -> None:
    model = Embeddings().to(dtype).eval()
    fast, backend = compiled(model)
    with torch.no_grad():
        holds(model, fast, torch.randint(0, 50, (2, 9)), torch.randint(0, 2, (2, 9)))
    assert families(backend) == ["row, resident"]


def test_the_embeddings_of_a_bert_are_one_kernel() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=32
    )
    model = transformers.BertModel(config).embeddings.eval()
    fast, backend = compiled(model)
    with torch.no_grad():
        holds(model, fast, torch.randint(0, 60, (2, 9)))
    assert families(backend) == ["row, resident"]


def test_a_batch_of_another_size_runs_the_same_kernel() -> None:
    model = Embeddings().eval()
    fast, backend = compiled(model, dynamic=True)
    with torch.no_grad():
        for batch, length in ((2, 9), (5, 16), (3, 2)):
            holds(model, fast, torch.randint(0, 50, (batch, length)), torch.randint(0, 2, (batch, length)))
    assert families(backend) == ["row, resident"]


@pytest.mark.parametrize("place", (50, -1, 1 << 40))
def test_an_index_outside_raises_what_eager_does(place: int) -> None:
    model = Embeddings().eval()
    fast, backend = compiled(model)
    ids, kinds = torch.randint(0, 50, (2, 9)), torch.randint(0, 2, (2, 9))
    bad = ids.clone()
    bad[1, 8] = place
    with torch.no_grad():
        for f in (model, fast):
            with pytest.raises(IndexError, match="index out of range in self"):
                f(bad, kinds)
        holds(model, fast, ids, kinds)
    assert families(backend) == ["row, resident"], "bad data do not make the region a library call"
    assert not any(e for r in backend.records for e in r.of("fallback"))


def picks(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One way of reading through an index after another, with something to fuse before or after each."""
    low = at.clamp(max=2)
    return (
        torch.index_select(x, 1, at.flatten()) * 2,
        x[at].tanh(),
        x[at, low] + 1,
        x[:, low].abs(),
        x.gather(0, at[:, None].expand(-1, x.shape[1])).exp(),
        torch.take_along_dim(x, at[:, None], 0).neg(),
        torch.take(x, at) - 1,
        F.embedding(at, x).sum(-1),
    )


@pytest.mark.parametrize(
    ("shape", "at"),
    (
        ((7, 7), [0, 6, 3, 3]),
        ((7, 7), [2]),
        ((7, 7), []),
        ((3, 3), [1] * 33),
    ),
)
def test_every_way_to_pick(shape: tuple[int, int], at: list[int]) -> None:
    x = torch.randn(shape)
    for index in (torch.tensor(at, dtype=torch.int64), torch.tensor(at, dtype=torch.int32)):
        f = picks if index.dtype is torch.int64 else lambda x, at: (F.embedding(at, x) + 1, x[at] * 2)
        for source in (x, x.t(), torch.randn(14, 14)[::2, ::2][: shape[0], : shape[1]]):
            torch._dynamo.reset()
            fast, backend = compiled(f)
            holds(f, fast, source, index)
            assert at == [] or "library" not in families(backend)


def test_negative_indices_wrap_where_eager_wraps_them() -> None:
    x, at = torch.randn(5, 20), torch.tensor([-1, 0, -5, 4])
    fast, backend = compiled(lambda x, at: x[at] * 2)
    holds(lambda x, at: x[at] * 2, fast, x, at)
    assert families(backend) == ["map"]
    with pytest.raises(IndexError, match="out of"):
        fast(x, at - 1)


def test_indices_of_no_dimensions() -> None:
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x, 0, at) + F.embedding(at, x)

    fast, backend = compiled(f)
    holds(f, fast, torch.randn(5, 20), torch.tensor(3))
    assert set(families(backend)) == {"map"}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
@pytest.mark.parametrize("weighted", (False, True))
def test_cross_entropy(reduction: str, weighted: bool, dtype: torch.dtype) -> None:
    x, target = torch.randn(12, 37).to(dtype), torch.randint(0, 37, (12,))
    target[3] = target[7] = -100
    weight = (torch.rand(37).to(dtype),) if weighted else ()

    def f(x: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, *weight, reduction=reduction)

    fast, backend = compiled(f)
    holds(f, fast, x, target, *weight)
    assert len(families(backend)) == 1, "rows and their total are one region"
    regions = [r for c in backend.compiled if c.plan for r in c.plan.regions]
    assert all({c.family for c in r.candidates} > {"library"} for r in regions), "which one wins is the race's to say"
    target[5] = 37
    with pytest.raises(IndexError, match="Target 37 is out of bounds"):
        fast(x, target, *weight)


def test_the_gradient_of_cross_entropy_is_one_kernel() -> None:
    x, target = torch.randn(12, 37, requires_grad=True), torch.randint(0, 37, (12,))
    target[3] = -100

    def f(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(F.cross_entropy(x, target), x)
        return grad

    wanted = f(x.double().detach().requires_grad_(), target)
    fast, backend = compiled(lambda x, target: F.cross_entropy(x, target))
    fast(x, target).backward()
    torch.testing.assert_close(x.grad, wanted.float(), rtol=1e-5, atol=1e-8)
    assert families(backend)[-1] == "row, resident" and len(families(backend)) == 2
