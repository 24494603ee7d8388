"""Memory for what kernels write. In: shape, layout, type, device. Out: a function that gives uninitialised tensors.

Large results of a program on the CPU come from the pool of pages; everything else is PyTorch's allocator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards

from interfuse.ir.layout import reach
from interfuse.run.pool import FROM_BYTES, SHARED
from interfuse.run.views import Sizes, Strides, sized

empty_strided_cpu = guards._empty_strided_cpu  # type: ignore[attr-defined]
"""torch.empty_strided without its argument parser, which costs more than the allocation of a small tensor."""


def allocator(
    shape: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype, device: torch.device, pool_bytes: int = 0
) -> Callable[[Sizes], torch.Tensor]:
    """A function that allocates an uninitialised tensor of this shape and layout, given the size symbols' values.

    On the CPU, with `pool_bytes`, large ones lie on pages of the shared pool, which then keeps so many bytes at most.
    """
    static = all(isinstance(d, int) for d in (*shape, *strides))
    fixed_shape, fixed_strides = tuple(shape), tuple(strides)
    shape_at, strides_at = sized(fixed_shape), sized(fixed_strides)
    if device.type != "cpu":
        empty = torch.empty_strided
        if static and device.type == "cuda" and hasattr(torch._C, "_cuda_getDevice"):
            return _on_gpu(fixed_shape, fixed_strides, dtype, device)
        if static:
            return lambda sizes: empty(fixed_shape, fixed_strides, dtype=dtype, device=device)
        return lambda sizes: empty(shape_at(sizes), strides_at(sizes), dtype=dtype, device=device)
    if static and reach(shape, strides, dtype.itemsize) < FROM_BYTES:
        pool_bytes = 0
    if pool_bytes and static:
        return lambda sizes: SHARED.empty_strided(fixed_shape, fixed_strides, dtype, pool_bytes)
    if pool_bytes:
        return lambda sizes: SHARED.empty_strided(shape_at(sizes), strides_at(sizes), dtype, pool_bytes)
    if static:
        return lambda sizes: empty_strided_cpu(fixed_shape, fixed_strides, dtype)
    return lambda sizes: empty_strided_cpu(shape_at(sizes), strides_at(sizes), dtype)


def _on_gpu(
    shape: Strides, strides: Strides, dtype: torch.dtype, device: torch.device
) -> Callable[[Sizes], torch.Tensor]:
    """As `allocator`; what has no argument parser allocates on the current device."""
    quick, current = guards._empty_strided_cuda, torch._C._cuda_getDevice  # type: ignore[attr-defined]

    def make(sizes: Sizes) -> torch.Tensor:
        if current() == device.index:
            found: torch.Tensor = quick(shape, strides, dtype)
            return found
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return make
