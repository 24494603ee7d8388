"""Threads. In: one compiled model, many threads. Out: each its own right results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.driver.test_backend import Block

pytestmark = pytest.mark.usefixtures("own_cache")


def at_once(work: Callable[[int], Any], threads: int) -> list[Any]:
    """What `work` gives for each thread's number; all begin together."""
    gate = threading.Barrier(threads)

    def begin(k: int) -> Any:
        gate.wait()
        return work(k)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


class Model(nn.Module):
    """A block with what follows it in a burst of kernels, and a library call."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block().eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(torch.softmax(self.block(x) * 2, 1) + x, -1)
        return torch.sort(y, -1).values


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "raced"])
def test_threads_share_one_compiled_module(warm: bool) -> None:
    model, threads = Model(), 8 if warm else 2
    backend = Backend(read(None, {"race": False}))  # threads do not see the knobs that this one overrides
    fast = torch.compile(model, backend=backend)
    inputs = [torch.randn(2, 16, 32) for _ in range(threads)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
        if warm:
            fast(inputs[0])

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                torch.testing.assert_close(fast(inputs[k]), wanted[k], rtol=1e-4, atol=1e-6)

    at_once(work, threads)
    assert [e for r in backend.records for e in r.of("fallback")] == []
    # Dynamo looks at a function again in each thread that found it uncompiled.
    assert len(backend.compiled) == 1 if warm else len(backend.compiled) <= threads


def test_threads_train_one_compiled_module() -> None:
    """Gradients by torch.autograd.grad, so that threads do not add to one another's."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    backend = Backend(read())
    fast = torch.compile(model, backend=backend)
    inputs = [torch.randn(8, 16) for _ in range(8)]

    def grads(run: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(x).square().mean(), tuple(model.parameters()))

    wanted = [grads(model, x) for x in inputs]
    grads(fast, inputs[0])

    def work(k: int) -> None:
        for _ in range(5):
            torch.testing.assert_close(grads(fast, inputs[k]), wanted[k], rtol=1e-4, atol=1e-6)

    at_once(work, 8)
    assert [e for r in backend.records for e in r.of("fallback")] == []


def test_threads_with_inputs_of_their_own_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x.transpose(1, 2) * 2, -1).transpose(1, 2) + x, -1)

    backend = Backend(read())
    fast = torch.compile(f, backend=backend, dynamic=None)
    inputs = [torch.randn(2 + k, 8, 16) for k in range(8)]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 0)

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                torch.testing.assert_close(fast(inputs[k]), f(inputs[k]))

    with torch.no_grad():
        fast(inputs[0])
    at_once(work, 8)
    assert len(backend.compiled) == 1
