"""Failures while a compiled model runs. In: too little memory, interrupts. Out: eager's values, or one clear error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.compiler import CAPTURING
from interfuse.driver.device import Device
from interfuse.driver.options import read
from interfuse.run import allocate, burst

pytestmark = pytest.mark.usefixtures("own_cache", "no_gradients")


def chain(x: torch.Tensor) -> torch.Tensor:
    """Two kernels in a burst, and a call that is left to the library."""
    return torch.sort(torch.softmax(torch.softmax(x * 2, 0) + x, 1), -1).values * 3


class Short:
    """Stands for an allocator: raises `error` for the first `times` calls."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error, self.times, self.asked, self.real = error, times, 0, allocate.empty_strided_cpu

    def __call__(self, *given: Any) -> torch.Tensor:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return self.real(*given)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Give memory from here to what kernels write."""
        patch.setattr(allocate, "empty_strided_cpu", self)
        patch.setattr(burst, "empty_strided_cpu", self)


@pytest.mark.parametrize("times", [1, 2, 3, 99])
def test_out_of_memory_runs_the_library_for_that_call(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(read())
    fast, x = torch.compile(chain, backend=backend), torch.randn(16, 16)
    fast(x)
    before = x.clone()
    for _ in range(2):
        with monkeypatch.context() as patch:
            Short(torch.OutOfMemoryError("none left"), times).install(patch)
            torch.testing.assert_close(fast(x), chain(x))
        assert torch.equal(x, before)
    record = backend.records[0]
    assert record.of("fallback") == []
    told = [e.subject for e in record.of("warning")]
    assert len(told) == len(set(told)) == {1: 0, 2: 1, 3: 2, 99: 3}[times]
    counting = Short(RuntimeError(), 0)
    with monkeypatch.context() as patch:
        counting.install(patch)
        torch.testing.assert_close(fast(x), chain(x))
    assert counting.asked, "kernels run again once there is memory"


def test_a_result_that_fits_nowhere_raises_torchs_error_with_one_sentence() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    x = torch.zeros(1).expand(1 << 45)
    with pytest.raises(RuntimeError, match="allocate memory"):
        f(x)
    with pytest.raises(RuntimeError, match="allocate memory") as raised:
        torch.compile(f, backend=Backend(read()))(x)
    (note,) = [n for n in raised.value.__notes__ if n.startswith("Interfuse")]
    assert "has no memory for its kernels, nor for its library calls" in note


def test_nothing_is_measured_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "is_capturing", lambda self: True)
    x = torch.randn(16, 16)
    with override(race=True):
        backend = Backend(read())
        torch.testing.assert_close(torch.compile(chain, backend=backend)(x), chain(x))
    record = backend.records[0]
    assert record.of("race") == []
    assert [e.facts["error"] for e in record.of("warning")] == [CAPTURING]


def test_an_interrupt_leaves_nothing_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(read())
    fast, x = torch.compile(chain, backend=backend), torch.randn(16, 16)
    fast(x)
    with monkeypatch.context() as patch:
        Short(KeyboardInterrupt(), 1).install(patch)
        with pytest.raises(KeyboardInterrupt):
            fast(x)
    torch.testing.assert_close(fast(x), chain(x))
    assert [e for stage in ("fallback", "warning") for e in backend.records[0].of(stage)] == []
