"""Memory of a program's units. In: slots that share storages, large values. Out: bytes held, and what lies on pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.run import allocate, pool, units
from interfuse.run.memory import peak_bytes
from interfuse.run.units import Meter

ROWS, BYTES = 64, 64 * 1024 * 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pages of 256 KiB, so that the tests need little memory."""
    for module in (pool, allocate, units):
        monkeypatch.setattr(module, "FROM_BYTES", BYTES)
    torch._dynamo.reset()
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False), torch.no_grad():
        yield
    pool.SHARED.clear()


def test_a_meter_counts_a_storage_once_and_until_its_last_view_is_gone() -> None:
    root = frozenset((0,))
    meter = Meter({1: root, 2: root, 3: frozenset((1,))}, [100, 8])
    meter.add((1, 9))
    meter.add((1, 2, 3))
    assert meter.bytes == 108
    meter.drop((1, 9))
    assert meter.bytes == 108
    meter.drop((2,))
    meter.drop((2,))
    assert (meter.bytes, meter.peak) == (8, 108)


def test_a_meter_counts_pages_for_good_and_hands_them_out_again() -> None:
    meter = Meter({k: frozenset((k,)) for k in range(4)}, [100, 100, 100, 60], (0, 1, 3))
    meter.add((0, 2))
    meter.drop((0,))
    meter.add((1,))
    assert (meter.bytes, meter.page_bytes) == (100, 100)
    meter.add((3,))
    meter.drop((1, 2, 3))
    assert (meter.bytes, meter.peak, meter.page_bytes) == (0, 100, 160)


def between(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A large value that a kernel makes and a library call reads."""
    return torch.softmax(x * 2, -1) @ w


def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two of them, one after the other, and a large result."""
    y = torch.sort(torch.softmax(x * 2, -1), -1).values
    return torch.softmax(torch.sort(torch.softmax(y * 2, -1), -1).values + 1, -1)


@pytest.mark.parametrize(("f", "pages"), [(between, 1), (twice, 1)])
def test_large_values_between_library_calls_lie_on_pages(
    f: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], pages: int
) -> None:
    x, w = torch.randn(ROWS, 1024), torch.randn(1024, 8)
    fast = torch.compile(f, backend=Backend(read()))
    pool.SHARED.clear()
    for sign in (1, -1):
        torch.testing.assert_close(fast(sign * x, w), f(sign * x, w))
    assert pool.SHARED.idle_bytes == pages * BYTES
    assert peak_bytes(lambda: fast(x, w)) <= peak_bytes(lambda: f(x, w))


def test_a_page_that_would_raise_the_peak_is_not_kept() -> None:
    """The second value is wider than the first: its page would wait while the sort takes the most memory."""

    def f(x: torch.Tensor) -> torch.Tensor:
        small = torch.sort(x, -1).values[:, :8].contiguous()
        return torch.softmax(small.repeat(1, 128) * 2, -1).sum(0)[:8] + torch.softmax(small, -1).sum(0)

    x = torch.randn(ROWS, 1024)
    fast = torch.compile(f, backend=Backend(read()))
    torch.testing.assert_close(fast(x), f(x))
    assert peak_bytes(lambda: fast(x)) <= peak_bytes(lambda: f(x))


def test_the_knob_turns_pages_off() -> None:
    x, w = torch.randn(ROWS, 1024), torch.randn(1024, 8)
    with override(pool_mib=0):
        pool.SHARED.clear()
        fast = torch.compile(between, backend=Backend(read()))
        torch.testing.assert_close(fast(x, w), between(x, w))
    assert pool.SHARED.idle_bytes == 0
