"""Peak memory. In: functions whose peak is known by counting. Out: that count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.profiler import ProfilerActivity, profile

from interfuse.run.memory import peak_bytes


def test_two_buffers_live_at_once() -> None:
    x = torch.randn(256, 64)

    def three() -> torch.Tensor:
        y = x + x
        z = y * y
        del y
        return z - x

    assert peak_bytes(three) == 2 * x.nbytes
    assert peak_bytes(lambda: x.view(-1)) == 0


def test_what_a_first_call_keeps_does_not_count() -> None:
    kept: list[torch.Tensor] = []

    def caching() -> torch.Tensor:
        if not kept:
            kept.append(torch.zeros(1 << 16))
        return torch.empty(16)

    assert peak_bytes(caching) == 64


def test_another_threads_profiler_is_left_alone() -> None:
    x = torch.randn(64)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(peak_bytes, lambda: x + x).result() == x.nbytes
        torch.neg(x)
    assert "aten::neg" in [e.name for e in seen.events()]
