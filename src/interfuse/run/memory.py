"""Peak memory of a call. In: a function. Out: the most bytes allocated at one time above what lived before it.

On CUDA the allocator counts; on the CPU PyTorch's profiler of one thread reports every allocation and release of its
allocator, in order (the profiler over Kineto is the process's, and the user may need it), and pages that the pool keeps
idle between calls count from the start. oneDNN's workspaces come from that allocator. MKL's do not, and MKL keeps them
between calls: what a call needs of them is asked of MKL and counts from the start, too. What other libraries allocate
behind PyTorch's back is not seen.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from interfuse.plan.memory import Need
from interfuse.run.pool import SHARED

_MEMORY_EVENT = "memory_alloc"
"""What the profiler calls an allocation or release."""


def peak_bytes(function: Callable[[], Any], warmups: int = 2) -> int:
    """The most that a steady-state call of `function` allocates above what lived before it, in bytes, all devices.

    The call's result counts while it lives. `warmups` calls go first, so that caches and workspaces exist.
    """
    SHARED.clear()  # what other programs left is not this function's
    for _ in range(warmups):
        function()
    host = host_need(function)
    return SHARED.idle_bytes + host.once + host.kept + _cuda_peak(function)


def host_need(function: Callable[[], Any]) -> Need:
    """What a call of `function`, whose workspaces exist, needs on the CPU. RuntimeError while this thread is
    profiled.
    """
    mkl = _mkl()
    if mkl is None:
        return Need(_host_peak(function), 0)
    give_back, peak = mkl
    give_back()
    peak(_MKL_ON)
    peak(_MKL_RESET)
    left = peak(_MKL_RESET)  # by threads that are gone
    try:
        once = _host_peak(function)
        return Need(once, peak(_MKL_RESET) - left)
    finally:
        peak(_MKL_OFF)


def _cuda_peak(function: Callable[[], Any]) -> int:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return 0
    total = 0
    torch.cuda.synchronize()
    devices = range(torch.cuda.device_count())
    before = [torch.cuda.memory_allocated(d) for d in devices]
    for d in devices:
        torch.cuda.reset_peak_memory_stats(d)
    function()
    torch.cuda.synchronize()
    for d in devices:
        total += torch.cuda.max_memory_allocated(d) - before[d]
    return total


@functools.cache
def _mkl() -> tuple[Callable[[], None], Callable[[int], int]] | None:
    """MKL's functions that give back idle workspaces and that report the peak; None where PyTorch is without MKL."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        give_back, peak = library.mkl_serv_free_buffers, library.mkl_serv_peak_mem_usage
    except (OSError, AttributeError):
        return None
    give_back.restype, peak.restype, peak.argtypes = None, ctypes.c_longlong, (ctypes.c_int,)
    return give_back, peak


_MKL_OFF, _MKL_ON, _MKL_RESET = 0, 1, -1
"""What MKL is told of the peak: no longer to keep count of it, to keep count, to report it and begin anew."""


def _host_peak(function: Callable[[], Any]) -> int:
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        function()
    finally:
        threads = _disable_profiler_legacy()
    first = threads[0][0]
    live = peak = 0
    for event in sorted((e for events in threads for e in events), key=first.cpu_elapsed_us):
        if str(event.kind()) == _MEMORY_EVENT:
            live += event.cpu_memory_usage()
            peak = max(peak, live)
    return peak
