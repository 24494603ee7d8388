"""The operator table. In: nothing. Out: one row an operator, banded by stage, with everything that a stage needs to
know.

A row gives: band, number of inputs, type rule, algebraic facts, cost class (flops an element), numpy meaning, and the
Triton and C++ text with {0}, {1}, ... for operands, or the reason why there is none. Overflow of integers wraps; floats
follow IEEE 754: NaN propagates through every operator but `where` and the logical ones, also through minimum and
maximum. Narrow floats never reach arithmetic: capture widens them to f32 and puts `round` after each operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interfuse.ir import numpy_meaning as m
from interfuse.ir.dtypes import BOOL, DType

ELEMENTWISE, SOURCE, MOVEMENT, JOIN, INDIRECT, REDUCE, SCAN, CONTRACTION, LIBRARY = (
    "elementwise",
    "source",
    "movement",
    "join",
    "indirect",
    "reduce",
    "scan",
    "contraction",
    "library",
)

BY_LIBRARY = "none: runs through the library"
AS_INDEX = "none: becomes index arithmetic of its consumer"
AS_PARTS = "none: becomes a choice between parts, each read only where it holds"
AS_LOAD = "none: becomes a load whose index is a value"
BY_STATEMENT = "none: written as a statement of its own by the emitter"


@dataclass(frozen=True)
class Op:
    """One row of the table. `facts` are words: commutative, associative, discrete (a step in its inputs), exact."""

    name: str
    band: str
    arity: int | None
    result: str
    meaning: Callable[..., Any]
    cost: int
    triton: str
    cpp: str
    facts: frozenset[str] = frozenset()


def result_type(op: Op, inputs: tuple[DType, ...]) -> DType | None:
    """The row's type rule on input types: "first" or "second" input's, "bool", or None where the node states its
    own.
    """
    if op.result == "first":
        return inputs[0]
    if op.result == "second":
        return inputs[1]
    return BOOL if op.result == "bool" else None


def _row(
    name: str,
    band: str,
    arity: int | None,
    result: str,
    meaning: Callable[..., Any],
    cost: int,
    triton: str,
    cpp: str,
    *facts: str,
) -> Op:
    return Op(name, band, arity, result, meaning, cost, triton, cpp, frozenset(facts))


def _call(
    name: str,
    arity: int,
    meaning: Callable[..., Any],
    cost: int,
    triton: str = "",
    cpp: str = "",
    *facts: str,
    result: str = "first",
) -> Op:
    """An element-wise operator that both backends write as a call of a helper, by default one of its own name."""
    plain = f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"
    return _row(name, ELEMENTWISE, arity, result, meaning, cost, triton or plain, cpp or plain, *facts)


def _infix(
    name: str,
    sign: str,
    meaning: Callable[..., Any],
    *facts: str,
    result: str = "first",
    triton: str = "",
    cpp: str = "",
) -> Op:
    plain = f"{{0}} {sign} {{1}}"
    return _row(name, ELEMENTWISE, 2, result, meaning, 1, triton or plain, cpp or plain, *facts)


def _reduction(name: str, meaning: Callable[..., Any], cost: int = 1, *facts: str, result: str = "first") -> Op:
    return _row(name, REDUCE, 1, result, meaning, cost, BY_STATEMENT, BY_STATEMENT, *facts)


_UNARY = (
    # The value itself in a buffer of its own: what eager's copies do. Free inside a kernel.
    _call("copy", 1, m.copy, 0, "{0}", "{0}", "exact"),
    _call("neg", 1, m.neg, 1, "{0} * -1.0", "-{0}", "exact"),
    _call("abs", 1, m.absolute, 1, "tl.abs({0})", "abs_({0})", "exact"),
    _call("sign", 1, m.sign, 1, "", "", "discrete"),
    _call("sqrt", 1, m.sqrt, 4, "tl.sqrt_rn({0})", "sqrt_({0})"),
    _call("rsqrt", 1, m.rsqrt, 4, "tl.rsqrt({0})", "rsqrt_({0})"),
    _call("exp", 1, m.exp, 8, "libdevice.exp({0})", "exp_({0})"),
    _call("exp2", 1, m.exp2, 6, "libdevice.exp2({0})", "exp2_({0})"),
    _call("expm1", 1, m.expm1, 12, "libdevice.expm1({0})", "expm1_({0})"),
    _call("log", 1, m.log, 10, "libdevice.log({0})", "log_({0})"),
    _call("log2", 1, m.log2, 10, "libdevice.log2({0})", "log2_({0})"),
    _call("log10", 1, m.log10, 10, "libdevice.log10({0})", "log10_({0})"),
    _call("log1p", 1, m.log1p, 12, "libdevice.log1p({0})", "log1p_({0})"),
    _call("sin", 1, m.sin, 12, "libdevice.sin({0})", "sin_({0})"),
    _call("cos", 1, m.cos, 12, "libdevice.cos({0})", "cos_({0})"),
    _call("tan", 1, m.tan, 16, "libdevice.tan({0})", "tan_({0})"),
    _call("asin", 1, m.asin, 16, "libdevice.asin({0})", "asin_({0})"),
    _call("acos", 1, m.acos, 16, "libdevice.acos({0})", "acos_({0})"),
    _call("atan", 1, m.atan, 16, "libdevice.atan({0})", "atan_({0})"),
    _call("sinh", 1, m.sinh, 16, "libdevice.sinh({0})", "sinh_({0})"),
    _call("cosh", 1, m.cosh, 16, "libdevice.cosh({0})", "cosh_({0})"),
    _call("tanh", 1, m.tanh, 12, "libdevice.tanh({0})", "tanh_({0})"),
    _call("sigmoid", 1, m.sigmoid, 10, "sigmoid({0})", "sigmoid_({0})"),
    _call("erf", 1, m.erf, 14, "tl.erf({0})", "erf_({0})"),
    # (1 + erf(x / sqrt(2))) / 2, one operator so that nothing need cancel where x is far below zero.
    _call("normal_cdf", 1, m.normal_cdf, 16, "normal_cdf({0})", "normal_cdf_({0})"),
    _call("floor", 1, m.floor, 1, "tl.floor({0})", "floor_({0})", "discrete"),
    _call("ceil", 1, m.ceil, 1, "tl.ceil({0})", "ceil_({0})", "discrete"),
    _call("trunc", 1, m.trunc, 1, "libdevice.trunc({0})", "trunc_({0})", "discrete"),
    _call("rint", 1, m.rint, 1, "libdevice.nearbyint({0})", "rint_({0})", "discrete"),
    _call("isnan", 1, m.isnan, 1, "{0} != {0}", "isnan_({0})", "discrete", result="bool"),
    _call("isinf", 1, m.isinf, 1, "tl.abs({0}) == float('inf')", "isinf_({0})", "discrete", result="bool"),
    _call("not", 1, m.invert, 1, "~{0}", "not_({0})", "exact"),
)

_BINARY = (
    _infix("add", "+", m.add, "commutative", "associative"),
    _infix("sub", "-", m.sub),
    _infix("mul", "*", m.mul, "commutative", "associative"),
    _call("div", 2, m.div, 4, "tl.div_rn({0}, {1})", "{0} / {1}"),
    _call("floordiv", 2, m.floordiv, 8, "", "floordiv_({0}, {1})", "discrete"),
    _call("remainder", 2, m.remainder, 8, "", "remainder_({0}, {1})", "discrete"),
    _call("fmod", 2, m.fmod, 8, "libdevice.fmod({0}, {1})", "fmod_({0}, {1})", "discrete"),
    _call("pow", 2, m.power, 24, "libdevice.pow({0}, {1})", "pow_({0}, {1})"),
    _call("atan2", 2, m.atan2, 20, "libdevice.atan2({0}, {1})", "atan2_({0}, {1})"),
    _call(
        "maximum",
        2,
        m.maximum,
        1,
        "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "max_({0}, {1})",
        "commutative",
        "associative",
        "exact",
    ),
    _call(
        "minimum",
        2,
        m.minimum,
        1,
        "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "min_({0}, {1})",
        "commutative",
        "associative",
        "exact",
    ),
    _infix("and", "&", m.bit_and, "commutative", "associative", "exact"),
    _infix("or", "|", m.bit_or, "commutative", "associative", "exact"),
    _infix("xor", "^", m.bit_xor, "commutative", "associative", "exact"),
    _infix("shl", "<<", m.shift_left, "exact", triton="shift_left({0}, {1})"),
    _infix("shr", ">>", m.shift_right, "exact", triton="shift_right({0}, {1})"),
    *(
        _infix(name, sign, meaning, "discrete", result="bool", cpp=f"{name}_({{0}}, {{1}})")
        for name, sign, meaning in (
            ("lt", "<", m.lt),
            ("le", "<=", m.le),
            ("gt", ">", m.gt),
            ("ge", ">=", m.ge),
            ("eq", "==", m.eq),
            ("ne", "!=", m.ne),
        )
    ),
)

_OTHER = (
    _row("where", ELEMENTWISE, 3, "second", m.where, 1, "tl.where({0}, {1}, {2})", "where_({0}, {1}, {2})", "exact"),
    _row("cast", ELEMENTWISE, 1, "stated", m.cast, 1, BY_STATEMENT, BY_STATEMENT),
    _row("round", ELEMENTWISE, 1, "first", m.round_to, 1, BY_STATEMENT, BY_STATEMENT),
    _row("input", SOURCE, 0, "stated", m.unreachable, 0, BY_STATEMENT, BY_STATEMENT),
    _row("const", SOURCE, 0, "stated", m.const, 0, BY_STATEMENT, BY_STATEMENT, "exact"),
    _row("iota", SOURCE, 0, "stated", m.iota, 1, BY_STATEMENT, BY_STATEMENT, "exact"),
    _row("reshape", MOVEMENT, 1, "first", m.reshape, 0, AS_INDEX, AS_INDEX, "exact"),
    _row("permute", MOVEMENT, 1, "first", m.permute, 0, AS_INDEX, AS_INDEX, "exact"),
    _row("expand", MOVEMENT, 1, "first", m.expand, 0, AS_INDEX, AS_INDEX, "exact"),
    _row("slice", MOVEMENT, 1, "first", m.take_slice, 0, AS_INDEX, AS_INDEX, "exact"),
    _row("concat", JOIN, None, "first", m.concat, 0, AS_PARTS, AS_PARTS, "exact"),
    _row("pad", JOIN, 1, "first", m.pad, 0, AS_PARTS, AS_PARTS, "exact"),
    _row("gather", INDIRECT, 2, "first", m.gather, 1, AS_LOAD, AS_LOAD, "exact"),
    _reduction("sum", m.reduce_sum),
    _reduction("prod", m.reduce_prod),
    _reduction("max", m.reduce_max, 1, "exact"),
    _reduction("min", m.reduce_min, 1, "exact"),
    _reduction("any", m.reduce_any, 1, "exact", result="bool"),
    _reduction("all", m.reduce_all, 1, "exact", result="bool"),
    _reduction("mean", m.reduce_mean),
    _reduction("variance", m.reduce_variance, 4),
    # What lowering spells variances and softmaxes with where a row is read once: capture makes neither.
    _reduction("spread", m.reduce_spread, 4),
    _reduction("expsum", m.reduce_expsum, 12),
    *(
        _row(
            name,
            REDUCE,
            1,
            "stated",
            meaning,
            2,
            BY_STATEMENT,
            BY_STATEMENT,
            "discrete",
        )
        for name, meaning in (("argmax", m.argmax), ("argmin", m.argmin))
    ),
    *(
        _row(name, SCAN, 1, "first", meaning, 2, BY_STATEMENT, BY_STATEMENT)
        for name, meaning in (("cumsum", m.cumsum), ("cumprod", m.cumprod), ("cummax", m.cummax), ("cummin", m.cummin))
    ),
    _row("linear", CONTRACTION, None, "first", m.linear, 0, BY_LIBRARY, BY_LIBRARY),
    _row("matmul", CONTRACTION, 2, "first", m.matmul, 0, BY_LIBRARY, BY_LIBRARY),
    _row("library", LIBRARY, None, "stated", m.unreachable, 0, BY_LIBRARY, BY_LIBRARY),
    _row("item", LIBRARY, 1, "stated", m.unreachable, 0, BY_LIBRARY, BY_LIBRARY),
)

TABLE: dict[str, Op] = {op.name: op for op in (*_UNARY, *_BINARY, *_OTHER)}
"""Every operator by name."""


def named(band: str) -> frozenset[str]:
    """The names of the operators in a band."""
    return frozenset(op.name for op in TABLE.values() if op.band == band)


def with_fact(fact: str) -> frozenset[str]:
    """The names of the operators that have a fact."""
    return frozenset(op.name for op in TABLE.values() if fact in op.facts)


MOVES, JOINS, POINTWISE = named(MOVEMENT), named(JOIN), named(ELEMENTWISE)
REDUCES, SCANS = named(REDUCE), named(SCAN)
DISCRETE = with_fact("discrete")
COMPARES = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))

FLOAT_ONLY = frozenset(
    (
        *(op.name for op in _UNARY if op.name not in ("copy", "neg", "abs", "sign", "not")),
        "atan2",
        "mean",
        "variance",
        "spread",
        "expsum",
        "linear",
        "round",
    )
)
"""Operators on floats alone."""

BITWISE, SHIFTS = frozenset(("not", "and", "or", "xor")), frozenset(("shl", "shr"))
"""Operators on bool and integers; and on integers alone."""

NUMBERS_ONLY = frozenset(
    ("neg", "sub", "div", "floordiv", "remainder", "fmod", "pow", "sum", "prod", "cumsum", "cumprod")
)
"""Operators on anything but bool: PyTorch has no such operator on bool, or counts in integers, which a cast must
spell.
"""
