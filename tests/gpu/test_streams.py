"""The runtime on a GPU: streams, devices, graph capture, threads, memory. In: compiled models. Out: eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.driver.test_backend import Block, no_fallback
from tests.driver.test_threads import at_once

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted"),
]

LONG = 200_000_000
"""Clock cycles of a wait on the device: a tenth of a second, longer than the host takes to launch a model."""


def compiled(f: Callable[..., Any]) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read(None, {"race": False}))
    return torch.compile(f, backend=backend), backend


def model(device: str = "cuda") -> nn.Module:
    return Block(64, 4).eval().to(device)


def inputs(count: int = 1, device: str = "cuda") -> list[torch.Tensor]:
    return [torch.randn(2, 64, 64, device=device) for _ in range(count)]


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_launches_follow_the_current_stream() -> None:
    """The input is written on a stream that is busy: whoever reads it elsewhere, or too early, reads zeros."""
    block, (x,) = model(), inputs()
    fast, backend = compiled(block)
    with torch.no_grad():
        fast(x)
        wanted, late = block(x), torch.zeros_like(x)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            late.copy_(x)
            got = fast(late)
            event = stream.record_event()
        assert not event.query(), "the host did not wait for the device"
        stream.synchronize()
    close(got, wanted)
    no_fallback(backend)


def test_threads_with_streams_of_their_own() -> None:
    block = model()
    fast, backend = compiled(block)
    xs = inputs(4)
    with torch.no_grad():
        wanted = [block(x) for x in xs]
        fast(xs[0])
    torch.cuda.synchronize()

    def work(k: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(10):
                got = fast(xs[k])
                stream.synchronize()
                close(got, wanted[k])

    at_once(work, 4)
    no_fallback(backend)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_on_a_device_that_is_not_the_current_one() -> None:
    block, (x,) = model("cuda:1"), inputs(1, "cuda:1")
    fast, backend = compiled(block)
    with torch.no_grad():
        assert torch.cuda.current_device() == 0
        got = fast(x)
        assert got.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
        close(got, block(x))
    no_fallback(backend)


def test_the_users_own_graph_capture() -> None:
    """In the capture's default mode whatever waits for the device, in any thread, is an error."""
    block, (x, other) = model(), inputs(2)
    fast, backend = compiled(block)
    static = x.clone()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                fast(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fast(static)
        for value in (other, x):
            static.copy_(value)
            graph.replay()
            close(out, block(value))
    no_fallback(backend)


def test_sizes_that_are_and_are_not_multiples_of_16() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + mask) * 2

    fast, backend = compiled(f)
    for length in (16, 17, 32, 31, 48):
        x, mask = (torch.randn(*s, length, length, device="cuda").half() for s in ((2, 3), ()))
        for tensor in (x, mask):
            torch._dynamo.mark_dynamic(tensor, tensor.dim() - 1)
            torch._dynamo.mark_dynamic(tensor, tensor.dim() - 2)
        torch.testing.assert_close(fast(x, mask), f(x, mask))
    assert len(backend.compiled) == 1
    no_fallback(backend)


def test_a_training_step_and_inference_mode() -> None:
    block, (x,) = Block(64, 4).cuda(), inputs()
    block.drop.p = 0.0
    fast, backend = compiled(block)

    def grads(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(x).square().mean(), tuple(block.parameters()))

    torch.testing.assert_close(grads(fast), grads(block), rtol=1e-3, atol=1e-5)
    block.eval()
    with torch.inference_mode():
        close(fast(x), block(x))
    no_fallback(backend)


def test_out_of_memory_is_torchs_error_with_one_sentence() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    fast, _ = compiled(f)
    x = torch.ones(1, device="cuda").expand(1 << 40)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fast(x)
    (note,) = [n for n in raised.value.__notes__ if n.startswith("Interfuse")]
    assert "has no memory for its kernels" in note
    small = torch.randn(64, device="cuda")
    torch.testing.assert_close(fast(small), f(small))
