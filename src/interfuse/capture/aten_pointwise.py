"""Element-wise arithmetic. In: ATen calls of operators and comparisons. Out: their values. Activations have a file of
their own.

Numbers take part in arithmetic unrounded, as eager's kernels take them, and are rounded to the common type where
eager compares or selects with them. Integer division stays with the library unless its divisor is a constant other
than 0, because it traps.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, Value, convert, number, promote, rounded, unsupported, wide
from interfuse.ir import build
from interfuse.ir.dtypes import BOOL, DType, compute_type
from interfuse.ir.node import Node


def operands(c: Maker, *values: Any, dtype: DType | None = None, exact: bool = False) -> list[Node]:
    """Tensors and numbers in the compute type of their common type; `exact` rounds numbers to that type itself."""
    values = tuple(v if isinstance(v, Node) else number(v) for v in values)
    d = dtype or promote(*values)
    out = []
    for v in values:
        x = convert(v, d) if isinstance(v, Node) else c.constant(v, compute_type(d))
        out.append(rounded(x, d) if exact and not isinstance(v, Node) else x)
    return out


def _floats(c: Maker, *values: Any) -> list[Node]:
    """Operands in the float type of the result."""
    return operands(c, *values, dtype=c.dtype)


def _float_unary(name: str, op: str) -> None:
    def rule(c: Maker, self: Node) -> Node:
        return c.narrow(c(op, convert(self, c.dtype), hint=name))

    lowers(name)(rule)


for _name in (
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
):
    _float_unary(_name, _name)


@lowers("abs")
def _abs(c: Maker, self: Node) -> Node:
    return self if self.dtype.kind in ("bool", "uint") else c.narrow(c("abs", wide(self)))


@lowers("neg")
def _neg(c: Maker, self: Node) -> Node:
    return c.narrow(c("neg", wide(self)))


@lowers("sign", "sgn")
def _sign(c: Maker, self: Node) -> Node:
    return self if self.dtype is BOOL else c.narrow(c("sign", wide(self)))


def _step(name: str, op: str) -> None:
    def rule(c: Maker, self: Node) -> Node:
        return c.narrow(c(op, wide(self), hint=name)) if self.dtype.is_float else self

    lowers(name)(rule)


for _name, _op in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("round", "rint")):
    _step(_name, _op)


@lowers("frac")
def _frac(c: Maker, self: Node) -> Node:
    x = wide(self)
    return c.narrow(c("sub", x, c("trunc", x), hint="frac"))


@lowers("reciprocal")
def _reciprocal(c: Maker, self: Node) -> Node:
    x = convert(self, c.dtype)
    return c.narrow(c("div", c.constant(1.0, x.dtype), x, hint="reciprocal"))


@lowers("isnan", "isinf")
def _is_special(c: Maker, self: Node) -> Node:
    name = c.name.split(".")[1]
    return c(name, wide(self)) if self.dtype.is_float else c.constant(False, BOOL, self.shape)


@lowers("add.Tensor", "add.Scalar")
def _add(c: Maker, self: Value, other: Value, alpha: Any = 1) -> Node:
    if c.dtype is BOOL:
        if alpha != 1:
            raise unsupported("a scaled sum of truth values")
        return c("or", *operands(c, self, other))
    a, b = operands(c, self, other, dtype=c.dtype)
    return c.narrow(c("add", a, b if number(alpha) == 1 else c("mul", b, alpha, hint="scaled"), hint="add"))


@lowers("sub.Tensor", "sub.Scalar")
def _sub(c: Maker, self: Value, other: Value, alpha: Any = 1) -> Node:
    a, b = operands(c, self, other, dtype=c.dtype)
    return c.narrow(c("sub", a, b if number(alpha) == 1 else c("mul", b, alpha, hint="scaled"), hint="sub"))


@lowers("rsub.Tensor", "rsub.Scalar")
def _rsub(c: Maker, self: Value, other: Value, alpha: Any = 1) -> Node:
    return _sub(c, other, self, alpha)


@lowers("mul.Tensor", "mul.Scalar")
def _mul(c: Maker, self: Value, other: Value) -> Node:
    a, b = operands(c, self, other, dtype=c.dtype)
    return c("and", a, b, hint="mul") if c.dtype is BOOL else c.narrow(c("mul", a, b))


def _safe_divisor(other: Any, d: DType) -> None:
    """UnsupportedError for an integer division that may trap: by 0, or of the smallest integer by -1."""
    if not d.is_float and (isinstance(other, Node) or number(other) in (0, -1)):
        raise unsupported("an integer division that may trap")


@lowers("div.Tensor", "div.Scalar")
def _div(c: Maker, self: Value, other: Value) -> Node:
    return c.narrow(c("div", *_floats(c, self, other)))


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(c: Maker, self: Value, other: Value, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return _div(c, self, other)
    _safe_divisor(other, c.dtype)
    a, b = operands(c, self, other, dtype=c.dtype)
    if rounding_mode == "floor":
        return c.narrow(c("floordiv", a, b))
    # Eager rounds the quotient to the narrow type before it truncates.
    return c.narrow(c("trunc", rounded(c("div", a, b), c.dtype)) if c.dtype.is_float else c("div", a, b))


@lowers("floor_divide")
def _floor_divide(c: Maker, self: Value, other: Value) -> Node:
    return _div_mode(c, self, other, "floor")


@lowers("remainder.Tensor", "remainder.Scalar", "fmod.Tensor", "fmod.Scalar")
def _remainder(c: Maker, self: Value, other: Value) -> Node:
    _safe_divisor(other, c.dtype)
    return c.narrow(c(c.name.split(".")[1], *operands(c, self, other, dtype=c.dtype, exact=True)))


@lowers("pow.Tensor_Scalar")
def _pow_scalar(c: Maker, self: Node, exponent: Any) -> Node:
    e, x = number(exponent), convert(self, c.dtype)
    if e == 0:
        return c.constant(1, c.dtype, self.shape)
    if e in (1, 2, 3):
        return c.narrow(functools.reduce(lambda a, b: c("mul", a, b, hint="power"), [x] * int(e)))
    if not c.dtype.is_float:
        raise unsupported("a power of integers")
    if e in (0.5, -0.5):
        return c.narrow(c("sqrt" if e > 0 else "rsqrt", x))
    if e in (-1, -2):
        return c.narrow(
            c("div", c.constant(1.0, x.dtype), x if e == -1 else c("mul", x, x, hint="square"), hint="power")
        )
    return c.narrow(c("pow", x, float(e), hint="power"))


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def _pow(c: Maker, self: Value, exponent: Node) -> Node:
    if not c.dtype.is_float:
        raise unsupported("a power of integers")
    return c.narrow(c("pow", *_floats(c, self, exponent), hint="power"))


@lowers("atan2")
def _atan2(c: Maker, self: Node, other: Node) -> Node:
    return c.narrow(c("atan2", *_floats(c, self, other)))


def _comparison(name: str) -> None:
    def rule(c: Maker, self: Node, other: Value) -> Node:
        return c(name, *operands(c, self, other, exact=True))

    lowers(f"{name}.Tensor", f"{name}.Scalar")(rule)


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(_name)


def _logical(name: str) -> None:
    def rule(c: Maker, self: Node, other: Node) -> Node:
        return c(name, build.cast(wide(self), BOOL), build.cast(wide(other), BOOL))

    lowers(f"logical_{name}")(rule)

    def bitwise(c: Maker, self: Value, other: Value) -> Node:
        return c(name, *operands(c, self, other, dtype=c.dtype))

    lowers(*(f"bitwise_{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")))(bitwise)


for _name in ("and", "or", "xor"):
    _logical(_name)


@lowers("logical_not")
def _logical_not(c: Maker, self: Node) -> Node:
    return c("not", build.cast(wide(self), BOOL))


@lowers("bitwise_not")
def _bitwise_not(c: Maker, self: Node) -> Node:
    return c("not", self)


@lowers(
    "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar"
)
def _shift(c: Maker, self: Node, other: Any) -> Node:
    if c.dtype.is_float or c.dtype is BOOL or not 0 <= number(other) < 8 * c.dtype.bytes:
        raise unsupported("a shift past the width of its type")
    return c("shl" if "left" in c.name or "lshift" in c.name else "shr", convert(self, c.dtype), int(other))


@lowers("maximum", "minimum")
def _extremum(c: Maker, self: Node, other: Node) -> Node:
    return _larger(c, c.name.split(".")[1], *operands(c, self, other, dtype=c.dtype))


def _larger(c: Maker, op: str, a: Node, b: Node) -> Node:
    if c.dtype is BOOL:
        return c("or" if op == "maximum" else "and", a, b, hint=op)
    return c.narrow(c(op, a, b))


@lowers("fmax", "fmin")
def _ignoring_nan(c: Maker, self: Node, other: Node) -> Node:
    op = "maximum" if "fmax" in c.name else "minimum"
    a, b = operands(c, self, other, dtype=c.dtype)
    if not c.dtype.is_float:
        return _larger(c, op, a, b)
    return c.narrow(c("where", c("isnan", a), b, c("where", c("isnan", b), a, c(op, a, b))))


@lowers("clamp", "clamp.Tensor")
def _clamp(c: Maker, self: Node, low: Any = None, high: Any = None) -> Node:
    x = convert(self, c.dtype)
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            limit = operands(c, bound, dtype=c.dtype, exact=True)[0]
            # Of two equal operands the second is taken: eager keeps -0 at a plain number 0, and takes a tensor's 0.
            x = c(op, x, limit, hint="clamp") if isinstance(bound, Node) else c(op, limit, x, hint="clamp")
    return c.narrow(x)


@lowers("clamp_min", "clamp_min.Tensor")
def _clamp_min(c: Maker, self: Node, low: Any) -> Node:
    return _clamp(c, self, low)


@lowers("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Maker, self: Node, high: Any) -> Node:
    return _clamp(c, self, None, high)


@lowers("hardtanh")
def _hardtanh(c: Maker, self: Node, low: Any = -1, high: Any = 1) -> Node:
    return _clamp(c, self, low, high)


@lowers("where.self")
def _where(c: Maker, condition: Node, self: Value, other: Value) -> Node:
    a, b = operands(c, self, other, dtype=c.dtype, exact=True)
    return c.narrow(c("where", build.cast(wide(condition), BOOL), a, b))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Maker, self: Node, mask: Node, value: Value) -> Node:
    x, v = operands(c, self, value, dtype=c.dtype, exact=True)
    return c.narrow(c("where", mask, v, x, hint="masked"))


@lowers("lerp.Scalar", "lerp.Tensor")
def _lerp(c: Maker, self: Node, end: Node, weight: Value) -> Node:
    a, b, w = operands(c, self, end, weight, dtype=c.dtype)
    span = c("sub", b, a)
    near = c("add", a, c("mul", w, span))
    far = c("sub", b, c("mul", span, c("sub", c.constant(1.0, w.dtype), w)))
    if not isinstance(weight, Node):
        return c.narrow(near if abs(number(weight)) < 0.5 else far)
    return c.narrow(c("where", c("lt", c("abs", w), 0.5), near, far, hint="lerp"))


@lowers("addcmul")
def _addcmul(c: Maker, self: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, a, b = operands(c, self, tensor1, tensor2, dtype=c.dtype)
    product = c("mul", a, b)
    return c.narrow(c("add", x, product if number(value) == 1 else c("mul", product, value), hint="addcmul"))


@lowers("addcdiv")
def _addcdiv(c: Maker, self: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, a, b = operands(c, self, tensor1, tensor2, dtype=c.dtype)
    quotient = c("div", a if number(value) == 1 else c("mul", a, value), b)
    return c.narrow(c("add", x, quotient, hint="addcdiv"))


@lowers("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
def _xlogy(c: Maker, self: Value, other: Value) -> Node:
    x, y = _floats(c, self, other)
    found = c("where", c("eq", x, 0.0), 0.0, c("mul", x, c("log", y)))
    return c.narrow(c("where", c("isnan", y), y, found, hint="xlogy"))


@lowers("logaddexp")
def _logaddexp(c: Maker, self: Node, other: Node) -> Node:
    a, b = _floats(c, self, other)
    top = c("maximum", a, b)
    smooth = c("add", top, c("log1p", c("exp", c("neg", c("abs", c("sub", a, b))))))
    same = c("and", c("isinf", a), c("eq", a, b))
    return c.narrow(c("where", same, a, smooth, hint="logaddexp"))


@lowers("nan_to_num")
def _nan_to_num(c: Maker, self: Node, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Node:
    if not self.dtype.is_float:
        return self
    x = wide(self)
    largest = _largest(c.dtype)
    bounds = [largest if posinf is None else posinf, -largest if neginf is None else neginf]
    high, low, zero = operands(c, *bounds, 0.0 if nan is None else nan, dtype=c.dtype, exact=True)
    x = c(
        "where", c("isnan", x), zero, c("where", c("eq", x, math.inf), high, c("where", c("eq", x, -math.inf), low, x))
    )
    return c.narrow(x)


def _largest(dtype: DType) -> float:
    """The largest finite number of a floating type."""
    return {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}[
        dtype.name
    ]


@lowers("_to_copy", "prims.convert_element_type")
def _to_copy(c: Maker, self: Node, *_: Any, **__: Any) -> Node:
    return c.narrow(convert(self, c.dtype))


@lowers("clone", "lift_fresh_copy")
def _copy(c: Maker, self: Node, **_: Any) -> Node:
    return self
