"""Bursts of kernels. In: functions that one kernel cannot hold. Out: one C call, eager's values, no more memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.run import burst
from interfuse.run.memory import peak_bytes
from interfuse.run.program import Program


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False), torch.no_grad():
        yield


def compiled(f: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read())
    return torch.compile(f, backend=backend, **options), backend


def program_of(backend: Backend) -> Program:
    (made,) = backend.compiled
    return made.run.__self__  # type: ignore[attr-defined, no-any-return]


def chain(x: torch.Tensor, length: int = 6) -> torch.Tensor:
    """Softmax along one axis, then the other: a kernel each."""
    for k in range(length):
        x = torch.softmax(x * 2, k % 2)
    return x


def forked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values of several sizes and types, some of them results, some read late."""
    a = torch.softmax(x * 2, 0)
    b = torch.softmax(a + x, 1)
    c = torch.softmax(b.to(torch.float64) + a, 0)
    d = (c + x).sum(0)
    return b, torch.softmax(c * d, 1), d


@pytest.mark.parametrize("length", [2, 6, 20])
def test_a_chain_is_one_call(length: int) -> None:
    fast, backend = compiled(lambda x: chain(x, length))
    x = torch.randn(16, 16)
    torch.testing.assert_close(fast(x), chain(x, length))
    program = program_of(backend)
    assert program.bursts == (sum(r.choice.family != "library" for r in program.plan.regions),)


def test_results_of_several_types_come_out_of_a_burst() -> None:
    fast, backend = compiled(forked)
    x = torch.randn(12, 20)
    torch.testing.assert_close(fast(x), forked(x))
    program = program_of(backend)
    assert program.bursts
    for odd in (torch.randn(20, 12).t(), torch.randn(13, 20)[1:], torch.randn(12, 40)[:, ::2]):
        torch.testing.assert_close(tuple(program(odd)), forked(odd))


def test_a_library_call_between_kernels_ends_a_burst() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return chain(torch.sort(chain(x, 4), -1).values, 4)

    fast, backend = compiled(f)
    x = torch.randn(16, 16)
    torch.testing.assert_close(fast(x), f(x))
    assert program_of(backend).bursts == (4, 4)


def test_sizes_that_change_between_calls() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x.transpose(1, 2) * 2, -1).transpose(1, 2)
        return torch.softmax(torch.softmax(y + x, -1).transpose(1, 2) * 3, -1)

    fast, backend = compiled(f, dynamic=None)
    for batch in (5, 2, 11, 64):
        x = torch.randn(batch, 8, 16)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), f(x))
    assert program_of(backend).bursts


def after_a_product(x: torch.Tensor) -> torch.Tensor:
    """The product lives until the first kernel has run, and would have to live on in a burst: nothing is joined."""
    return chain(x @ x, 4)


@pytest.mark.parametrize("f", [chain, forked, after_a_product])
def test_bursts_take_no_more_memory_than_kernels_one_by_one(
    f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(128, 128)
    fast, backend = compiled(f)
    torch.testing.assert_close(fast(x), f(x))
    program = program_of(backend)
    joined = peak_bytes(lambda: program(x))
    monkeypatch.setattr(burst, "LONGEST", 1)
    apart = Program(program.plan, backend.compiled[0].stages.launchers, backend.records[0])
    assert bool(program.bursts) == (f is not after_a_product) and not apart.bursts
    assert x.nbytes < joined <= min(peak_bytes(lambda: apart(x)), peak_bytes(lambda: f(x)))


def test_values_that_lie_with_gaps_have_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scattered into an input of every second column lies as that input does."""
    arenas: list[tuple[torch.Tensor, int]] = []

    def guarded(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        arenas.append((torch.full((shape[0] + (1 << 16),), 0xAB, dtype=dtype), shape[0]))
        return arenas[-1][0][: shape[0]]

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.t()[0].zero_()
        y[:, ::2].copy_(x[:, ::2].clone() * 3)
        x[0].mul_(2)
        return y

    monkeypatch.setattr(burst, "empty_strided_cpu", guarded)
    fast, backend = compiled(f)
    x = torch.randn(5, 32)
    torch.testing.assert_close(fast(x.clone()[:, ::2]), f(x.clone()[:, ::2]))
    assert program_of(backend).bursts and arenas
    assert all(bool((memory[end:] == 0xAB).all()) for memory, end in arenas)


def test_a_burst_that_cannot_have_its_memory_runs_unit_by_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, backend = compiled(chain)
    x = torch.randn(16, 16)
    fast(x)
    calls: list[int] = []

    def none_left(*_: Any) -> torch.Tensor:
        calls.append(1)
        raise torch.OutOfMemoryError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(burst, "empty_strided_cpu", none_left)
        torch.testing.assert_close(fast(x), chain(x))
    assert len(calls) == 1
    torch.testing.assert_close(fast(x), chain(x))
    assert backend.records[0].of("fallback") == []


def test_an_index_outside_met_in_a_burst_is_eagers_error_for_that_call() -> None:
    def f(places: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        picked = torch.nn.functional.embedding(places, table) * 2
        return torch.softmax(torch.softmax(picked, 0) + 1, 1)

    fast, backend = compiled(f)
    table, good = torch.randn(10, 16), torch.randint(0, 10, (16,))
    bad = good.clone()
    bad[3] = 99
    torch.testing.assert_close(fast(good, table), f(good, table))
    assert program_of(backend).bursts == (2,)
    with pytest.raises(IndexError):
        fast(bad, table)
    torch.testing.assert_close(fast(good, table), f(good, table))
    assert [e for stage in ("fallback", "warning") for e in backend.records[0].of(stage)] == []


def test_threads_share_a_program_of_bursts() -> None:
    fast, _ = compiled(forked)
    inputs = [torch.randn(24, 24) for _ in range(8)]
    wanted = [forked(x) for x in inputs]
    fast(inputs[0])
    gate = threading.Barrier(8)

    def work(k: int) -> None:
        with torch.no_grad():
            gate.wait()
            for _ in range(30):
                torch.testing.assert_close(fast(inputs[k]), wanted[k])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
