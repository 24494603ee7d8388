"""Compiled GPU kernels called through CUDA's driver. In: what Triton compiled. Out: a function that launches it.

Triton's way from a function to a launch reads the types of the arguments again, through several Python functions, which
takes longer than many a small kernel runs. Here a launch fills a buffer that was laid out once and calls
cuLaunchKernelEx.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from interfuse.base.errors import LaunchError

COOPERATIVE, OVERLAPPING = 2, 6
"""The driver's numbers for a launch whose programs are all there at once, and for one that may begin early."""

NO_CONTEXT = 201
"""What the driver says in a thread that has not used CUDA yet."""

HIDDEN = 2
"""Addresses of scratch memory that Triton adds behind the arguments; they are 0 where a kernel needs none."""


Again = Callable[[int, Sequence[int], int], bool]
"""Launches so many programs of a compiled kernel on words (addresses, and sizes below 2^31) and a stream; False where
that cannot be done here and nothing was.
"""


class _Attribute(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("", ctypes.c_int), ("value", ctypes.c_int), ("", ctypes.c_byte * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def driver() -> ctypes.CDLL | None:
    """CUDA's driver; None where there is none that can say how a kernel's arguments lie (before CUDA 12.4)."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return found if hasattr(found, "cuFuncGetParamInfo") and hasattr(found, "cuLaunchKernelEx") else None


class Direct:
    """A compiled kernel that takes so many words: addresses, and sizes below 2^31. Threads may call it together."""

    def __init__(self, library: ctypes.CDLL, compiled: Any, name: str, count: int) -> None:
        meta, self._name = compiled.metadata, name
        self._call, self._function = library.cuLaunchKernelEx, ctypes.c_void_p(compiled.function)
        self._words = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self._words)
        self._places = (ctypes.c_void_p * count)(*(start + 8 * k for k in range(count)))
        kinds = [COOPERATIVE] * bool(meta.launch_cooperative_grid) + [OVERLAPPING] * bool(meta.launch_pdl)
        self._attributes = (_Attribute * len(kinds))(*(_Attribute(kind, value=1) for kind in kinds))
        block = (32 * meta.num_warps, 1, 1)
        self._config = _Config((1, 1, 1), block, meta.shared, None, self._attributes, len(kinds))
        self._lock = threading.Lock()

    def __call__(self, grid: int, words: Sequence[int], stream: int) -> bool:
        """Launch so many programs on these words; False where this thread has no context yet: nothing is done then.
        LaunchError where the driver refuses.
        """
        with self._lock:  # the driver has copied the words when it returns
            self._words[: len(words)] = list(words)
            self._config.grid[0], self._config.stream = grid, stream
            code: int = self._call(ctypes.byref(self._config), self._function, self._places, None)
        if code not in (0, NO_CONTEXT):
            raise LaunchError(f"{self._name} cannot be launched (CUDA error {code}); the region runs the library path.")
        return code == 0


def again(compiled: Any, name: str, words: int, fixed: Sequence[int]) -> Again:
    """The shortest way to launch what Triton compiled as `name` for so many words and these constants."""

    def launch(grid: int, given: Sequence[int], stream: int) -> bool:
        compiled[grid, 1, 1](*given, *fixed, stream=stream)
        return True

    return direct(compiled, name, words) or launch


def direct(compiled: Any, name: str, words: int, library: ctypes.CDLL | None = None) -> Direct | None:
    """A way to launch what Triton compiled as `name` for so many words; None where only Triton knows how.

    `library` is CUDA's driver where it is given.
    """
    meta, found = compiled.metadata, library or driver()
    extras = ("global_scratch_size", "profile_scratch_size", "tensordesc_meta")
    if found is None or meta.target.backend != "cuda" or any(getattr(meta, extra, 0) for extra in extras):
        return None
    count = _arguments(found, ctypes.c_void_p(compiled.function))
    # Where Triton made a constant of an argument there are fewer.
    whole = count == words + HIDDEN and getattr(meta, "num_ctas", 1) == 1
    return Direct(found, compiled, name, count) if whole else None


def _arguments(library: ctypes.CDLL, function: ctypes.c_void_p) -> int:
    """How many arguments a kernel takes."""
    count, offset, size = 0, ctypes.c_size_t(), ctypes.c_size_t()
    while library.cuFuncGetParamInfo(function, ctypes.c_size_t(count), ctypes.byref(offset), ctypes.byref(size)) == 0:
        count += 1
    return count
