"""Pages for large results on the CPU. In: shapes and types. Out: uninitialised tensors, over memory used before if any.

The C library maps an output of 32 MiB anew at each call and gives it back at its end; the faults on its fresh pages
take longer than the kernel that fills it. So the pool keeps what it made and hands it out again once nothing else holds
it: no tensor, view, NumPy array or storage object. It asks for the reference counts of the storage and of its Python
object: where both are what they were before the page was first handed out, only the pool is left. Tensors are
PyTorch's own, from its own allocator; a page whose storage was resized or moved to shared memory is forgotten.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence

import torch

from interfuse.ir.layout import reach

FROM_BYTES = 32 << 20
"""Size from which on the C library maps memory anew at each call, whatever it learnt before."""

HUGE = 2 << 20
"""Bytes of a huge page."""


def _storage_uses(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))  # type: ignore[attr-defined]


class _Page:
    """One allocation: its storage, where it lies, and the reference counts it has while nobody else holds it."""

    __slots__ = ("_address", "_idle", "bytes", "storage")

    def __init__(self, size: int) -> None:
        self.storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
        self.bytes, self._address = size, self.storage.data_ptr()
        _ask_for_huge_pages(self._address, size)
        self._idle = self._counts()

    def _counts(self) -> tuple[int, int]:
        return _storage_uses(self.storage), sys.getrefcount(self.storage)

    def idle(self) -> bool:
        """True where only the pool holds it."""
        return self._counts() == self._idle

    def whole(self) -> bool:
        """False where whoever held it changed its size or moved it."""
        return self.storage.nbytes() == self.bytes and self.storage.data_ptr() == self._address


class Pool:
    """Pages by size, handed out or not. Any number of threads may share one."""

    def __init__(self) -> None:
        self._pages: dict[int, list[_Page]] = {}
        self._lock = threading.Lock()

    @property
    def idle_bytes(self) -> int:
        """Bytes that are kept for later while nobody uses them."""
        with self._lock:
            return sum(page.bytes for pages in self._pages.values() for page in pages if page.idle())

    def clear(self) -> None:
        """Forget every page: those in use live as long as their tensors."""
        with self._lock:
            self._pages.clear()

    def empty_strided(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, limit: int
    ) -> torch.Tensor:
        """An uninitialised tensor, as torch.empty_strided gives on the CPU.

        From FROM_BYTES up it lies on a page of the pool, unless all pages together would then pass `limit` bytes.
        """
        size = reach(shape, strides, dtype.itemsize)
        if not FROM_BYTES <= size <= limit:
            return torch.empty_strided(shape, strides, dtype=dtype)
        with self._lock:
            page = self._take(size, limit)
            if page is None:
                return torch.empty_strided(shape, strides, dtype=dtype)
            # Still under the lock, so that no other thread finds the page idle.
            return torch.empty(0, dtype=dtype).set_(page.storage, 0, shape, strides)  # type: ignore[call-overload]

    def _take(self, size: int, limit: int) -> _Page | None:
        """An idle page of exactly `size` bytes, a new one, or None where the limit is reached."""
        pages = self._pages.setdefault(size, [])
        for page in list(pages):
            if not page.whole():
                pages.remove(page)
            elif page.idle():
                return page
        if self._kept() + size > limit:
            self._drop_idle()
        if self._kept() + size > limit:
            return None
        self._pages.setdefault(size, []).append(page := _Page(size))
        return page

    def _kept(self) -> int:
        return sum(size * len(pages) for size, pages in self._pages.items())

    def _drop_idle(self) -> None:
        """Give back the idle pages of every size."""
        busy = {size: [p for p in pages if p.whole() and not p.idle()] for size, pages in self._pages.items()}
        self._pages = {size: pages for size, pages in busy.items() if pages}


SHARED = Pool()
"""The pool of this process: its bound is on the memory of all programs together."""


def _ask_for_huge_pages(address: int, size: int) -> None:
    """Advise huge pages for the whole ones inside; where the system does not take the advice, nothing changes."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    start = -(-address // HUGE) * HUGE
    length = (address + size - start) // HUGE * HUGE
    if advice is not None and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
