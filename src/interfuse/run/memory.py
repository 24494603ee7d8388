"""Peak memory of a call. In: a function. Out: the most bytes allocated at one time above what lived before it.

On CUDA the allocator counts; on the CPU PyTorch's profiler reports every allocation and release of its allocator, in
order, and pages that the pool keeps idle between calls count from the start. oneDNN's workspaces come from that
allocator. MKL's do not, and MKL keeps them between calls: what a call needs of them is asked of MKL and counts from the
start, too. What other libraries allocate behind PyTorch's back is not seen.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from interfuse.run.pool import SHARED

MEMORY_EVENT = "[memory]"
"""The name that the profiler gives to an allocation or release."""


def peak_bytes(function: Callable[[], Any], warmups: int = 2) -> int:
    """The most that a steady-state call of `function` allocates above what lived before it, in bytes, all devices.

    The call's result counts while it lives. `warmups` calls go first, so that caches and workspaces exist.
    """
    SHARED.clear()  # what other programs left is not this function's
    for _ in range(warmups):
        function()
    return SHARED.idle_bytes + _with_workspaces(_host_peak, function) + _cuda_peak(function)


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


def _with_workspaces(measure: Callable[[Callable[[], Any]], int], function: Callable[[], Any]) -> int:
    """What `measure` finds of `function`, and the workspaces that MKL needed meanwhile."""
    mkl = _mkl()
    if mkl is None:
        return measure(function)
    give_back, peak = mkl
    give_back()
    peak(_MKL_ON)
    peak(_MKL_RESET)
    kept = peak(_MKL_RESET)  # by threads that are gone
    try:
        return measure(function) + peak(_MKL_RESET) - kept
    finally:
        peak(_MKL_OFF)


def _host_peak(function: Callable[[], Any]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once by the profiler, which tells of each start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == MEMORY_EVENT]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.device_type() == DeviceType.CPU:
            live += event.nbytes()
            peak = max(peak, live)
    return peak
