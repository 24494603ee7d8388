"""Peak memory. In: functions whose peak is known by counting. Out: that count."""

from __future__ import annotations

import torch

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
