"""Scalars among vectors, and names that C++ has. In: small kernels. Out: they compile and compute what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.ops import SHIFTS, TABLE
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Stmt, Store, Value
from tests.emit.test_cpp_math import BINARY, COMPARISONS, INTEGER_BINARY, LEVELS, Typed, pointwise, run

COUNT = 37
BOOLEAN = ("and", "or", "xor", "maximum", "minimum", *COMPARISONS)


def _operators(dtype: DType) -> tuple[str, ...]:
    return BOOLEAN if dtype is BOOL else BINARY if dtype.is_float else (*INTEGER_BINARY, *sorted(SHIFTS))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [True, False], ids=["scalar first", "scalar second"])
@pytest.mark.parametrize("dtype", [F32, F64, I64, I32, I16, I8, U8, BOOL], ids=str)
def test_one_operand_may_be_the_same_in_every_lane(dtype: DType, first: bool, level: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2 if dtype is BOOL else 7, COUNT).astype(dtype.numpy)
    one = np.array([1 if dtype is BOOL else 3], dtype.numpy)
    axis, ops = Axis("i", COUNT, Role.GRID, 16), _operators(dtype)
    same, each = Value("same", dtype, ()), Value("each", dtype, ("i",))
    body: list[Stmt] = [Load(same, "same", 0 * axis.symbol), Load(each, "each", axis.symbol)]
    outs = []
    for k, op in enumerate(ops):
        outs.append(Param(f"out{k}", BOOL if op in COMPARISONS else dtype, (COUNT,), (1,), "out"))
        y = Value(f"y{k}", outs[-1].dtype, ("i",))
        body += [Let(y, op, (same, each) if first else (each, same)), Store(f"out{k}", axis.symbol, y)]
    ins = (Param("same", dtype, (1,), (1,)), Param("each", dtype, (COUNT,), (1,)))
    results = run(Kernel(f"mixed_{dtype}", (*ins, *outs), (axis,), tuple(body)), [one, x], level)
    left, right = (np.repeat(one, COUNT), x) if first else (x, np.repeat(one, COUNT))
    for op, out, got in zip(ops, outs, results, strict=True):
        expected = TABLE[op].meaning(Typed(out.dtype), [left, right], False)
        np.testing.assert_allclose(got.astype(float), np.asarray(expected).astype(float), rtol=1e-6, err_msg=op)


@pytest.mark.parametrize("op", ["cast", "round"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_narrow_constant_fills_its_lanes(dtype: DType, op: str) -> None:
    axis = Axis("i", COUNT, Role.GRID, 16)
    half, kept = Value("half", F32, ()), Value("kept", F32 if op == "round" else dtype, ("i",))
    fill = Let(kept, op, (half,), (("to", str(dtype)),) if op == "round" else ())
    body = (Let(half, "const", (), (("value", 0.5),)), fill, Store("out", axis.symbol, kept))
    (got,) = run(Kernel("filled", (Param("out", dtype, (COUNT,), (1,), "out"),), (axis,), body), [])
    assert np.array_equal(got.view(dtype.numpy).astype(np.float32), np.full(COUNT, 0.5, np.float32))


@pytest.mark.parametrize("name", ["std", "exp", "and", "gather", "load", "div", "main_"])
def test_a_kernel_may_be_called_what_the_library_calls_its_own(name: str) -> None:
    x = np.linspace(-3, 3, COUNT)
    (got,) = run(replace(pointwise([("exp", F64)], F64, COUNT), name=name), [x])
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-14)
