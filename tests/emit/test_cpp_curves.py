"""Products with a sigmoid as quotients. In: small kernels. Out: their text, and values against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.emit.cpp import emit
from interfuse.emit.cpp_curves import quotients
from interfuse.ir.dtypes import F32
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Stmt, Store, Value, walk
from tests.emit.test_cpp_math import LEVELS, points, run

I = Axis("i", 7, Role.GRID, 16)  # noqa: E741
X, SQUARE, TERM, SLOPE, INNER, CURVE, OUT = (
    Value(name, F32, ("i",)) for name in ("x", "square", "term", "slope", "inner", "curve", "out")
)
A, B = Value("a", F32), Value("b", F32)
LINE = 2 * math.sqrt(2 / math.pi)


def gelu(count: int, *more: Stmt) -> Kernel:
    """The tanh form of GELU, with further statements before the product."""
    axis = Axis("i", count, Role.GRID, 16)
    body = (
        Load(X, "x", axis.symbol),
        Let(SQUARE, "mul", (X, X)),
        Let(A, "const", attrs=(("value", 0.044715 * LINE),)),
        Let(TERM, "mul", (SQUARE, A)),
        Let(B, "const", attrs=(("value", LINE),)),
        Let(SLOPE, "add", (TERM, B)),
        Let(INNER, "mul", (X, SLOPE)),
        Let(CURVE, "sigmoid", (INNER,)),
        *more,
        Let(OUT, "mul", (X, CURVE)),
        Store("out", axis.symbol, OUT),
    )
    params = (Param("x", F32, (count,), (1,)), *(Param(n, F32, (count,), (1,), "out") for n in ("out", "other")))
    return Kernel("gelu", params[: 3 if more else 2], (axis,), body)


def operators(kernel: Kernel) -> list[str]:
    return [s.op for s in walk(kernel.body) if isinstance(s, Let) and s.op != "const"]


def test_a_product_with_a_curve_is_a_quotient_of_as_many_operations() -> None:
    made = quotients(gelu(7))
    assert operators(made) == ["mul", "mul", "add", "mul", "exp2", "add", "div"]
    numbers = [dict(s.attrs)["value"] for s in walk(made.body) if isinstance(s, Let) and s.op == "const"]
    assert numbers == pytest.approx([-0.044715 * LINE * math.log2(math.e), -LINE * math.log2(math.e), 1.0])
    assert "sigmoid_(" not in emit(gelu(7), "avx512") and "exp2_(" in emit(gelu(7), "avx512")


@pytest.mark.parametrize("of", [CURVE, INNER, SLOPE, TERM], ids=lambda v: v.name)
def test_what_another_statement_sees_stays_as_it_is(of: Value) -> None:
    kernel = gelu(7, Store("other", I.symbol, of))
    assert quotients(kernel) is kernel


def test_a_curve_without_numbers_inside_stays_a_sigmoid() -> None:
    plain = gelu(7)
    body = tuple(s for s in plain.body if not isinstance(s, Let) or s.out in (CURVE, OUT))
    body = tuple(Let(CURVE, "sigmoid", (X,)) if isinstance(s, Let) and s.out is CURVE else s for s in body)
    kernel = Kernel("silu", plain.params, plain.axes, body)
    assert quotients(kernel) is kernel


@pytest.mark.parametrize("level", LEVELS)
def test_quotients_are_as_near_as_the_product_and_keep_special_values(level: str) -> None:
    x = points()
    (got,) = run(gelu(x.size), [x], level)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        z = LINE * (wide + 0.044715 * wide**3)
        exact = np.where(z < -709, np.where(np.isinf(wide), np.nan, -0.0), wide / (1 + np.exp(-np.maximum(z, -709))))
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.array_equal(np.isposinf(got), np.isposinf(exact.astype(np.float32)))
    use = np.isfinite(exact)
    # What a last place of x changes, and 0 where the power is too large, as eager has it.
    bound = 2.0**-23 * (2 + 3 * np.abs(np.clip(z[use], -90, 90))) * np.abs(exact[use]) + 2.0**-124
    worst = np.argmax(np.abs(got[use] - exact[use]) / bound)
    assert np.abs(got[use] - exact[use])[worst] <= bound[worst], (x[use][worst], got[use][worst], exact[use][worst])
