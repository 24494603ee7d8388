"""Regions and kernels for the Triton emitter's tests. In: element types. Out: kernels, runs of them, errors.

The same cases run under Triton's interpreter on this machine and on a GPU where there is one; `device` says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import torch

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import ALL, BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.index import Dim
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.ir.ops import BITWISE, DISCRETE, FLOAT_ONLY, NUMBERS_ONLY, POINTWISE, SHIFTS, TABLE, with_fact
from interfuse.lower.early import awaiting
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Param, Reduce, Role, Scope, Store, Value
from interfuse.lower.rows_turned import rows_turned
from interfuse.lower.target import GPU, Target
from interfuse.lower.work import Work
from interfuse.run.gpu import load

TORCH: Mapping[DType, torch.dtype] = {
    BOOL: torch.bool,
    U8: torch.uint8,
    I8: torch.int8,
    I16: torch.int16,
    I32: torch.int32,
    I64: torch.int64,
    F8E4M3: torch.float8_e4m3fn,
    F8E5M2: torch.float8_e5m2,
    F16: torch.float16,
    BF16: torch.bfloat16,
    F32: torch.float32,
    F64: torch.float64,
}
"""PyTorch's name of each element type."""

NUMBERS = (F32, F64, I64, I32, I8, U8)
EXACT = DISCRETE | with_fact("exact") | BITWISE | SHIFTS | frozenset(("add", "sub", "mul"))
"""Operators whose result has the same bits in every implementation."""


# --- moving arrays to tensors and back


def tensor(array: np.ndarray, dtype: DType, device: str = "cpu") -> torch.Tensor:
    """A tensor with the array's bits."""
    raw = np.ascontiguousarray(array.astype(dtype.numpy, copy=False))
    if dtype in (BF16, F8E4M3, F8E5M2):
        flat = torch.from_numpy(raw.reshape(-1).view(np.uint8).copy()).view(TORCH[dtype]).reshape(raw.shape)
        return flat.to(device)
    return torch.from_numpy(raw.copy()).to(device)


def array(t: torch.Tensor, dtype: DType) -> np.ndarray:
    """The tensor's bits as an array."""
    t = t.cpu()
    if dtype in (BF16, F8E4M3, F8E5M2):
        return t.reshape(-1).view(torch.uint8).numpy().view(dtype.numpy).reshape(tuple(t.shape))
    return t.numpy()


def run(
    kernel: Kernel,
    inputs: Sequence[np.ndarray],
    device: str = "cpu",
    sizes: Sequence[int] = (),
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> list[np.ndarray]:
    """The kernel's outputs; they start out full of sevens, so that what is not written shows."""
    params = [p for p in kernel.params if p.mode == "in"]
    results = [p for p in kernel.params if p.mode == "out"]
    ins = [tensor(a, p.dtype, device) for a, p in zip(inputs, params, strict=True)]
    outs = [
        tensor(np.full(s, 7), p.dtype, device)
        for p, s in zip(results, shapes or [p.shape for p in results], strict=True)
    ]
    load(emit(kernel), kernel)((*ins, *outs), sizes)
    return [array(t, p.dtype) for t, p in zip(outs, results, strict=True)]


def lowered(
    inputs: Sequence[Node], outputs: Sequence[Node], name: str = "region", target: Target = GPU
) -> tuple[Kernel, tuple[Node, ...]]:
    """The GPU kernel of a region whose buffers are all contiguous."""
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower(name, Work(tuple(outputs), frozenset(inputs), layouts), target)


def run_region(
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    values: Mapping[Node, np.ndarray],
    device: str = "cpu",
    target: Target = GPU,
) -> list[np.ndarray]:
    """What the region's kernel computes."""
    kernel, reads = lowered(inputs, outputs, target=target)
    return run(kernel, [values[n] for n in reads], device)


# --- how far off


def misplaced(got: np.ndarray, wanted: np.ndarray) -> int:
    """How many elements are NaN, or an infinity, in one and not in the other."""
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    kinds = [np.isnan(a) * 1 + np.isposinf(a) * 2 + np.isneginf(a) * 4 for a in (got, wanted)]
    return int((kinds[0] != kinds[1]).sum())


def check_region(outputs: Sequence[Node], values: Mapping[Node, np.ndarray], got: Sequence[np.ndarray]) -> None:
    """What a region's kernel gave: integers exactly, floats near float64, as near as NumPy in the stated types."""
    both = zip(outputs, got, evaluate(outputs, values), evaluate(outputs, values, wide=True), strict=True)
    for node, g, plain, exact in both:
        if not node.dtype.is_float:
            np.testing.assert_array_equal(g, plain)
            continue
        assert misplaced(g, plain) == 0
        fine = np.isfinite(plain.astype(np.float64)) & np.isfinite(exact)
        numpys = np.abs(plain.astype(np.float64)[fine] - exact[fine]).max(initial=0.0)
        error = np.abs(g.astype(np.float64)[fine] - exact[fine]).max(initial=0.0)
        assert error <= 4 * numpys + 4 * node.dtype.ulp * np.abs(exact[fine]).max(initial=0.0) + 1e-30


def worst_ulps(got: np.ndarray, wanted: np.ndarray, dtype: DType) -> float:
    """The largest error in ulps of the value that is wanted, over finite elements."""
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    limits = ml_dtypes.finfo(dtype.numpy)
    fine = np.isfinite(got) & np.isfinite(wanted)
    error = np.abs(got[fine] - wanted[fine])
    return float((error / (dtype.ulp * np.abs(wanted[fine]) + 2 * float(limits.smallest_normal))).max(initial=0.0))


# --- operators


def operands(dtype: DType, count: int, seed: int = 0) -> list[np.ndarray]:
    """Two operand arrays of `dtype`: random, huge and tiny numbers, and every pair of special ones."""
    rng = np.random.default_rng(seed)
    if dtype is BOOL:
        return [rng.random(count) < 0.5 for _ in range(2)]
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        odd = np.array([info.min, info.max, 0, 1, 2, 3, 7], dtype.numpy)
        small = [rng.integers(max(info.min, -40), 40, count).astype(dtype.numpy) for _ in range(2)]
    else:
        odd = np.array(
            [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 1e-30, -1e-6, 90.0, -90.0, 1e5], dtype.numpy
        )
        scale = 10.0 ** rng.integers(-3, 3, count)
        small = [(rng.standard_normal(count) * scale).astype(dtype.numpy) for _ in range(2)]
    pairs = np.array(np.meshgrid(odd, odd)).reshape(2, -1)
    for a, special in zip(small, pairs, strict=True):
        a[: special.shape[0]] = special
    return small


def operators(dtype: DType) -> list[str]:
    """The element-wise operators that exist on `dtype` and have Triton text."""
    out = []
    for op in sorted(POINTWISE - {"cast", "round"}):
        if (dtype.is_float and op in BITWISE | SHIFTS) or (not dtype.is_float and (op in FLOAT_ONLY or op == "pow")):
            continue
        if dtype is BOOL and op in NUMBERS_ONLY | SHIFTS | {"sign"}:
            continue
        if not TABLE[op].triton.startswith("none:"):
            out.append(op)
    return out


def operator_region(dtype: DType, ops: Sequence[str], count: int) -> tuple[list[Node], list[Node]]:
    """(inputs, outputs): each operator applied to two inputs of [count]; where's condition is a third one."""
    x, y, test = (
        b.placeholder("x", dtype, (count,)),
        b.placeholder("y", dtype, (count,)),
        b.placeholder("test", BOOL, (count,)),
    )
    outputs = []
    for op in ops:
        args = (test, x, y) if op == "where" else (x, y)[: TABLE[op].arity]
        outputs.append(b.apply(op, *args))
    return [n for n in (x, y, test) if any(n in o.inputs for o in outputs)], outputs


def defined(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the operator has one meaning: integers are not divided by zero, nor the smallest one by -1."""
    fine = np.ones(x.shape, bool)
    if x.dtype.kind in "iu" and op in ("div", "floordiv", "remainder", "fmod"):
        fine = (y != 0) & ~((x == np.iinfo(x.dtype).min) & (y.astype(np.int64) == -1) & (x.dtype.kind == "i"))
    return fine


LOOSER = {"normal_cdf": 6}
"""How much further off an operator may be: the exponent -x^2 / 2 magnifies the rounding of x^2; eager cancels there."""


def check_operators(dtype: DType, device: str, ulps: float) -> None:
    """Every operator on `dtype`, on special and random numbers: exact ones to the bit, the others to `ulps`."""
    count = 700
    x, y = operands(dtype, count)
    if not dtype.is_float:
        fine = defined("div", x, y) if dtype is not BOOL else np.ones(count, bool)
        y = np.where(fine, y, np.ones(1, y.dtype))
    ops = operators(dtype)
    inputs, outputs = operator_region(dtype, ops, count)
    values = dict(
        zip(inputs, [{"x": x, "y": y, "test": np.arange(count) % 3 == 0}[n.attr("name")] for n in inputs], strict=True)
    )
    got = run_region(inputs, outputs, values, device)
    plain, exact = evaluate(outputs, values), evaluate(outputs, values, wide=True)
    for op, g, p, e in zip(ops, got, plain, exact, strict=True):
        assert misplaced(g, p) == 0, f"{op} on {dtype}: {misplaced(g, p)} NaN or infinities elsewhere than NumPy's"
        if op in EXACT or not dtype.is_float:
            np.testing.assert_array_equal(g, p, err_msg=f"{op} on {dtype}")
            if g.dtype.kind == "f" and op in ("neg", "abs", "mul", "add", "sub"):
                same = np.isnan(p) | (np.signbit(g) == np.signbit(p))
                assert same.all(), f"{op} on {dtype}: zeros of the other sign"
        else:
            off = worst_ulps(g, e, dtype)
            assert off <= LOOSER.get(op, 1) * ulps, f"{op} on {dtype}: {off:.1f} ulp off"


# --- reductions


def reduction_region(dtype: DType, rows: int, cols: int, axis: int = 1) -> tuple[list[Node], list[Node]]:
    """Every reduction of `dtype` along the rows of [rows, cols], or the columns."""
    x = b.placeholder("x", dtype, (rows, cols))
    ops = ("any", "all") if dtype is BOOL else ("sum", "prod", "max", "min", "argmax", "argmin")
    return [x], [b.reduce(op, x, (axis,)) for op in ops]


def softmax_region(dtype: DType, rows: int, cols: int, axis: int = 1) -> tuple[list[Node], list[Node]]:
    """softmax along the rows of [rows, cols], or the columns, with mean and variance beside it."""
    x = b.placeholder("x", dtype, (rows, cols))
    return [x], _softmax(x, axis)


def _softmax(x: Node, axis: int) -> list[Node]:
    """softmax, mean and variance of `x` along an axis."""
    wide = b.cast(x, F32) if x.dtype.is_narrow else x

    def along(op: str, v: Node) -> Node:
        return b.expand(b.reduce(op, v, (axis,), keepdims=True), v.shape)

    e = b.apply("exp", b.apply("sub", wide, along("max", wide)))
    statistics = [b.reduce("mean", wide, (axis,)), b.reduce("variance", wide, (axis,), correction=1)]
    return [b.cast(n, x.dtype) for n in (b.apply("div", e, along("sum", e)), *statistics)]


def masked_softmax_region(dtype: DType, shape: tuple[int, ...], mask: tuple[int, ...]) -> tuple[list[Node], list[Node]]:
    """softmax(x / 8 + mask) over the last dimension, with statistics beside it; the mask is spread over x."""
    x, m = b.placeholder("x", dtype, shape), b.placeholder("m", dtype, mask)
    wide, over = (b.cast(n, F32) for n in (x, b.expand(m, shape)))
    return [x, m], _softmax(b.apply("add", b.apply("mul", wide, b.like(0.125, wide)), over), len(shape) - 1)


def normed_region(dtype: DType, rows: int, cols: int) -> tuple[list[Node], list[Node]]:
    """(x + r - the mean of a row) * w in a narrow type."""
    x, r = (b.placeholder(name, dtype, (rows, cols)) for name in "xr")
    w = b.placeholder("w", dtype, (cols,))
    total = b.apply("add", b.cast(x, F32), b.cast(r, F32))
    apart = b.apply("sub", total, b.expand(b.reduce("mean", total, (1,), keepdims=True), total.shape))
    return [x, r, w], [
        b.cast(b.apply("mul", apart, b.expand(b.reshape(b.cast(w, F32), (1, cols)), total.shape)), dtype)
    ]


def odd_region(dtype: DType, rows: int, cols: int) -> tuple[list[Node], list[Node]]:
    """Softmax along rows in their own type, and the largest element of each."""
    x = b.placeholder("x", dtype, (rows, cols))
    wide = b.cast(x, F32) if dtype.is_narrow else x
    top = b.reduce("max", wide, (1,), keepdims=True)
    e = b.apply("exp", b.apply("sub", wide, b.expand(top, wide.shape)))
    softmax = b.apply("div", e, b.expand(b.reduce("sum", e, (1,), keepdims=True), wide.shape))
    return [x], [b.cast(softmax, dtype) if dtype.is_narrow else softmax, top]


def held_regions(dtype: DType, rows: int, cols: int) -> list[tuple[list[Node], list[Node]]]:
    """Rows of an odd width that are held: a norm with weights, softmax and the largest, a running sum."""
    x = b.placeholder("x", dtype, (rows, cols))
    return [
        normed_region(dtype, rows, cols),
        odd_region(dtype, rows, cols),
        ([x], [b.scan("cumsum", b.cast(x, F32), 1)]),
    ]


def check_held_rows(dtype: DType, rows: int, cols: int, device: str) -> None:
    """They read no more than their own rows, wherever these begin."""
    for inputs, outputs in held_regions(dtype, rows, cols):
        kernel, reads = lowered(inputs, outputs)
        assert kernel.axes[-1].role is Role.TILE and kernel.axes[-1].vector > 1
        rng, given = np.random.default_rng(7), dict[Node, np.ndarray]()
        for node in reads:
            given[node] = rng.standard_normal(node.shape).astype(dtype.numpy)
        first = given[reads[0]]
        first[2], first[4, 1:], first[6] = np.nan, -np.inf, np.inf  # in no row beside
        with np.errstate(all="ignore"):
            check_region(outputs, given, run(kernel, [given[n] for n in reads], device))


def turned_region(dtype: DType, rows: int, cols: int, before: bool) -> tuple[list[Node], list[Node]]:
    """Softmax, mean and variance along the rows of [rows, cols], its input or its output lying column by column."""
    x = b.placeholder("x", dtype, (cols, rows) if before else (rows, cols))
    y, *statistics = _softmax(b.permute(x, (1, 0)) if before else x, 1)
    return [x], [b.apply("copy", y if before else b.permute(y, (1, 0))), *statistics]


def heads_region(dtype: DType, shape: tuple[int, int, int, int]) -> tuple[list[Node], list[Node]]:
    """Softmax of [batch, heads, rows, cols] along its columns, and each row's sum: written with the heads last."""
    x = b.placeholder("x", dtype, shape)
    y, *statistics = _softmax(x, 3)
    return [x], [b.apply("copy", b.permute(y, (0, 2, 3, 1))), *statistics]


def groups_region(dtype: DType, groups: int, channels: int, image: int) -> tuple[list[Node], list[Node]]:
    """Each group of channels over its mean and variance, times a number a channel, plus a hundredth of what it was."""
    x, gain = b.placeholder("x", dtype, (groups, channels * image)), b.placeholder("gain", F32, (groups, channels))
    wide = b.cast(x, F32) if dtype.is_narrow else x
    variance = b.reduce("variance", wide, (1,), correction=0)
    root = b.apply("rsqrt", b.apply("add", variance, b.like(1e-5, variance)))
    centred = b.apply("sub", wide, b.spread_over(b.reduce("mean", wide, (1,)), wide, (1,)))
    normed = b.reshape(b.apply("mul", centred, b.spread_over(root, wide, (1,))), (groups, channels, image))
    scaled = b.apply("mul", normed, b.expand(b.reshape(gain, (groups, channels, 1)), normed.shape))
    kept = b.reshape(b.apply("mul", wide, b.like(0.01, wide)), normed.shape)
    return [x, gain], [b.cast(b.apply("add", scaled, kept), dtype)]


def nested_region(dtype: DType, rows: int, blocks: int, cols: int) -> tuple[list[Node], list[Node]]:
    """Rows centred and over their largest, then each block over the sum of its own: the blocks and their sums."""
    x, weight = b.placeholder("x", dtype, (rows, blocks * cols)), b.placeholder("weight", dtype, (blocks * cols,))
    wide, scale = (b.cast(v, F32) if v.dtype.is_narrow else v for v in (x, weight))

    def along(op: str, v: Node) -> Node:
        return b.expand(b.reduce(op, v, (len(v.shape) - 1,), keepdims=True), v.shape)

    centred = b.apply("sub", wide, along("mean", wide))
    normed = b.apply("div", centred, along("max", b.apply("abs", centred)))
    parts = b.reshape(b.apply("mul", normed, b.broadcast(scale, wide.shape)), (rows, blocks, cols))
    sums = b.reduce("sum", b.apply("exp", parts), (2,))
    return [x, weight], [b.apply("div", parts, b.expand(b.reshape(sums, (rows, blocks, 1)), parts.shape)), sums]


def scan_region(dtype: DType, rows: int, cols: int, axis: int, reverse: bool) -> tuple[list[Node], list[Node]]:
    """Every scan of `dtype` along the rows of [rows, cols], or the columns."""
    x = b.placeholder("x", dtype, (rows, cols))
    return [x], [b.scan(op, x, axis, reverse) for op in ("cumsum", "cumprod", "cummax", "cummin")]


def check_scans(dtype: DType, axis: int, reverse: bool, target: Target, device: str) -> None:
    """Every scan of odd rows or columns; in floats also ones with a NaN and ones of infinities."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 3, (5, 37)).astype(dtype.numpy)
    if dtype.is_float:
        x = (rng.standard_normal((5, 37)) * 1.5).astype(dtype.numpy)
        x[0, 20], x[-1, :] = np.nan, np.inf
    x = np.ascontiguousarray(x if axis else x.T)
    inputs, outputs = scan_region(dtype, *x.shape, axis, reverse)
    got = run_region(inputs, outputs, {inputs[0]: x}, device, target)
    for node, g, p in zip(outputs, got, evaluate(outputs, {inputs[0]: x}), strict=True):
        if dtype.is_float and node.op in ("cumsum", "cumprod"):
            np.testing.assert_allclose(g, p, rtol=1e-5, atol=1e-5, err_msg=node.op)
        else:
            np.testing.assert_array_equal(g, p, err_msg=node.op)


def check_reductions(dtype: DType, rows: int, cols: int, device: str, target: Target = GPU, axis: int = 1) -> None:
    """Every reduction along odd rows or columns; in floats also ones with a NaN and ones of infinities."""
    rng = np.random.default_rng(cols)
    x = rng.random((rows, cols)) < 0.9 if dtype is BOOL else rng.integers(0, 4, (rows, cols)).astype(dtype.numpy)
    if dtype.is_float:
        x = (rng.standard_normal((rows, cols)) * 1.5).astype(dtype.numpy)
        x[0, cols // 2], x[-1, :] = np.nan, -np.inf
    x = np.ascontiguousarray(x if axis else x.T)
    inputs, outputs = reduction_region(dtype, *x.shape, axis)
    values = {inputs[0]: x}
    got, plain, exact = (
        run_region(inputs, outputs, values, device, target),
        evaluate(outputs, values),
        evaluate(outputs, values, wide=True),
    )
    for node, g, p, e in zip(outputs, got, plain, exact, strict=True):
        assert misplaced(g, p) == 0, f"{node.op} of {dtype}[{rows}, {cols}]"
        if node.op in ("sum", "prod") and dtype.is_float:
            size = np.abs(x.astype(np.float64)).sum(axis) if node.op == "sum" else np.abs(e)
            fine = np.isfinite(e)
            assert (np.abs(g[fine] - e[fine]) <= 2 * cols * dtype.ulp * size[fine] + 1e-37).all(), (
                f"{node.op} of {dtype}[{rows}, {cols}]"
            )
        else:
            np.testing.assert_array_equal(g, p, err_msg=f"{node.op} of {dtype}[{rows}, {cols}]")


# --- conversions


def conversion_region(source: DType, targets: Sequence[DType], count: int) -> tuple[list[Node], list[Node]]:
    """One input of `source` cast to each of the `targets`."""
    x = b.placeholder("x", source, (count,))
    return [x], [b.cast(x, t) for t in targets]


def conversions(source: DType, narrow: Sequence[DType] = (F16, BF16)) -> list[DType]:
    """The types that `source` is cast to: all but itself and, of the 8-bit floats, those not in `narrow`."""
    return [
        t for t in ALL.values() if t in TORCH and t is not source and (t.bytes > 1 or not t.is_float or t in narrow)
    ]


def check_conversions(source: DType, targets: Sequence[DType], device: str) -> None:
    """Casts against PyTorch's own, on numbers that every target can hold or that overflow floats alone."""
    count = 600
    x, _ = operands(source, count)
    whole = np.clip(np.nan_to_num(x.astype(np.float64)), 0, 100).astype(source.numpy)
    for target in targets:
        inputs, outputs = conversion_region(source, [target], count)
        given = whole if target.kind in ("int", "uint") and source.is_float else x
        (got,) = run_region(inputs, outputs, {inputs[0]: given}, device)
        wanted = array(tensor(given, source).to(TORCH[target]), target)
        np.testing.assert_array_equal(
            got.astype(np.float64), wanted.astype(np.float64), err_msg=f"{source} to {target}"
        )


# --- kernels by hand: what no family of lowering makes yet


def carried(
    rows: int, cols: int, dtype: DType, ops: Sequence[str] = ("sum", "max", "min", "prod"), block: int = 16
) -> Kernel:
    """Reductions carried through a serial loop, then y = x - max in a second one."""
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, block)
    at = row.symbol * cols + col.symbol
    x = Value("x", dtype, ("row", "col"))
    results = [Value(f"x_{op}", dtype, ("row",)) for op in ops]
    first = Loop(
        "col", (Load(x, "x", at), *(Reduce(v, op, x, "col", Scope.CARRY) for v, op in zip(results, ops, strict=True)))
    )
    y = Value("y", dtype, ("row", "col"))
    second = Loop("col", (Load(x, "x", at), Let(y, "sub", (x, results[1])), Store("y", at, y)))
    stores = [Store(f"out_{op}", row.symbol, v) for v, op in zip(results, ops, strict=True)]
    params = [
        Param("x", dtype, (rows, cols), (cols, 1)),
        Param("y", dtype, (rows, cols), (cols, 1), "out"),
        *(Param(f"out_{op}", dtype, (rows,), (1,), "out") for op in ops),
    ]
    return Kernel("carried", tuple(params), (row, col), (first, second, *stores), family="row, streamed")


def transposed(rows: int, cols: int, dtype: DType, row_block: int, col_block: int) -> Kernel:
    """y[r, c] = x[c, r] + bias[c], in tiles of row_block x col_block."""
    row, col = Axis("row", rows, Role.GRID, row_block), Axis("col", cols, Role.GRID, col_block)
    x, bias, y = Value("x", dtype, ("row", "col")), Value("bias", dtype, ("col",)), Value("y", dtype, ("row", "col"))
    body = (
        Load(x, "x", col.symbol * rows + row.symbol),
        Load(bias, "bias", col.symbol),
        Let(y, "add", (x, bias)),
        Store("y", row.symbol * cols + col.symbol, y),
    )
    params = (
        Param("x", dtype, (cols, rows), (rows, 1)),
        Param("bias", dtype, (cols,), (1,)),
        Param("y", dtype, (rows, cols), (cols, 1), "out"),
    )
    return Kernel("transposed", params, (row, col), body)


def check_odd_rows(dtype: DType, rows: int, cols: int, aligned: bool, device: str, target: Target = GPU) -> None:
    """Softmax of rows that begin anywhere, in a buffer that begins with a vector or does not, among other numbers."""
    inputs, outputs = odd_region(dtype, rows, cols)
    kernel, _ = lowered(inputs, outputs, target=target)
    assert kernel.axes[-1].vector == 8
    x = (np.random.default_rng(5).standard_normal((rows, cols)) * 3).astype(dtype.numpy)
    x[3], x[5, 1:] = np.nan, -np.inf
    room = tensor(np.full(x.size + 16, 99), dtype, device)
    given = room[8 if aligned else 3 :][: x.size].view(x.shape).copy_(tensor(x, dtype, device))
    results = [p for p in kernel.params if p.mode == "out"]
    outs = [tensor(np.full(p.shape, 7), p.dtype, device) for p in results]
    load(emit(kernel), kernel)([given, *outs])
    check_region(outputs, {inputs[0]: x}, [array(o, p.dtype) for o, p in zip(outs, results, strict=True)])


def first_and_turned(region: tuple[Sequence[Node], Sequence[Node]], target: Target) -> tuple[Work, ...]:
    """The works of the kernels that reduce the rows of a region, and that turn them."""
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return awaiting(rows_turned(Work(tuple(outputs), frozenset(inputs), layouts), target), frozenset(inputs))


def turned_norm_region(dtype: DType, rows: int, cols: int, before: bool) -> tuple[list[Node], list[Node]]:
    """LayerNorm with weights along the rows of [rows, cols], its input or its output lying column by column."""
    x = b.placeholder("x", dtype, (cols, rows) if before else (rows, cols))
    weights = [b.placeholder(name, dtype, (cols,)) for name in "wb"]
    plain = b.permute(x, (1, 0)) if before else x
    wide, w, bias = (b.cast(n, F32) if dtype.is_narrow else n for n in (plain, *weights))
    mean, variance = (
        b.expand(b.reduce(op, wide, (1,), keepdims=True, **more), wide.shape)
        for op, more in (("mean", {}), ("variance", {"correction": 0}))
    )
    normal = b.apply("mul", b.apply("sub", wide, mean), b.apply("rsqrt", b.apply("add", variance, b.like(1e-5, wide))))
    w, bias = (b.expand(b.reshape(v, (1, cols)), wide.shape) for v in (w, bias))
    y = b.cast(b.apply("add", b.apply("mul", normal, w), bias), dtype)
    return [x, *weights], [b.apply("copy", y if before else b.permute(y, (1, 0)))]


def odd_map(dtype: DType, shape: Sequence[Dim], to: DType | None = None) -> tuple[list[Node], list[Node]]:
    """y + x / 2 of one shape: a map that lies along one axis, whatever its sizes."""
    x, y = (b.placeholder(name, dtype, tuple(shape)) for name in "xy")
    wide = [b.cast(n, F32) if dtype.is_narrow else n for n in (x, y)]
    half = b.broadcast(b.constant(0.5, F32), tuple(shape))
    total = b.apply("add", wide[1], b.apply("mul", wide[0], half))
    return [x, y], [b.cast(total, to or dtype)]


def check_odd_map(dtype: DType, to: DType, count: int, aligned: bool, device: str) -> None:
    """A map that ends within a vector: nothing is written past its end, whatever lies there."""
    inputs, outputs = odd_map(dtype, (count,), to)
    kernel, order = lowered(inputs, outputs)
    assert kernel.axes[-1].vector > 1
    rng, spare = np.random.default_rng(count), 32
    given = {n: rng.standard_normal(count).astype(dtype.numpy) for n in inputs}
    rooms = [tensor(np.full(count + 2 * spare, np.nan), dtype, device) for _ in order]
    start = spare if aligned else spare - 1
    reads = [r[start:][:count].copy_(tensor(given[n], dtype, device)) for r, n in zip(rooms, order, strict=True)]
    behind = tensor(np.full(count + spare, 7), to, device)
    load(emit(kernel), kernel)([*reads, behind[:count]])
    check_region(outputs, given, [array(behind[:count], to)])
    assert (array(behind[count:], to) == 7).all()
