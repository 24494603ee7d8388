"""How Triton spells types, conversions and operators. In: operator names and element types. Out: Python text.

The operator table gives each operator's text for 32-bit floats; this file holds what differs by type, and the small
`@triton.jit` helpers that a generated file carries when it uses them. Transcendental functions go through `libdevice`,
the library that eager's own kernels call: `tl.exp`, `tl.log` and `tl.sin` are fast approximations whose error grows
with the argument. Nothing here imports Triton.
"""

from __future__ import annotations

import math

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.ops import TABLE

TYPES: dict[DType, str] = {
    BOOL: "tl.int1",
    U8: "tl.uint8",
    I8: "tl.int8",
    I16: "tl.int16",
    I32: "tl.int32",
    I64: "tl.int64",
    F8E4M3: "tl.float8e4nv",
    F8E5M2: "tl.float8e5",
    F16: "tl.float16",
    BF16: "tl.bfloat16",
    F32: "tl.float32",
    F64: "tl.float64",
}
"""Triton's name of each element type."""

SIGNATURE: dict[DType, str] = {
    BOOL: "u1",
    U8: "u8",
    I8: "i8",
    I16: "i16",
    I32: "i32",
    I64: "i64",
    F8E4M3: "fp8e4nv",
    F8E5M2: "fp8e5",
    F16: "fp16",
    BF16: "bf16",
    F32: "fp32",
    F64: "fp64",
}
"""The element types as kernel signatures write them; a pointer has a star before it."""

LONG_NAMES: dict[DType, str] = {
    BOOL: "bool",
    U8: "uint8",
    I8: "int8",
    I16: "int16",
    I32: "int32",
    I64: "int64",
    F8E4M3: "float8_e4m3fn",
    F8E5M2: "float8_e5m2",
    F16: "float16",
    BF16: "bfloat16",
    F32: "float32",
    F64: "float64",
}
"""The element types as PyTorch names them, for docstrings."""

_BY_KIND: dict[tuple[str, str], str] = {
    ("div", "f64"): "{0} / {1}",
    ("sqrt", "f64"): "tl.sqrt({0})",
    ("rsqrt", "f64"): "libdevice.rsqrt({0})",
    ("sigmoid", "f64"): "sigmoid_f64({0})",
    ("normal_cdf", "f64"): "normal_cdf_f64({0})",
    ("floordiv", "f64"): "floordiv_f64({0}, {1})",
    ("neg", "int"): "-{0}",
    ("div", "int"): "{0} // {1}",
    ("floordiv", "int"): "floordiv_int({0}, {1})",
    ("remainder", "int"): "remainder_int({0}, {1})",
    ("fmod", "int"): "{0} % {1}",
    ("pow", "int"): "none: integer powers run through the library",
    **{(op, "int"): f"tl.{op}({{0}}, {{1}})" for op in ("maximum", "minimum")},
    **{(op, "bool"): "{0} | {1}" for op in ("maximum", "add")},
    **{(op, "bool"): "{0} & {1}" for op in ("minimum", "mul")},
    ("abs", "bool"): "{0}",
    ("not", "uint"): "{0} ^ 255",
    ("shr", "uint"): "shift_right_uint({0}, {1})",
    ("lt", "bool"): "~{0} & {1}",
    ("gt", "bool"): "{0} & ~{1}",
    ("le", "bool"): "~{0} | {1}",
    ("ge", "bool"): "{0} | ~{1}",
}

EVERYTHING = (-math.inf, math.inf)
"""The limits of a value of which nothing is known."""

LARGEST: dict[DType, float] = {F8E4M3: 448.0, F8E5M2: 57344.0}
"""The largest number of each 8-bit type: what rounds past it needs a look."""

INFIX = frozenset(("add", "sub", "mul", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne"))
"""Operators written with a sign, where a Python number takes the type of the other operand."""

WEAK = frozenset(("where", "maximum", "minimum", "div"))
"""Operators that take a Python number as a 32-bit one."""


def operator_text(op: str, dtype: DType) -> str:
    """The text of `op` on operands of `dtype`, with {0}, {1}, ...; UnsupportedError where there is none."""
    kinds = ("f64",) if dtype is F64 else ("uint", "int") if dtype.kind == "uint" else (dtype.kind,)
    spelled = next((_BY_KIND[op, k] for k in kinds if (op, k) in _BY_KIND), TABLE[op].triton)
    if spelled.startswith("none:"):
        raise UnsupportedError(f"{op} on {dtype}: {spelled[6:]}")
    return spelled


def convert(text: str, source: DType, target: DType, limits: tuple[float, float] = EVERYTHING) -> str:
    """`text` of type `source` converted to `target` as PyTorch does: nearest even, truncation, or a test against 0.

    `limits` are the least and the most that it can be, where it is a number.
    """
    if source is target:
        return text
    if source in (F8E4M3, F8E5M2) and target not in (F16, BF16, F32):
        return convert(f"{text}.to(tl.float32)", F32, target)
    if target is BOOL:
        return f"{text} != 0"
    if target in LARGEST and max(map(abs, limits)) <= LARGEST[target]:
        return f"{convert(text, source, F32)}.to({TYPES[target]})"
    if target in LARGEST:
        return f"to_{target.name}({convert(text, source, F32)})"
    if source.is_float and target.kind == "uint":  # negative numbers wrap, as they do through a signed integer
        return f"{text}.to(tl.int32).to({TYPES[target]})"
    if source.is_float and target is I8 and max(map(abs, limits)) <= 127:  # fewer instructions than by 16 bits
        return f"{text}.to(tl.int32).to({TYPES[target]})"
    if target.is_narrow and not source.is_narrow and source not in (F32, BOOL):
        return f"{text}.to(tl.float32).to({TYPES[target]})"
    return f"{text}.to({TYPES[target]})"


def literal(value: object, dtype: DType) -> str:
    """A constant of `dtype` as a Python number; negative ones in brackets."""
    if dtype.kind == "bool":
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value)) if int(value) >= 0 else f"({int(value)})"  # type: ignore[call-overload]
    number = float(value)  # type: ignore[arg-type]
    if number != number or number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number) if not repr(number).startswith("-") else f"({number!r})"


HELPERS: dict[str, str] = {
    "sign": """
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)  # NaN gives 0
""",
    "sigmoid": """
def sigmoid(x):
    return libdevice.fast_dividef(1.0, 1.0 + libdevice.exp(-x))
""",
    "coarse_sigmoid": """
def coarse_sigmoid(x):
    # To the digits of a 16-bit type and a few more. A quarter of 1 + e^-x stays where the division has its digits.
    quarter = 0.25 + libdevice.exp2(tl.fma(x, -1.4426950408889634, -2.0))
    return libdevice.fast_dividef(1.0, quarter) * 0.25
""",
    "sigmoid_f64": """
def sigmoid_f64(x):
    return 1.0 / (1.0 + libdevice.exp(-x))
""",
    "normal_cdf": """
def normal_cdf(x):
    # (1 + erf(x / sqrt(2))) / 2 by the complement, e^(-x^2 / 2) times a polynomial in k: fewer operations than the
    # library's erf, and it keeps its digits far below zero, where 1 + erf cancels.
    a = tl.abs(x)
    k = libdevice.fast_dividef(1.0, tl.fma(a, 0.21213203, 1.0))
    p = tl.fma(k, -0.06477033, 0.24282826)
    p = tl.fma(p, k, -0.25624412)
    p = tl.fma(p, k, 0.27399233)
    p = tl.fma(p, k, -0.047427084)
    p = tl.fma(p, k, 0.10751184)
    p = tl.fma(p, k, 0.07415533)
    p = tl.fma(p, k, 0.08535992)
    p = tl.fma(p, k, 0.08459384)
    tail = libdevice.exp2(a * a * -0.72134752) * (k * p)
    return tl.where(x < 0.0, tail, 1.0 - tail)
""",
    "normal_cdf_f64": """
def normal_cdf_f64(x):
    return libdevice.erfc(x * -0.7071067811865476) * 0.5
""",
    "floordiv": """
def floordiv(x, y):
    rest = libdevice.fmod(x, y)
    quotient = libdevice.nearbyint(tl.div_rn(x - rest, y)) - tl.where((rest != 0) & ((rest < 0) != (y < 0)), 1.0, 0.0)
    return tl.where(y == 0, tl.div_rn(x, y), quotient)
""",
    "floordiv_f64": """
def floordiv_f64(x, y):
    rest = libdevice.fmod(x, y)
    quotient = libdevice.nearbyint((x - rest) / y) - tl.where((rest != 0) & ((rest < 0) != (y < 0)), 1.0, 0.0)
    return tl.where(y == 0, x / y, quotient)
""",
    "floordiv_int": """
def floordiv_int(x, y):
    return x // y - ((x % y != 0) & ((x < 0) != (y < 0))).to(x.dtype)
""",
    "remainder": """
def remainder(x, y):
    rest = libdevice.fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
""",
    "remainder_int": """
def remainder_int(x, y):
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
""",
    "shift_left": """
def shift_left(x, by):
    return tl.where((by >= 0) & (by < x.dtype.primitive_bitwidth), x << by, x - x)
""",
    "shift_right": """
def shift_right(x, by):
    last = x.dtype.primitive_bitwidth - 1
    return x >> tl.where((by >= 0) & (by <= last), by, last).to(x.dtype)
""",
    "shift_right_uint": """
def shift_right_uint(x, by):
    return tl.where(by < x.dtype.primitive_bitwidth, x >> by, x - x)
""",
    "nan_max": """
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "nan_min": """
def nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "apart_from": """
def apart_from(mean, x):
    # An infinite mean stays as it is, as a sum would.
    return tl.where(tl.abs(mean) < float("inf"), x - mean, x)
""",
    "eights": """
def eights(x):
    # Mean and squared distances from it of each eight neighbours.
    x = tl.reshape(x, (x.shape[0] // 8, 8))
    mean = tl.sum(x, 1) * 0.125
    apart = x - mean[:, None]
    return mean, tl.sum(apart * apart, 1)
""",
    "weighed": """
def weighed(top, total, x):
    # The sum of exp(element - top), top being the largest so far, with one element more.
    apart = x - top
    weight = libdevice.exp(-tl.abs(apart))
    return nan_max(top, x), tl.where(apart > 0, total * weight + 1.0, total + weight)
""",
    "weighed_together": """
def weighed_together(top, total, x):
    # The same with several elements more for each lane: they are measured from one maximum, so an exponential each.
    x = tl.reshape(x, (x.shape[0] // top.shape[0], top.shape[0]))
    highest = nan_max(top, tl.reduce(x, 0, nan_max))
    more = tl.sum(tl.exp2((x - highest[None, :]) * 1.4426950408889634), 0)
    return highest, total * tl.exp2((top - highest) * 1.4426950408889634) + more
""",
    "larger_first": """
def larger_first(a, i, b, j):
    # The larger element and its place; of equal ones the first. NaN is larger than every number.
    better = (a > b) | ((a == b) & (i < j)) | ((a != a) & ((b == b) | (i < j)))
    return tl.where(better, a, b), tl.where(better, i, j)
""",
    "smaller_first": """
def smaller_first(a, i, b, j):
    # The smaller element and its place; of equal ones the first. NaN is smaller than every number.
    better = (a < b) | ((a == b) & (i < j)) | ((a != a) & ((b == b) | (i < j)))
    return tl.where(better, a, b), tl.where(better, i, j)
""",
    "set_right": """
def set_right(x, d):
    # x / d by the inverse of d, and by what that leaves of x; what is not finite leaves nothing.
    inverse = tl.div_rn(1.0, d)
    q = x * inverse
    over = tl.fma(q, d, -x)
    return tl.where(tl.abs(over) < float("inf"), tl.fma(over, -inverse, q), q)
""",
    "divided": """
def divided(x, d):
    # x / d where a whole program shares d; the exact division where d or its inverse may be subnormal.
    if (tl.abs(d) > 5.421010862427522e-20) & (tl.abs(d) < 1.8446744073709552e19):
        y = set_right(x, d)
    else:
        y = tl.div_rn(x, d)
    return y
""",
    "divided_lanes": """
def divided_lanes(x, d):
    # x / d where many elements share d, all of it scaled so that neither d nor its inverse is subnormal.
    scale = tl.where(tl.abs(d) < 5.421010862427522e-20, 1.8446744073709552e19, 1.0)
    scale = tl.where(tl.abs(d) > 1.8446744073709552e19, 5.421010862427522e-20, scale)
    return set_right(x * scale, d * scale)
""",
    "give": """
def give(ptr, x, tag):
    # A number, and the meeting that it is for, in one word.
    word = (tag.to(tl.int64) << 32) | (x.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.atomic_xchg(ptr + tl.zeros(x.shape, tl.int32), word, sem="relaxed")
""",
    "late": """
def late(word, tag):
    # Not 0 where the word belongs to an earlier meeting.
    return (word >> 32).to(tl.int32) ^ tag
""",
    "given": """
def given(word):
    return word.to(tl.int32).to(tl.float32, bitcast=True)
""",
    "divided_within": """
def divided_within(x, d, least, most):
    # x / d, from least to most: where d is like other numbers it is a part of the largest x, so that none is past them.
    if (d > 5.421010862427522e-20) & (d < 1.8446744073709552e19):
        inverse = tl.div_rn(1.0, d)
        q = x * inverse
        y = tl.fma(tl.fma(q, d, -x), -inverse, q)
    else:
        y = nan_min(most, nan_max(least, tl.div_rn(x, d)))
    return y
""",
    "codes_within": """
def codes_within(x, d, least, most):
    # The same as the whole number next to it: what is left where an addition leaves no digits behind the point.
    if (d > 5.421010862427522e-20) & (d < 1.8446744073709552e19):
        inverse = tl.div_rn(1.0, d)
        q = x * inverse
        code = (tl.fma(tl.fma(q, d, -x), -inverse, q) + 12582912.0).to(tl.int32, bitcast=True)
    else:
        code = libdevice.nearbyint(nan_min(most, nan_max(least, tl.div_rn(x, d)))).to(tl.int32)
    return code.to(tl.int8)
""",
    "codes_near": """
def codes_near(x, d, least, most):
    # The same where x has all digits, and hardly ever lies so near the middle of two codes that the last one tells.
    if (d > 5.421010862427522e-20) & (d < 1.8446744073709552e19):
        code = tl.fma(x, tl.div_rn(1.0, d), 12582912.0).to(tl.int32, bitcast=True)
    else:
        code = libdevice.nearbyint(nan_min(most, nan_max(least, tl.div_rn(x, d)))).to(tl.int32)
    return code.to(tl.int8)
""",
    "plus": """
def plus(a, b):
    return a + b
""",
    "plus_both": """
def plus_both(a, b, c, d):
    return a + c, b + d
""",
    "plus_and_max": """
def plus_and_max(a, b, c, d):
    return a + c, tl.maximum(b, d, propagate_nan=tl.PropagateNan.ALL)
""",
    "times": """
def times(a, b):
    return a * b
""",
    "to_f8e4m3": """
def to_f8e4m3(x):
    # What rounds past 448 is NaN in PyTorch; the hardware's conversion would saturate.
    return tl.where(tl.abs(x) <= 464.0, x, float("nan")).to(tl.float8e4nv)
""",
    "to_f8e5m2": """
def to_f8e5m2(x):
    # What rounds past 57344 is infinite in PyTorch; the hardware's conversion would saturate.
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, infinite, bits).to(tl.float8e5, bitcast=True)
""",
}
"""The helpers that a generated file may carry, by name; the emitter puts `@triton.jit` above each."""
