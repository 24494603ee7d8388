"""Any tensor, any way to call. In: unusual operators, tensors, layers, arguments and results. Out: what eager gives."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.driver.made import calls, compiled, no_fallback, step

close = torch.testing.assert_close


pytestmark = pytest.mark.usefixtures("own_cache")


# --- Other kinds of tensors and operators


@torch.library.custom_op("interfuse_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """2 x, by NumPy."""
    return torch.from_numpy(x.numpy() * 2)


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("interfuse_tests::add_one", mutates_args=("x",))
def add_one(x: torch.Tensor) -> None:
    """x + 1, in place."""
    x.add_(1)


@torch.library.custom_op("interfuse_tests::untraceable", mutates_args=())
def untraceable(x: torch.Tensor) -> torch.Tensor:
    """3 x; what it gives is not declared."""
    return x * 3


def test_operators_of_the_users_own() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(twice(x + 1)) * 2
        add_one(y)
        return torch.softmax(y, -1)

    fast, backend = compiled(f)
    x = torch.randn(4, 8)
    close(fast(x), f(x))
    said = {c["target"].split(".")[1]: c["reason"] for c in calls(backend) if c["opaque"]}
    assert said["twice"] == "no lowering for interfuse_tests.twice.default yet"
    assert said["auto_functionalized_v2"] == "an operator that writes its operands"
    no_fallback(backend)
    fast, _ = compiled(lambda x: untraceable(x) + 1)
    with pytest.raises(RuntimeError, match="no fake impl registered"):
        fast(x)


def test_gradients_of_the_users_own() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 3 * ctx.saved_tensors[0]

    fast, backend = compiled(lambda x: Scaled.apply(torch.tanh(x)) + 1)
    x = torch.randn(4, requires_grad=True)
    fast(x).sum().backward()
    close(x.grad, 3 * torch.tanh(x) * (1 - torch.tanh(x) ** 2))
    no_fallback(backend)


def test_ragged_tensors() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    fast, backend = compiled(lambda n: torch.tanh(n) * 2)
    close(fast(ragged).values(), (torch.tanh(ragged) * 2).values())
    no_fallback(backend)
    assert [r.name for c in backend.compiled for r in c.plan.regions] == ["tanh+mul"]  # type: ignore[union-attr]


def test_sparse_and_quantised_tensors_pass() -> None:
    sparse, x = torch.randn(4, 8).relu().to_sparse(), torch.randn(8, 3)
    fast, backend = compiled(lambda s, x: torch.sparse.mm(s, torch.tanh(x)) * 2)
    close(fast(sparse, x), torch.sparse.mm(sparse, torch.tanh(x)) * 2)
    fast, backend = compiled(lambda x: (torch.tanh(x) * 2).to_sparse())
    close(fast(x).to_dense(), torch.tanh(x) * 2)
    no_fallback(backend)
    quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    fast, _ = compiled(lambda q: q.dequantize() * 2)
    close(fast(quantised), quantised.dequantize() * 2)


class Plain(torch.Tensor):
    """A subclass without behaviour of its own."""


def test_tensor_subclasses() -> None:
    def f(x: Any) -> Any:
        return torch.softmax(x * 2, -1) + 1

    fast, backend = compiled(f)
    both = TwoTensor(torch.randn(4, 8), torch.randn(4, 8))
    ours, theirs = fast(both), f(both)
    assert type(ours) is TwoTensor
    close([ours.a, ours.b], [theirs.a, theirs.b])
    assert type(fast(torch.randn(4, 8).as_subclass(Plain))) is Plain
    no_fallback(backend)


def test_recurrent_layers() -> None:
    x = torch.randn(3, 2, 6)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        for layer in (nn.LSTM(6, 5, batch_first=True), nn.GRU(6, 5)):
            fast, backend = compiled(layer)
            close(fast(x), layer(x))
            no_fallback(backend)
            assert backend.compiled


def test_convolutions_and_batch_norms_train() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    twin = copy.deepcopy(model)
    fast, backend = compiled(twin)
    for training in (True, True, False):
        x = torch.randn(4, 3, 6, 6)
        model.train(training), twin.train(training)
        for ours, theirs in zip(step(fast, twin, x), step(model, model, x), strict=True):
            close(ours, theirs, rtol=1e-4, atol=1e-4)
    no_fallback(backend)


# --- How it is called


@dataclass
class Answer:
    """A result that is no container PyTorch knows."""

    values: torch.Tensor
    count: int


def test_what_comes_out_is_what_eager_gives() -> None:
    def f(x: torch.Tensor, kept: list[Any]) -> Any:
        kept.append(x * 2)
        return Answer(torch.tanh(x) * 2, 3), x, x.t()

    fast, _ = compiled(f)
    x, kept = torch.randn(4, 8), []
    answer, same, view = fast(x, kept)
    close(answer.values, torch.tanh(x) * 2)
    assert (answer.count, len(kept)) == (3, 1)
    assert same is x
    view.zero_()
    assert not x.any()


def test_overlapping_arguments_are_written_as_eager_writes_them() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return torch.tanh(a) + b

    fast, backend = compiled(f)
    for parts in (lambda t: (t, t), lambda t: (t[:8], t[1:])):
        ours, theirs = torch.arange(9.0), torch.arange(9.0)
        close(fast(*parts(ours)), f(*parts(theirs)))
        close(ours, theirs)
    no_fallback(backend)


def test_grad_modes_and_inference_take_turns() -> None:
    model, x = nn.Linear(8, 8), torch.randn(3, 8)
    fast, backend = compiled(lambda x: torch.tanh(model(x)) * 2)
    assert fast(x).requires_grad
    with torch.no_grad():
        assert not fast(x).requires_grad
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert fast(x).requires_grad
    loss = fast(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    no_fallback(backend)


def test_transforms_around_a_compiled_function() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x) * 2).sum()

    fast, _ = compiled(f)
    x = torch.randn(3, 8)
    close(torch.func.grad(fast)(x), torch.func.grad(f)(x))
    close(torch.vmap(fast)(x), torch.vmap(f)(x))
    outer, backend = compiled(lambda x: fast(x) + torch.softmax(x, -1))
    close(outer(x), f(x) + torch.softmax(x, -1))
    assert len(backend.compiled) == 1, "a compiled function inside another is part of it"


def test_threads_share_a_compiled_function() -> None:
    fast, backend = compiled(lambda x: torch.softmax(x * 2, -1) + 1)
    given = [torch.randn(4, 8) for _ in range(4)]
    found: list[Any] = [None] * 4
    fast(given[0])

    def work(k: int) -> None:
        for _ in range(20):
            found[k] = fast(given[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for out, x in zip(found, given, strict=True):
        close(out, torch.softmax(x * 2, -1) + 1)
    assert len(backend.compiled) == 1
