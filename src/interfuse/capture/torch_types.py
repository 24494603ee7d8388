"""Torch's element types as ours, and back. In: torch.dtype. Out: DType.

Types without a row in ir.dtypes (u16, u32, u64, fnuz floats, quantised ones) get a DType of their own here: they pass
through library calls, and no kernel is generated for them.
"""
from __future__ import annotations

import numpy as np
import torch

from interfuse.ir import dtypes
from interfuse.ir.dtypes import DType

_KNOWN: dict[torch.dtype, DType] = {
    torch.bool: dtypes.BOOL, torch.uint8: dtypes.U8, torch.int8: dtypes.I8, torch.int16: dtypes.I16,
    torch.int32: dtypes.I32, torch.int64: dtypes.I64, torch.float16: dtypes.F16, torch.bfloat16: dtypes.BF16,
    torch.float32: dtypes.F32, torch.float64: dtypes.F64, torch.float8_e4m3fn: dtypes.F8E4M3,
    torch.float8_e5m2: dtypes.F8E5M2, torch.complex64: dtypes.C64, torch.complex128: dtypes.C128}
_FOREIGN: dict[torch.dtype, DType] = {}
_TORCH: dict[str, torch.dtype] = {ours.name: theirs for theirs, ours in _KNOWN.items()}


def from_torch(dtype: torch.dtype) -> DType:
    """Our type for `dtype`; the same object each time, also for those that only the library handles."""
    known = _KNOWN.get(dtype) or _FOREIGN.get(dtype)
    if known is None:
        name = str(dtype).removeprefix("torch.")
        known = _FOREIGN.setdefault(dtype, DType(name, dtype.itemsize, "foreign", np.dtype((np.void, dtype.itemsize))))
        _TORCH[name] = dtype
    return known


def to_torch(dtype: DType) -> torch.dtype:
    """Torch's type for `dtype`; KeyError for one that `from_torch` never gave."""
    return _TORCH[dtype.name]


def has_kernels(dtype: DType) -> bool:
    """True where kernels can be generated for `dtype`."""
    return dtype.kind != "foreign" and dtype not in dtypes.OPAQUE
