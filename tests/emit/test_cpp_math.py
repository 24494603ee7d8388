"""The prelude's functions against NumPy. In: every exponent, ranges that matter, special values. Out: errors in ulp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from interfuse.base.errors import UnsupportedError
from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit.cpp import emit
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.ops import TABLE
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Stmt, Store, Value
from interfuse.run.cpu import load

LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-39,
        -1e-39,
        1.1754944e-38,
        -1.1754944e-38,
        3.4028235e38,
        -3.4028235e38,
        1.0,
        -1.0,
        2.0,
        0.5,
        -0.5,
        88.72284,
        88.7229,
        -87.33655,
        -103.9,
        -104.5,
    ]
)

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


# Operator: (meaning in float64, greatest error in ulp).
UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.1),
    "exp2": (np.exp2, 1.1),
    "expm1": (np.expm1, 1.5),
    "log": (np.log, 1.0),
    "log2": (np.log2, 2.0),
    "log10": (np.log10, 2.0),
    "log1p": (np.log1p, 2.0),
    "tanh": (np.tanh, 2.3),
    "erf": (_erf, 1.5),
    "sigmoid": (_sigmoid, 2.5),
    "sqrt": (np.sqrt, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.0),
    "asin": (np.arcsin, 1.0),
    "acos": (np.arccos, 1.0),
    "atan": (np.arctan, 1.0),
    "sinh": (np.sinh, 2.5),
    "cosh": (np.cosh, 1.5),
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "trunc": (np.trunc, 0.0),
    "rint": (np.rint, 0.0),
    "abs": (np.abs, 0.0),
    "neg": (np.negative, 0.0),
    "sign": (lambda x: np.where(np.isnan(x), 0, np.sign(x)), 0.0),
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "pow",
    "atan2",
    "fmod",
    "remainder",
    "floordiv",
    *COMPARISONS,
)
INTEGER_UNARY, INTEGER_BINARY = (
    ("neg", "abs", "sign", "not"),
    ("add", "sub", "mul", "maximum", "minimum", "and", "or", "xor", *COMPARISONS),
)


def pointwise(ops: Sequence[tuple[str, DType]], dtype: DType, count: int, arity: int = 1, lanes: bool = True) -> Kernel:
    """out_k = op_k(x0, ...) for each (op, type of its result): as vectors or, without lanes, one element a program."""
    axis = Axis("i", count, Role.GRID, 16 if lanes else 1)
    args = tuple(Value(f"x{k}", dtype, ("i",)) for k in range(arity))
    body: list[Stmt] = [Load(a, a.name, axis.symbol) for a in args]
    outs = [Param(f"out{k}", out, (count,), (1,), "out") for k, (_, out) in enumerate(ops)]
    for k, (op, out) in enumerate(ops):
        y = Value(f"y{k}", out, ("i",))
        body += [Let(y, op, args), Store(f"out{k}", axis.symbol, y)]
    params = (*(Param(a.name, dtype, (count,), (1,)) for a in args), *outs)
    return Kernel(f"ops_{dtype}_{arity}", params, (axis,), tuple(body))


@lru_cache(maxsize=1)
def _cache():  # type: ignore[no-untyped-def]
    return open_cache(current())


def run(kernel: Kernel, inputs: Sequence[np.ndarray | torch.Tensor], level: str = LEVELS[0]) -> list[np.ndarray]:
    """The outputs of a kernel."""
    with override(vector=level) as knobs:
        (artifact,) = build([(kernel.name, emit(kernel, level))], knobs, _cache())
    outs = [torch.full(p.shape, 77, dtype=to_torch(p.dtype)) for p in kernel.params if p.mode == "out"]
    load(artifact, kernel)([*map(torch.as_tensor, inputs), *outs])
    return [o.view(torch.int16).numpy() if o.dtype in (torch.bfloat16, torch.float16) else o.numpy() for o in outs]


def points() -> np.ndarray:
    """Both signs of 24 values in every float32 exponent, a dense range around zero, and special values."""
    rng = np.random.default_rng(0)
    bits = (np.arange(0, 255, dtype=np.uint32)[:, None] << 23) | rng.integers(0, 1 << 23, (255, 24), dtype=np.uint32)
    wide = bits.astype(np.uint32).view(np.float32).ravel()
    dense = np.concatenate([rng.uniform(-a, a, 4000) for a in (0.1, 1, 2, 5, 20, 104)])
    near_one = 1 + rng.uniform(-0.4, 0.5, 4000)
    return np.concatenate([wide, -wide, dense, near_one, SPECIAL]).astype(np.float32)


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the exact result; NaN and infinities must stand where they should."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(got.dtype)
        assert np.array_equal(np.isnan(got), np.isnan(nearest))
        same = (got == nearest) | np.isnan(got)
        unit = np.spacing(np.minimum(np.abs(nearest), np.finfo(got.dtype).max)).astype(np.float64)
        return np.where(same, 0.0, np.abs(got.astype(np.float64) - exact) / unit)


@pytest.mark.parametrize("level", LEVELS)
def test_normal_cdf_is_as_near_as_eagers(level: str) -> None:
    """Eager adds 1 to erf: its error is a last place of 1, however small the result."""
    x = points()
    (got,) = run(pointwise([("normal_cdf", F32)], F32, x.size), [x], level)
    exact = np.array([0.5 * math.erfc(-math.sqrt(0.5) * e) for e in x.astype(np.float64)])
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.nanmax(np.abs(got - exact)) <= 2.0**-23


@pytest.mark.parametrize("level", LEVELS)
def test_unary_functions_stay_within_their_ulps(level: str) -> None:
    x = points()
    results = run(pointwise([(op, F32) for op in UNARY], F32, x.size), [x], level)
    for (op, (meaning, bound)), got in zip(UNARY.items(), results, strict=True):
        outside = np.abs(x) >= 1e4 if op in ("sin", "cos", "tan") else (x <= -88.7) & (op == "sigmoid")
        use = ~outside
        with np.errstate(all="ignore"):
            error = ulps(got[use], meaning(x[use].astype(np.float64)))
        if op == "sigmoid":
            assert (got[x <= -88.7] < 1e-38).all()  # 0 where e^-x is too large, as eager has it
        worst = np.argmax(error)
        # Without fused multiply-add the argument reductions lose a little more.
        assert error[worst] <= bound + (0.5 if level == "portable" and bound else 0.0), (
            f"{op}({x[use][worst]!r}) = {got[use][worst]!r} is {error[worst]:.2f} ulp off"
        )


class Typed:
    """Stands for an IR node where only its type matters."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype


@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_binary_operators_and_comparisons(dtype: DType, lanes: bool) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.repeat(SPECIAL, SPECIAL.size), rng.normal(size=500) * 3]).astype(dtype.numpy)
    y = np.concatenate([np.tile(SPECIAL, SPECIAL.size), rng.normal(size=500)]).astype(dtype.numpy)
    ops = [(op, BOOL if op in COMPARISONS else dtype) for op in BINARY]
    for (op, out), got in zip(ops, run(pointwise(ops, dtype, x.size, 2, lanes), [x, y]), strict=True):
        exact = op not in ("pow", "atan2")
        expected = TABLE[op].meaning(Typed(out), [x, y] if exact else [x.astype(float), y.astype(float)], not exact)
        if op == "floordiv":  # NumPy and PyTorch differ where the quotient is not finite
            expected = torch.floor_divide(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        if out is BOOL:
            assert np.array_equal(got, expected), op
        else:
            error = ulps(got, expected.astype(np.float64))
            worst = np.argmax(error)
            assert error[worst] <= (0.0 if exact else 1.1), (op, x[worst], y[worst], got[worst])


@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
@pytest.mark.parametrize("dtype", [I64, I32, I16, I8, U8], ids=str)
def test_integers_are_exact_and_wrap(dtype: DType, lanes: bool) -> None:
    info = np.iinfo(dtype.numpy)
    x = np.array([0, 1, 2, 5, info.max, info.min, info.max - 1, 77 % info.max, 3] * 4, dtype=dtype.numpy)
    y = np.array([1, 0, 3, info.max, info.max, info.min, 2, 5, 7, 9, 11, 6] * 3, dtype=dtype.numpy)
    for ops, arity in ((INTEGER_UNARY, 1), (INTEGER_BINARY, 2)):
        typed = [(op, BOOL if op in COMPARISONS else dtype) for op in ops]
        results = run(pointwise(typed, dtype, x.size, arity, lanes), [x, y][:arity])
        for (op, out), got in zip(typed, results, strict=True):
            expected = TABLE[op].meaning(Typed(out), [x, y][:arity], False)
            assert np.array_equal(got, expected), (op, got, expected)


@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
def test_shifts_follow_pytorch_beyond_the_width(lanes: bool) -> None:
    x = np.array([1, -1, 5, -7, 1 << 30, -(1 << 31), 3, 3], dtype=np.int32)
    count = np.array([0, 31, 32, 40, 1, 31, 2, 33], dtype=np.int32)
    left, right = run(pointwise([("shl", I32), ("shr", I32)], I32, x.size, 2, lanes), [x, count])
    assert left.tolist() == (torch.from_numpy(x) << torch.from_numpy(count)).tolist()
    assert right.tolist() == (torch.from_numpy(x) >> torch.from_numpy(count)).tolist()


@pytest.mark.parametrize("op", ["div", "floordiv", "remainder", "fmod"])
def test_integer_division_is_left_to_the_library(op: str) -> None:
    with pytest.raises(UnsupportedError, match="divide by zero"):
        emit(pointwise([(op, I32)], I32, 8, 2), "portable")


@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
def test_casts_agree_with_pytorch(lanes: bool) -> None:
    floats = torch.tensor([0.0, -0.0, 1.5, -1.5, 2.5, 100.7, -100.7, 0.3, 77.0, 12.25, 3.0], dtype=torch.float64)
    types = (F64, F32, I64, I32, I16, I8, BOOL)
    for source in types:
        x, targets = floats.to(to_torch(source)), [t for t in types if t is not source]
        outs = run(pointwise([("cast", t) for t in targets], source, x.numel(), 1, lanes), [x])
        for target, got in zip(targets, outs, strict=True):
            assert got.tolist() == x.to(to_torch(target)).tolist(), (source, target)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
def test_narrow_floats_round_to_nearest_even_and_back(lanes: bool, level: str) -> None:
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (BF16, F16):
        exact = codes.view(to_torch(dtype)).float()
        halfway = ((exact + exact.roll(-1)) / 2).numpy()
        ends = np.float32([65504, 65519.99, 65520, 65536, 2.0**-24, 2.0**-25, 2.0**-14])
        x = np.concatenate([points(), halfway, ends])
        expected = torch.from_numpy(x).to(to_torch(dtype))
        kernel = pointwise([("cast", dtype), ("cast", F32)], F32, x.size, 1, lanes)
        back_again = Let(Value("y1", F32, ("i",)), "cast", (Value("y0", dtype, ("i",)),))
        kernel = replace(kernel, body=(*kernel.body[:3], back_again, *kernel.body[-1:]))
        bits, held = run(kernel, [x], level)
        usual = ~expected.isnan().numpy()
        assert np.array_equal(bits[usual], expected.view(torch.int16).numpy()[usual])
        assert np.array_equal(held, expected.float().numpy(), equal_nan=True)
        (back,) = run(pointwise([("cast", F32)], dtype, codes.numel(), 1, lanes), [codes.view(to_torch(dtype))], level)
        assert np.array_equal(back, exact.numpy(), equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_doubles_are_those_of_numpy_but_for_their_last_places(level: str) -> None:
    rng = np.random.default_rng(2)
    wide = np.exp2(rng.uniform(-1070, 1020, 500)) * rng.choice([-1, 1], 500)
    x = np.concatenate([rng.normal(size=300) * 10, rng.uniform(-745, 712, 300), wide, SPECIAL])
    results = run(pointwise([(op, F64) for op in UNARY], F64, x.size), [x], level)
    for (op, (meaning, _)), got in zip(UNARY.items(), results, strict=True):
        with np.errstate(all="ignore"):
            expected = meaning(x)
        # Beyond that, NumPy's and SLEEF's reductions of angles differ by less than a double tells.
        use = np.abs(x) < 1e9 if op in ("sin", "cos", "tan") else np.ones(x.size, bool)
        assert np.array_equal(np.isnan(got), np.isnan(expected)), op
        close = np.isclose(got, expected, rtol=2e-15, atol=1e-300) | np.isnan(got) | ~use
        assert close.all(), (op, x[~close][:3], got[~close][:3])


def test_without_sleef_lanes_are_single_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "sleef", lambda: None)
    assert "-DSLEEF" not in compilers.flags(current())
    x = points()[::7].copy()
    ops = ("tan", "atan", "sinh")
    for (op, got), dtype in ((pair, d) for d in (F32, F64) for pair in _of(ops, x, d)):
        meaning, _ = UNARY[op]
        with np.errstate(all="ignore"):
            assert np.nanmax(ulps(got, meaning(x.astype(np.float64)))[np.abs(x) < 1e4]) <= 2.5, (op, dtype)


def _of(ops: Sequence[str], x: np.ndarray, dtype: DType) -> list[tuple[str, np.ndarray]]:
    kernel = pointwise([(op, dtype) for op in ops], dtype, x.size)
    return list(zip(ops, run(kernel, [x.astype(dtype.numpy)]), strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_what_a_division_leaves_is_exact_however_large_the_quotient(dtype: DType, level: str) -> None:
    rng = np.random.default_rng(4)
    most = 126 if dtype == F32 else 1020
    small, large = (rng.uniform(1, 2, 4000) * np.exp2(rng.uniform(-most, most, 4000)) for _ in range(2))
    x, y = (a.astype(dtype.numpy) * rng.choice([-1, 1], 4000).astype(dtype.numpy) for a in (large, small))
    (got,) = run(pointwise([("fmod", dtype)], dtype, x.size, 2), [x, y], level)
    assert np.array_equal(got, np.fmod(x, y))


def test_one_element_is_computed_as_a_lane_is() -> None:
    x = points()[::37].copy()
    ops = [(op, F32) for op, (_, bound) in UNARY.items() if bound]
    vectors, scalars = (run(pointwise(ops, F32, x.size, 1, lanes), [x]) for lanes in (True, False))
    for (op, _), a, b in zip(ops, vectors, scalars, strict=True):
        assert np.array_equal(a, b, equal_nan=True), op


FROM_THE_LIBRARY = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")


@pytest.mark.parametrize("lanes", [True, False], ids=["vector", "scalar"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_function_of_a_function_is_the_two_in_turn(dtype: DType, lanes: bool) -> None:
    """Compilers know identities such as cos(atan(x)), which lose NaN and round otherwise."""
    x = np.concatenate([np.random.default_rng(3).normal(size=70), SPECIAL]).astype(dtype.numpy)
    count = len(FROM_THE_LIBRARY)
    plain = pointwise([(op, dtype) for op in FROM_THE_LIBRARY], dtype, x.size, count, lanes)
    loads, lets = plain.body[:count], [s for s in plain.body if isinstance(s, Let)]
    stores = [s for s in plain.body if isinstance(s, Store)]
    # Each from an input of its own: what has several readers is kept from most identities.
    own = [replace(let, args=(load.out,)) for let, load in zip(lets, loads, strict=True)]
    firsts = run(replace(plain, body=(*loads, *own, *stores)), [x] * count)
    for first, held in zip(FROM_THE_LIBRARY, firsts, strict=True):
        inner = [Let(Value(f"inner{k}", dtype, ("i",)), first, s.args) for k, s in enumerate(own)]
        outer = [replace(s, args=(i.out,)) for s, i in zip(own, inner, strict=True)]
        together = run(replace(plain, body=(*loads, *inner, *outer, *stores)), [x] * count)
        apart = run(replace(plain, body=(*loads, *own, *stores)), [held] * count)
        for second, a, b in zip(FROM_THE_LIBRARY, together, apart, strict=True):
            assert np.array_equal(a, b, equal_nan=True), f"{second}({first}(x))"
