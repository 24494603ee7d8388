"""C++ spellings of types, literals and conversions. In: element types and values. Out: text for the C++ emitter.

Narrow floats are held as float between roundings, so a conversion to one is a rounding of a float.
"""

from __future__ import annotations

import math

import numpy as np

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType, compute_type

SCALAR = {
    F32: "float",
    F64: "double",
    I64: "long",
    I32: "int",
    I16: "short",
    I8: "signed char",
    U8: "unsigned char",
    BOOL: "bool",
}
VECTOR = {F32: "f32v", F64: "f64v", I64: "i64v", I32: "i32v", I16: "i16v", I8: "i8v", U8: "u8v", BOOL: "boolv"}
STORED = {**SCALAR, F16: "f16", BF16: "bf16"}

VECTOR_BYTES = {"native": 64, "avx512": 64, "avx2": 32, "portable": 16}
"""The register width that a kernel is written for, by vector level; native is written for the widest."""


def stored(dtype: DType) -> str:
    """The type of `dtype` in memory. UnsupportedError where no C++ kernel reads or writes it."""
    if dtype not in STORED:
        raise UnsupportedError(f"C++ kernels do not read or write {dtype} yet; the region runs through the library.")
    return STORED[dtype]


def held(dtype: DType, vector: bool) -> str:
    """The type in which a value of `dtype` is computed: one element, or a vector of LANES."""
    stored(dtype)
    return (VECTOR if vector else SCALAR)[compute_type(dtype)]


def literal(value: bool | int | float, dtype: DType) -> str:
    """The constant `value` of `dtype`, exact, in brackets where it has a sign."""
    if dtype is BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        suffix, whole = "L" if dtype is I64 else "", int(value)
        if whole == np.iinfo(dtype.numpy).min and whole < 0:
            text = f"-{-(whole + 1)}{suffix} - 1"  # the smallest one has no literal of its type
        else:
            text = f"{whole}{suffix}"
        text = f"({text})" if text[0] == "-" else text
        return text if dtype in (I64, I32) else f"({SCALAR[dtype]}){text}"
    suffix = "" if dtype is F64 else "f"
    number = float(value) if dtype is F64 else float(np.asarray(value).astype(dtype.numpy))
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"__builtin_inf{suffix}()" if number > 0 else f"(-__builtin_inf{suffix}())"
    digits = repr(number) if dtype is F64 else str(np.float32(number))
    digits = digits if any(c in digits for c in ".e") else digits + ".0"
    return f"({digits}{suffix})" if digits.startswith("-") else digits + suffix


def lowest(dtype: DType) -> str:
    """The smallest value of a type: -inf for floats."""
    return literal(-math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min), dtype)


def highest(dtype: DType) -> str:
    """The largest value of a type: inf for floats."""
    return literal(math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max), dtype)


def converted(text: str, source: DType, target: DType, vector: bool) -> str:
    """The expression `text` of type `source` as `target`: floats round to nearest even, to integers they truncate."""
    if source is target:
        return text
    if target is BOOL:
        return f"to_bool({text})"
    kind = held(target, vector)
    if source is BOOL:
        return f"from_bool<{kind}>({text})"
    if compute_type(source) is not compute_type(target):
        text = f"to<{kind}>({text})"
    return rounded(text, target) if target.is_narrow else text


def rounded(text: str, target: DType) -> str:
    """The float expression `text` rounded to the narrow type `target`, held as float."""
    return f"round_{stored(target)}({text})"


def caster(dtype: DType) -> str:
    """What makes a scalar of `dtype` of an expression in brackets behind it: a name of two words cannot be called."""
    name = held(dtype, False)
    return f"({name})" if " " in name else name


def splat(expression: str, dtype: DType) -> str:
    """A vector whose lanes all hold the value `expression` of `dtype`."""
    return f"boolv({expression})" if dtype is BOOL else f"splat<{held(dtype, True)}>({expression})"
