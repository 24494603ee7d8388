"""The NumPy meaning of every operator against PyTorch. In: special values of every type. Out: the same values, signs of
zero too.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

from interfuse.base.errors import GraphError
from interfuse.ir import build as b
from interfuse.ir.dtypes import ALL, BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.index import sym
from interfuse.ir.node import make
from interfuse.ir.ops import ELEMENTWISE, TABLE

FLOATS = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        -7.25,
        1e-3,
        88.0,
        -104.0,
        1e10,
        -3e38,
        1e-40,
        np.inf,
        -np.inf,
        np.nan,
    ]
)
INTS = np.array([0, 1, -1, 2, 3, -5, 7, 63, 100, -128, 127])
TORCH = {
    BOOL: torch.bool,
    U8: torch.uint8,
    I8: torch.int8,
    I16: torch.int16,
    I32: torch.int32,
    I64: torch.int64,
    F16: torch.float16,
    BF16: torch.bfloat16,
    F32: torch.float32,
    F64: torch.float64,
    F8E4M3: torch.float8_e4m3fn,
    F8E5M2: torch.float8_e5m2,
}
NUMBERS, INTEGERS = (F32, F64, I32, I64, U8), (I32, I64, U8)
WIDE = (F32, F64)
ANY = (*NUMBERS, BOOL)


def _data(dtype: DType) -> np.ndarray:
    if dtype is BOOL:
        return np.array([True, False])
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return FLOATS.astype(dtype.numpy)
    return (INTS if dtype.kind == "int" else np.abs(INTS)).astype(dtype.numpy)


def to_torch(x: np.ndarray) -> torch.Tensor:
    """The tensor with the same bits, ml_dtypes' types included."""
    named = {
        ml_dtypes.bfloat16: (np.int16, torch.bfloat16),
        ml_dtypes.float8_e4m3fn: (np.uint8, torch.float8_e4m3fn),
        ml_dtypes.float8_e5m2: (np.uint8, torch.float8_e5m2),
    }
    if x.dtype.type in named:
        bits, kind = named[x.dtype.type]
        return torch.from_numpy(np.ascontiguousarray(x).view(bits).copy()).view(kind)
    return torch.from_numpy(np.ascontiguousarray(x).copy())


def _same(got: np.ndarray, wanted: torch.Tensor, ulps: float = 0.0, zeros: bool = True) -> None:
    """Equal values and NaNs; at most `ulps` apart where the operator is not exact; zeros of one sign."""
    assert TORCH[next(t for t in ALL.values() if t.numpy == got.dtype)] is wanted.dtype
    assert got.shape == tuple(wanted.shape)
    if not wanted.is_floating_point():
        np.testing.assert_array_equal(got, wanted.numpy())
        return
    unit = next(t.ulp for t in ALL.values() if t.numpy == got.dtype)
    x, y = got.astype(np.float64), wanted.double().numpy()
    np.testing.assert_allclose(x, y, rtol=ulps * unit, atol=ulps * 1e-45, equal_nan=True)
    if zeros:
        zero = (x == 0) & (y == 0)
        np.testing.assert_array_equal(np.signbit(x)[zero], np.signbit(y)[zero])


UNARY = {
    "neg": (torch.neg, NUMBERS, 0),
    "abs": (torch.abs, NUMBERS, 0),
    "sign": (torch.sign, NUMBERS, 0),
    "sqrt": (torch.sqrt, WIDE, 1),
    "rsqrt": (torch.rsqrt, WIDE, 2),
    "exp": (torch.exp, WIDE, 4),
    "exp2": (torch.exp2, WIDE, 4),
    "expm1": (torch.expm1, WIDE, 4),
    "log": (torch.log, WIDE, 4),
    "log2": (torch.log2, WIDE, 4),
    "log10": (torch.log10, WIDE, 4),
    "log1p": (torch.log1p, WIDE, 4),
    "sin": (torch.sin, WIDE, 4),
    "cos": (torch.cos, WIDE, 4),
    "tan": (torch.tan, WIDE, 4),
    "asin": (torch.asin, WIDE, 4),
    "acos": (torch.acos, WIDE, 4),
    "atan": (torch.atan, WIDE, 4),
    "sinh": (torch.sinh, WIDE, 4),
    "cosh": (torch.cosh, WIDE, 4),
    "tanh": (torch.tanh, WIDE, 4),
    "sigmoid": (torch.sigmoid, WIDE, 4),
    "erf": (torch.erf, WIDE, 4),
    "normal_cdf": (lambda x: (0.5 * torch.special.erfc(-(0.5**0.5) * x.double())).to(x.dtype), WIDE, 4),
    "floor": (torch.floor, WIDE, 0),
    "ceil": (torch.ceil, WIDE, 0),
    "trunc": (torch.trunc, WIDE, 0),
    "rint": (torch.round, WIDE, 0),
    "isnan": (torch.isnan, WIDE, 0),
    "isinf": (torch.isinf, WIDE, 0),
    "not": (torch.bitwise_not, (*INTEGERS, BOOL), 0),
    "copy": (torch.clone, (*ANY, F16, BF16), 0),
}

BINARY = {
    "add": (torch.add, ANY, 0),
    "sub": (torch.sub, NUMBERS, 0),
    "mul": (torch.mul, ANY, 0),
    "div": (lambda x, y: torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc"), NUMBERS, 0),
    "floordiv": (torch.floor_divide, NUMBERS, 0),
    "remainder": (torch.remainder, NUMBERS, 0),
    "fmod": (torch.fmod, NUMBERS, 0),
    "pow": (torch.pow, NUMBERS, 4),
    "atan2": (torch.atan2, WIDE, 4),
    "maximum": (torch.maximum, ANY, 0),
    "minimum": (torch.minimum, ANY, 0),
    "and": (torch.bitwise_and, (*INTEGERS, BOOL), 0),
    "or": (torch.bitwise_or, (*INTEGERS, BOOL), 0),
    "xor": (torch.bitwise_xor, (*INTEGERS, BOOL), 0),
    "shl": (torch.bitwise_left_shift, INTEGERS, 0),
    "shr": (torch.bitwise_right_shift, INTEGERS, 0),
    "lt": (torch.lt, ANY, 0),
    "le": (torch.le, ANY, 0),
    "gt": (torch.gt, ANY, 0),
    "ge": (torch.ge, ANY, 0),
    "eq": (torch.eq, ANY, 0),
    "ne": (torch.ne, ANY, 0),
}

DIVIDES = ("div", "floordiv", "remainder", "fmod")


def _run(node, *pairs, **more):
    return evaluate([node], dict(pairs), **more)[0]


def _input(name: str, x: np.ndarray):
    dtype = next(t for t in ALL.values() if t.numpy == x.dtype)
    return b.placeholder(name, dtype, x.shape)


@pytest.mark.parametrize(("op", "dtype"), [(op, t) for op, row in UNARY.items() for t in row[1]], ids=str)
def test_unary(op, dtype):
    reference, _, ulps = UNARY[op]
    x = _data(dtype)
    if op in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 1e30)]  # the libraries reduce such arguments to different precision
    node = _input("x", x)
    _same(_run(b.apply(op, node), (node, x)), reference(to_torch(x)), ulps)


def _all_pairs(op: str, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    x = _data(dtype)
    pairs = np.array(list(itertools.product(x, x)), dtype=x.dtype)
    if not dtype.is_float and op in DIVIDES:
        pairs = pairs[pairs[:, 1] != 0]  # PyTorch raises on a CPU and says nothing on a GPU
    if op in ("shl", "shr"):
        pairs = pairs[(pairs[:, 1] >= 0) & (pairs[:, 1] < 8 * dtype.bytes)]  # undefined beyond
    if dtype.is_float and op in ("remainder", "fmod"):
        with np.errstate(all="ignore"):
            # PyTorch's vectors give up on a quotient beyond that.
            pairs = pairs[~(np.abs(pairs[:, 0] / pairs[:, 1]) > 1e30) | (pairs[:, 1] == 0)]
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@pytest.mark.parametrize(("op", "dtype"), [(op, t) for op, row in BINARY.items() for t in row[1]], ids=str)
def test_binary(op, dtype):
    reference, _, ulps = BINARY[op]
    x, y = _all_pairs(op, dtype)
    a, c = _input("x", x), _input("y", y)
    # maximum(0.0, -0.0) may be either in IEEE 754 and in PyTorch (by vector length).
    zeros = op not in ("maximum", "minimum")
    _same(_run(b.apply(op, a, c), (a, x), (c, y)), reference(to_torch(x), to_torch(y)), ulps, zeros)


@pytest.mark.parametrize("dtype", [*ANY, F16, BF16], ids=str)
def test_where(dtype):
    x = _data(dtype)
    y, test = x[::-1].copy(), np.arange(len(x)) % 3 == 0
    t, a, c = _input("t", test), _input("x", x), _input("y", y)
    wanted = torch.where(to_torch(test), to_torch(x), to_torch(y))
    _same(_run(b.apply("where", t, a, c), (t, test), (a, x), (c, y)), wanted)


def _castable(source: DType, to: DType) -> np.ndarray:
    """Values whose conversion means something: in range, and finite, where the result is an integer or an 8-bit
    float.
    """
    x = _data(source)
    if source.is_float and not to.is_float and to is not BOOL:
        wide = x.astype(np.float64)
        return x[np.isfinite(wide) & (np.abs(wide) < 120) & ((to is not U8) | (wide >= 0))]
    return x[np.abs(x.astype(np.float64)) <= 448] if to is F8E4M3 else x


CASTS = [(s, t) for s in TORCH for t in TORCH if s is not t]


@pytest.mark.parametrize(("source", "to"), CASTS, ids=str)
def test_cast(source, to):
    x = _castable(source, to)
    node = _input("x", x)
    _same(_run(b.cast(node, to), (node, x)), to_torch(x).to(TORCH[to]))


@pytest.mark.parametrize("to", [F16, BF16, F8E5M2], ids=str)
@pytest.mark.parametrize("source", [F64, I64], ids=str)
def test_casts_round_as_pytorch_does_through_f32(source, to):
    near = np.array([1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40, 1 + 2**-3 + 2**-40, 1 - 2**-12 + 2**-50]) * 2**10
    x = near if source is F64 else np.array([2**24 + 1, 2**25 + 3, (1 << 60) + (1 << 52) + 1, 257, 385, 2049, 12345])
    node = _input("x", x.astype(source.numpy))
    _same(_run(b.cast(node, to), (node, x)), torch.from_numpy(x).to(TORCH[to]))


def test_f8e4m3_saturates_and_keeps_nan():
    x = np.array([1e9, -1e9, np.inf, np.nan], np.float32)
    node = _input("x", x)
    np.testing.assert_array_equal(_run(b.cast(node, F8E4M3), (node, x)).astype(np.float32), [448, -448, 448, np.nan])


@pytest.mark.parametrize("to", [F16, BF16, F8E4M3, F8E5M2], ids=str)
def test_round(to):
    x = np.concatenate([_castable(F32, to), np.random.default_rng(0).standard_normal(200).astype(np.float32)])
    node = _input("x", x)
    _same(_run(b.rounded(node, to), (node, x)), to_torch(x).to(TORCH[to]).float())
    assert _run(b.rounded(node, to), (node, x), wide=True).dtype == np.float64


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_const_and_iota(dtype):
    _same(_run(b.constant(3, dtype)), torch.tensor(3, dtype=TORCH[dtype]))
    if dtype is not BOOL:
        _same(_run(b.iota(9, dtype)), torch.arange(9).to(TORCH[dtype]))


def test_movements():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    node, t = _input("x", x), to_torch(x)
    _same(_run(b.reshape(node, (4, 6)), (node, x)), t.reshape(4, 6))
    _same(_run(b.permute(node, (2, 0, 1)), (node, x)), t.permute(2, 0, 1))
    _same(_run(b.expand(b.reshape(node, (2, 1, 12)), (2, 5, 12)), (node, x)), t.view(2, 1, 12).expand(2, 5, 12))
    _same(_run(b.take_slice(node, (1, 0, 1), (1, 2, 2), (1, 2, 2)), (node, x)), t[1:, ::2, 1::2])
    _same(_run(b.take_slice(node, (2, 0, 1), (0, 3, 2)), (node, x)), t[2:, :, 1:3])


REDUCTIONS = {
    "sum": (lambda x, d, k: x.sum(d, keepdim=k, dtype=x.dtype), NUMBERS),
    "max": (lambda x, d, k: x.amax(d, keepdim=k), ANY),
    "prod": (lambda x, d, k: _prod(x, d, k), NUMBERS),
    "min": (lambda x, d, k: x.amin(d, keepdim=k), ANY),
    "any": (lambda x, d, k: x.bool().any(d, keepdim=k), ANY),
    "all": (lambda x, d, k: x.bool().all(d, keepdim=k), ANY),
    "mean": (lambda x, d, k: x.mean(d, keepdim=k), WIDE),
    "variance": (lambda x, d, k: x.var(d, correction=1, keepdim=k), WIDE),
    "spread": (lambda x, d, k: (x - x.mean(d, keepdim=True)).square().sum(d, keepdim=k), WIDE),
    "expsum": (lambda x, d, k: _weights(x, d).sum(d, keepdim=k), WIDE),
}


def _weights(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    return torch.where(x == -np.inf, 0.0, (x - x.amax(axes, keepdim=True)).exp())


def _prod(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _rows(dtype: DType) -> np.ndarray:
    """Rows of ordinary values, then rows with NaN, infinities and zeros in them."""
    rng = np.random.default_rng(1)
    if dtype is BOOL:
        return rng.random((5, 3, 4)) < 0.6
    if not dtype.is_float:
        return rng.integers(0 if dtype is U8 else -9, 9, (5, 3, 4)).astype(dtype.numpy)
    x = rng.standard_normal((5, 3, 4))
    x[1, 1, 2], x[2, 0, 1], x[3, 2, 0], x[4, 0, 0], x[4, 0, 1] = np.nan, np.inf, -np.inf, np.inf, -np.inf
    return x.astype(dtype.numpy)


@pytest.mark.parametrize(("op", "dtype"), [(op, t) for op, row in REDUCTIONS.items() for t in row[1]], ids=str)
@pytest.mark.parametrize(("axes", "keep"), [((2,), False), ((0, 2), True), ((0, 1, 2), False), ((1,), True)])
def test_reductions(op, dtype, axes, keep):
    x = _rows(dtype)
    node = _input("x", x)
    attrs = {"correction": 1} if op == "variance" else {}
    got = _run(b.reduce(op, node, axes, keepdims=keep, **attrs), (node, x))
    _same(got, REDUCTIONS[op][0](to_torch(x), axes, keep), ulps=16, zeros=False)


@pytest.mark.parametrize("op", ["sum", "prod", "mean", "variance", "any", "all"])
@pytest.mark.filterwarnings("ignore:var", "ignore:Mean of empty")
def test_reductions_of_nothing(op):
    x = np.zeros((2, 0), np.float32)
    node = _input("x", x)
    attrs = {"correction": 1} if op == "variance" else {}
    _same(_run(b.reduce(op, node, (1,), **attrs), (node, x)), REDUCTIONS[op][0](to_torch(x), (1,), False))


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:var")
def test_variance_of_one_element(correction):
    x = np.array([[1.5], [-2.0]], np.float32)
    node = _input("x", x)
    got = _run(b.reduce("variance", node, (1,), correction=correction), (node, x))
    _same(got, to_torch(x).var(1, correction=correction))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, U8], ids=str)
def test_arg_reductions(op, dtype):
    x = _rows(dtype)
    x[0, 0, :] = x[0, 0, 0]  # the first of equals
    node = _input("x", x)
    got = _run(b.reduce(op, node, (2,)), (node, x))
    wanted = np.array([[next(i for i in range(4) if _is_best(op, row, i)) for row in block] for block in x])
    np.testing.assert_array_equal(got, wanted)
    values = getattr(torch, op)(to_torch(x), 2).numpy()
    np.testing.assert_array_equal(np.take_along_axis(x, got[..., None], 2), np.take_along_axis(x, values[..., None], 2))


def _is_best(op: str, row: np.ndarray, i: int) -> bool:
    if np.isnan(row).any():
        return bool(np.isnan(row[i]))
    return row[i] == (row.max() if op == "argmax" else row.min())


SCANS = {
    "cumsum": lambda x, d: x.cumsum(d, dtype=x.dtype),
    "cumprod": lambda x, d: x.cumprod(d, dtype=x.dtype),
    "cummax": lambda x, d: x.cummax(d).values,
    "cummin": lambda x, d: x.cummin(d).values,
}


@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64], ids=str)
@pytest.mark.parametrize(("axis", "reverse"), [(2, False), (0, False), (1, True)])
def test_scans(op, dtype, axis, reverse):
    x = _rows(dtype)
    node = _input("x", x)
    t = to_torch(x).flip(axis) if reverse else to_torch(x)
    wanted = SCANS[op](t, axis).flip(axis) if reverse else SCANS[op](t, axis)
    _same(_run(b.scan(op, node, axis, reverse), (node, x)), wanted, ulps=16, zeros=False)


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_linear(dtype, biased):
    rng = np.random.default_rng(3)
    x, w, c = (rng.standard_normal(s).astype(dtype.numpy) for s in ((4, 5), (3, 5), (3,)))
    nodes = [_input(n, v) for n, v in zip("xwc", (x, w, c), strict=True)]
    got = _run(b.linear(*nodes[: 2 + biased]), *zip(nodes, (x, w, c), strict=True))
    wanted = to_torch(x).double() @ to_torch(w).double().t() + (to_torch(c).double() if biased else 0)
    near = 1e-14 if dtype is F64 else 8 * 2.0**-23
    np.testing.assert_allclose(got.astype(np.float64), wanted.numpy(), rtol=2 * dtype.ulp, atol=near)
    assert got.dtype == dtype.numpy


@pytest.mark.parametrize("dtype", [F32, F64, BF16, I64, I32], ids=str)
def test_matmul(dtype):
    rng = np.random.default_rng(4)
    x, y = ((rng.standard_normal(s) * 9).astype(dtype.numpy) for s in ((2, 4, 5), (2, 5, 3)))
    a, c = _input("x", x), _input("y", y)
    got = _run(make("matmul", (a, c), dtype, (2, 4, 3)), (a, x), (c, y))
    wanted = torch.matmul(to_torch(x).double(), to_torch(y).double()).numpy()
    if dtype.is_float:
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2 * dtype.ulp, atol=2.0**-23 * 400)
    else:
        np.testing.assert_array_equal(got, wanted)
    assert got.dtype == dtype.numpy


def test_integers_wrap_and_stay_exact():
    x = np.array([2**62, -(2**62), 2**53 + 1, -(2**53) - 1])
    node = _input("x", x)
    for op in ("add", "mul", "div"):
        _same(_run(b.apply(op, node, node), (node, x)), BINARY[op][0](to_torch(x), to_torch(x)))
    three = b.broadcast(b.constant(3, I64), (4,))
    _same(_run(b.apply("div", node, three), (node, x)), torch.div(to_torch(x), 3, rounding_mode="trunc"))


def test_values_are_given_for_inputs_library_and_item_nodes():
    x = b.placeholder("x", F32, (2,))
    for node in (x, make("library", (x,), F32, (2,), token=0), make("item", (x,), F32, (2,), token=1)):
        with pytest.raises(GraphError, match="needs a value"):
            evaluate([b.apply("neg", node)], {})
        assert _run(b.apply("neg", node), (node, np.ones(2, np.float32))).tolist() == [-1, -1]
    with pytest.raises(GraphError, match=r"has shape \(3,\)"):
        evaluate([x], {x: np.ones(3, np.float32)})


def test_given_values_stop_the_walk():
    x = b.placeholder("x", F32, (2,))
    y = b.apply("exp", x)
    assert _run(b.apply("neg", y), (y, np.ones(2, np.float32))).tolist() == [-1, -1]


def test_wide_holds_floats_in_float64_and_leaves_roundings_out():
    x = b.placeholder("x", BF16, (1,))
    third = b.apply("div", b.cast(x, F32), b.broadcast(b.constant(3.0, F32), (1,)))
    stored = b.cast(b.rounded(third, BF16), BF16)
    given = {x: np.ones(1, BF16.numpy)}
    wide, narrow = evaluate([stored], given, wide=True)[0], evaluate([stored], given)[0]
    assert wide.dtype == np.float64
    assert wide[0] == 1 / 3
    assert narrow.dtype == BF16.numpy
    assert narrow[0] != 1 / 3


@pytest.mark.parametrize("dtype", (*ANY, F16, BF16), ids=str)
def test_concat_and_pad(dtype):
    x, y = (np.resize(np.roll(_data(dtype), k), shape) for k, shape in ((0, (2, 3, 2)), (5, (2, 1, 2))))
    a, c, (t, u) = _input("x", x), _input("y", y), map(to_torch, (x, y))
    nothing = b.take_slice(a, (0, 0, 0), (2, 0, 2))
    _same(_run(b.concat([a, c, nothing, a], 1), (a, x), (c, y)), torch.cat([t, u, t], 1))
    for value in (True, False) if dtype is BOOL else (0, 3):
        wanted = torch.nn.functional.pad(t, (1, 0, 0, 2, 3, 0), value=value)
        _same(_run(b.pad(a, (3, 0, 1), (0, 2, 0), value), (a, x)), wanted)


def test_slices_may_walk_backwards():
    x = np.arange(30.0).reshape(5, 6)
    a, t = _input("x", x), torch.from_numpy(x)
    _same(_run(b.flip(a, (0, 1)), (a, x)), t.flip(0, 1))
    _same(_run(b.take_slice(a, (3, 5), (2, 3), (-1, -2)), (a, x)), torch.from_numpy(x[3:1:-1, 5::-2].copy()))


def test_symbolic_sizes():
    s = sym("s", 2, 9)
    x = b.placeholder("x", I64, (s, 2))
    last = b.take_slice(b.reshape(x, (s * 2,)), (s * 2 - 1,), (1,))
    grown = b.broadcast(last, (s, 1))
    data = np.arange(8).reshape(4, 2)
    got = evaluate([last, grown, b.iota(s)], {x: data}, symbols={"s": 4})
    assert [g.tolist() for g in got] == [[7], [[7]] * 4, [0, 1, 2, 3]]
    with pytest.raises(GraphError, match="no size is given for the symbols s"):
        evaluate([grown], {x: data})


@pytest.mark.parametrize("dtype", (I32, I64))
def test_gather(dtype):
    x, at = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.array([[[2, 0]], [[1, 3]]], dtype.numpy)
    source, index = b.placeholder("x", F32, x.shape), b.placeholder("at", dtype, at.shape)
    part = b.take_slice(source, (0, 1, 0), (2, 1, 4))
    wanted = torch.from_numpy(x)[:, 1:2].gather(2, torch.from_numpy(at).long())
    _same(evaluate([b.gather(part, index, 2)], {source: x, index: at})[0], wanted)
    _same(evaluate([b.gather(part, index, 2, wraps=True)], {source: x, index: at - 4})[0], wanted)
    for wraps, outside in ((False, -1), (False, 4), (True, -5), (True, 4)):
        with pytest.raises(IndexError, match="leaves the 4 places of axis 2"):
            evaluate([b.gather(part, index, 2, wraps)], {source: x, index: np.full_like(at, outside)})


COMPARED = {
    *UNARY,
    *BINARY,
    *REDUCTIONS,
    *SCANS,
    "where",
    "cast",
    "round",
    "const",
    "iota",
    "reshape",
    "permute",
    "expand",
    "slice",
    "concat",
    "pad",
    "gather",
    "argmax",
    "argmin",
    "linear",
    "matmul",
    "input",
    "library",
    "item",
}


@pytest.mark.parametrize("op", TABLE)
def test_every_row_is_complete(op):
    row = TABLE[op]
    assert row.name == op
    assert op in COMPARED, f"{op} has no comparison with PyTorch: add one here"
    for text in (row.triton, row.cpp):
        assert text, f"{op} has neither text nor a reason"
        if text.startswith("none"):
            assert text.startswith("none: "), f"{op} must say why there is no text"
            assert len(text) > len("none: ") + 5
        else:
            assert row.arity is not None
            assert all(f"{{{k}}}" in text for k in range(row.arity)), f"{op}'s text {text!r} leaves an operand out"
    assert row.band == ELEMENTWISE or row.triton.startswith("none: ")
    assert row.cost >= 0


def test_nothing_is_compared_that_is_not_in_the_table():
    assert set(TABLE) == COMPARED
