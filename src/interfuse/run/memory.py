"""Peak memory of a call. In: a function. Out: the most bytes allocated at one time above what lived before it.

On CUDA the allocator counts; on the CPU PyTorch's profiler reports every allocation and release of its allocator, in
order, and pages that the pool keeps idle between calls count from the start. What libraries allocate behind PyTorch's
back is not seen on either.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
    return SHARED.idle_bytes + _host_peak(function) + _cuda_peak(function)


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
