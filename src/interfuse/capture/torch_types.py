"""Torch's element types as ours, and back. In: torch.dtype. Out: DType."""

from __future__ import annotations

import torch

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import ALL, OPAQUE, DType

_NAMES: dict[str, str] = {
    "bool": "bool",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
    "float4_e2m1fn_x2": "f4e2m1x2",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
}
# A name that this torch lacks is left out.
_TORCH: dict[str, torch.dtype] = {
    ours: getattr(torch, theirs) for theirs, ours in _NAMES.items() if hasattr(torch, theirs)
}
_OURS: dict[torch.dtype, DType] = {theirs: ALL[ours] for ours, theirs in _TORCH.items()}


def from_torch(dtype: torch.dtype) -> DType:
    """Our type for `dtype`. UnsupportedError for quantised types and the like, which no graph here can hold."""
    if dtype not in _OURS:
        raise UnsupportedError(f"tensors of {dtype} cannot be captured; run this model through PyTorch.")
    return _OURS[dtype]


def to_torch(dtype: DType) -> torch.dtype:
    """Torch's type for `dtype`; KeyError for one that this torch lacks."""
    return _TORCH[dtype.name]


def has_kernels(dtype: DType) -> bool:
    """True where kernels can be generated for `dtype`."""
    return dtype not in OPAQUE
