"""The page pool. In: tensors that come and go, held in every way there is. Out: no page is ever under two at once."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import interfuse
from interfuse.base.knobs import override
from interfuse.run import allocate, pool
from interfuse.run.memory import peak_bytes
from interfuse.run.pool import Pool

ROWS = 64
BYTES = ROWS * 1024 * 4
LIMIT = 4 * BYTES


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 256 KiB, so that the tests need little memory."""
    monkeypatch.setattr(pool, "FROM_BYTES", BYTES)
    monkeypatch.setattr(allocate, "FROM_BYTES", BYTES)


def take(pages: Pool, limit: int = LIMIT) -> torch.Tensor:
    """A tensor of one page."""
    return pages.empty_strided((ROWS, 1024), (1024, 1), torch.float32, limit)


def test_a_page_comes_back_when_its_tensor_is_gone() -> None:
    pages = Pool()
    first = take(pages)
    address = first.data_ptr()
    assert first.shape == (ROWS, 1024) and not first._is_view() and first.untyped_storage().nbytes() == BYTES
    assert pages.idle_bytes == 0
    del first
    assert pages.idle_bytes == BYTES
    assert take(pages).data_ptr() == address


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[3:, 5:],
        lambda t: t.detach(),
        lambda t: t.untyped_storage(),
        lambda t: torch.storage.TypedStorage(wrap_storage=t.untyped_storage(), dtype=t.dtype, _internal=True),
        lambda t: t.numpy(),
        lambda t: memoryview(t.numpy()),
        lambda t: torch.from_dlpack(t),
        lambda t: torch.empty(0).set_(t.untyped_storage(), 0, (4,), (1,)),
        lambda t: t.view(torch.int32),
        lambda t: {"nested": [t.t()]},
        lambda t: (t.requires_grad_() * torch.rand(ROWS, 1024, requires_grad=True)).grad_fn,
    ],
    ids=["view", "detach", "storage", "typed", "numpy", "memory", "dlpack", "set", "type", "nested", "graph"],
)
def test_whoever_holds_the_memory_keeps_it(hold: Any) -> None:
    pages = Pool()
    tensor = take(pages).fill_(7)
    address, held = tensor.data_ptr(), hold(tensor)
    del tensor
    other = take(pages).data_ptr()  # of a tensor that is gone again at once
    assert other != address
    assert pages.idle_bytes == BYTES
    del held
    assert pages.idle_bytes == 2 * BYTES


def test_copies_and_pickles_are_their_own() -> None:
    pages = Pool()
    tensor = take(pages).fill_(3)
    copies = [copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), tensor.clone()]
    assert all(c.data_ptr() != tensor.data_ptr() and torch.equal(c, tensor) for c in copies)
    del tensor
    take(pages).fill_(9)
    assert all((c == 3).all() for c in copies)


@pytest.mark.parametrize(
    "change", [lambda t: t.resize_(2 * ROWS, 1024), lambda t: t.share_memory_()], ids=["resize", "share"]
)
def test_a_page_that_was_resized_or_moved_is_forgotten(change: Any) -> None:
    pages = Pool()
    tensor = take(pages).fill_(5)
    change(tensor)
    assert (tensor[:ROWS] == 5).all()
    other = take(pages).fill_(1)
    assert (tensor[:ROWS] == 5).all()
    del tensor, other
    assert take(pages).untyped_storage().nbytes() == BYTES


def test_a_lazy_clone_keeps_its_values() -> None:
    pages = Pool()
    tensor = take(pages).fill_(5)
    clone = torch._lazy_clone(tensor)
    del tensor
    take(pages).fill_(1)
    assert (clone == 5).all()


def test_the_limit_counts_pages_in_use_and_idle_ones_make_room() -> None:
    pages = Pool()
    held = [take(pages) for _ in range(6)]
    assert len({t.data_ptr() for t in held}) == 6
    del held
    assert pages.idle_bytes == LIMIT
    wide = pages.empty_strided((2 * ROWS, 1024), (1024, 1), torch.float32, LIMIT)
    assert pages.idle_bytes == 0
    del wide
    assert pages.idle_bytes == 2 * BYTES
    pages.clear()
    assert pages.idle_bytes == 0


def test_threads_never_share_a_page() -> None:
    pages, clashes = Pool(), []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for _ in range(200):
            tensor = take(pages, 8 * BYTES)
            tensor[::16] = number
            if not (tensor[::16] == number).all():
                clashes.append(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not clashes


def double(x: torch.Tensor) -> torch.Tensor:
    """One kernel, one large result."""
    return torch.relu(x) * 2


@pytest.mark.parametrize("mib", [0, 64])
def test_compiled_results_live_on_pages_and_the_knob_turns_them_off(mib: int) -> None:
    pool.SHARED.clear()
    x = torch.randn(ROWS, 1024)
    with override(pool_mib=mib):
        fast = interfuse.compile(double, race=False)
        first = fast(x)
        view = first[1:]
        assert torch.equal(first, double(x))
        del first
        second = fast(-x)
        assert torch.equal(view, double(x)[1:]) and torch.equal(second, double(-x))
        del view, second
    assert pool.SHARED.idle_bytes == (2 * BYTES if mib else 0)
    pool.SHARED.clear()


def test_peak_memory_counts_pages() -> None:
    x = torch.randn(ROWS, 1024)
    fast = interfuse.compile(double, race=False)
    assert BYTES <= peak_bytes(lambda: fast(x)) < 2 * BYTES
    pool.SHARED.clear()


def test_training_steps_on_pages() -> None:
    pool.SHARED.clear()
    x = torch.randn(ROWS, 1024)
    grads = []
    for f in (double, interfuse.compile(double, race=False)):
        leaf = x.clone().requires_grad_()
        for _ in range(3):
            (f(leaf).sum() * 2).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    pool.SHARED.clear()
