"""Element types. In: names. Out: one frozen DType each, with its size, kind and numpy type.

Types marked opaque pass through library calls only; no kernel is generated for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type: `name` as it prints (f32, i64, bool, ...), `bytes` an element, `kind` float, int, uint, bool or
    complex.
    """

    name: str
    bytes: int
    kind: str
    numpy: np.dtype
    ulp: float = 0.0

    @property
    def is_float(self) -> bool:
        """True for real floating types of any width."""
        return self.kind == "float"

    @property
    def is_narrow(self) -> bool:
        """True for floats below 32 bits, which compute in f32 between roundings."""
        return self.kind == "float" and self.bytes < 4

    def __repr__(self) -> str:
        return self.name


def _t(name: str, kind: str, numpy: object, ulp: float = 0.0) -> DType:
    np_type = np.dtype(numpy)  # type: ignore[call-overload]
    return DType(name, np_type.itemsize, kind, np_type, ulp)


BOOL = _t("bool", "bool", np.bool_)
U8, I8, I16, I32, I64 = (
    _t(n, k, t)
    for n, k, t in (
        ("u8", "uint", np.uint8),
        ("i8", "int", np.int8),
        ("i16", "int", np.int16),
        ("i32", "int", np.int32),
        ("i64", "int", np.int64),
    )
)
F8E4M3 = _t("f8e4m3", "float", ml_dtypes.float8_e4m3fn, 2.0**-3)
F8E5M2 = _t("f8e5m2", "float", ml_dtypes.float8_e5m2, 2.0**-2)
F16, BF16 = _t("f16", "float", np.float16, 2.0**-10), _t("bf16", "float", ml_dtypes.bfloat16, 2.0**-7)
F32, F64 = _t("f32", "float", np.float32, 2.0**-23), _t("f64", "float", np.float64, 2.0**-52)
C64, C128 = _t("c64", "complex", np.complex64), _t("c128", "complex", np.complex128)

FOREIGN = tuple(
    _t(n, "foreign", np.dtype((np.void, size)))
    for n, size in (
        ("u16", 2),
        ("u32", 4),
        ("u64", 8),
        ("c32", 4),
        ("f8e4m3fnuz", 1),
        ("f8e5m2fnuz", 1),
        ("f8e8m0fnu", 1),
        ("f4e2m1x2", 1),
    )
)
"""PyTorch's further types, by size alone."""

ALL: dict[str, DType] = {
    t.name: t for t in (BOOL, U8, I8, I16, I32, I64, F8E4M3, F8E5M2, F16, BF16, F32, F64, C64, C128, *FOREIGN)
}
"""Every element type by name."""

OPAQUE = frozenset((C64, C128, *FOREIGN))
"""Types that only library calls handle."""


def compute_type(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed between roundings: f32 for narrow floats, else itself."""
    return F32 if dtype.is_narrow else dtype
