"""Regions whose rows and columns are both reduced. In: a type and a shape. Out: the region; the works of its kernels.

`REGIONS` makes (inputs, outputs) from a type, rows and columns; `works` cuts them for a target.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, DType, compute_type
from interfuse.ir.index import Dim, sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.mixed import mixed
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from tests import symbolic
from tests.judge import Verdict, judge_region
from tests.parts import Region


def _wide(x: Node) -> Node:
    return b.cast(x, compute_type(x.dtype))


def _stored(outputs: list[Node], dtype: DType) -> list[Node]:
    return [b.cast(o, dtype) for o in outputs]


def layer_norm_backward(dtype: DType, rows: Dim, cols: int) -> Region:
    """The gradients of a layer norm from its saved statistics."""
    shape, stat = (rows, cols), compute_type(dtype)
    g, x = (b.placeholder(n, dtype, shape) for n in "gx")
    mean, rstd = (b.placeholder(n, stat, (rows, 1)) for n in ("mean", "rstd"))
    weight = b.placeholder("weight", dtype, (cols,))
    wide = {n: b.broadcast(_wide(n), shape) for n in (g, x, mean, rstd, weight)}
    normal = b.apply("mul", b.apply("sub", wide[x], wide[mean]), wide[rstd], hint="normal")
    weighted = b.apply("mul", wide[g], wide[weight], hint="weighted")
    first = b.expand(b.reduce("mean", weighted, (1,), True), shape)
    second = b.expand(b.reduce("mean", b.apply("mul", weighted, normal), (1,), True), shape)
    dx = b.apply("sub", b.apply("sub", weighted, first), b.apply("mul", normal, second))
    dx = b.apply("mul", dx, wide[rstd], hint="dx")
    dw = b.reduce("sum", b.apply("mul", wide[g], normal), (0,), hint="dw")
    return [g, x, mean, rstd, weight], _stored([dx, dw, b.reduce("sum", wide[g], (0,), hint="db")], dtype)


def softmax_backward(dtype: DType, rows: Dim, cols: int) -> Region:
    """The gradient of a softmax, and of a bias before it: rows are reduced first, and what comes of them by columns."""
    g, y = (b.placeholder(n, dtype, (rows, cols)) for n in "gy")
    product = b.apply("mul", _wide(g), _wide(y))
    total = b.expand(b.reduce("sum", product, (1,), True), (rows, cols))
    dx = b.apply("sub", product, b.apply("mul", _wide(y), total), hint="dx")
    return [g, y], _stored([dx, b.reduce("sum", dx, (0,), hint="db")], dtype)


def extremes(dtype: DType, rows: Dim, cols: int) -> Region:
    """The extremes of columns beside a statistic of rows, which is an output of its own."""
    x = b.placeholder("x", dtype, (rows, cols))
    wide = _wide(x)
    found = [b.reduce(op, wide, (0,), hint=op) for op in ("max", "min")]
    return [x], [*_stored(found, dtype), b.cast(b.reduce("max", b.apply("abs", wide), (1,), True), dtype)]


def centred(dtype: DType, rows: Dim, cols: int) -> Region:
    """Rows over their norm, less the mean of each column: whole rows wait for columns."""
    x = b.placeholder("x", dtype, (rows, cols))
    wide = _wide(x)
    norm = b.apply("sqrt", b.reduce("sum", b.apply("mul", wide, wide), (1,), True))
    y = b.apply("div", wide, b.expand(norm, (rows, cols)), hint="y")
    mean = b.reduce("mean", y, (0,), hint="column_mean")
    return [x], _stored([b.apply("sub", y, b.broadcast(mean, (rows, cols))), mean], dtype)


def running(dtype: DType, rows: Dim, cols: int) -> Region:
    """Running sums of rows from their ends, and the sum of these a column."""
    x = b.placeholder("x", dtype, (rows, cols))
    sums = b.scan("cumsum", _wide(x), 1, True)
    return [x], _stored([sums, b.reduce("sum", sums, (0,), hint="total")], dtype)


def relu_backward(dtype: DType, rows: Dim, cols: int) -> Region:
    """The gradient of a relu, and of the bias before it: nothing is reduced along rows."""
    g, y = (b.placeholder(n, dtype, (rows, cols)) for n in "gy")
    positive = b.apply("gt", _wide(y), b.broadcast(b.constant(0, compute_type(dtype)), (rows, cols)))
    dx = b.apply("where", positive, _wide(g), b.broadcast(b.constant(0, compute_type(dtype)), (rows, cols)), hint="dx")
    return [g, y], _stored([dx, b.reduce("sum", dx, (0,), hint="db")], dtype)


def added_backward(dtype: DType, rows: Dim, cols: int) -> Region:
    """The gradient of a softmax and what comes to it another way: three matrices are read, and all columns added up."""
    (g, y), _ = softmax_backward(dtype, rows, cols)
    r = b.placeholder("r", dtype, (rows, cols))
    total = b.expand(b.reduce("sum", b.apply("mul", _wide(g), _wide(y)), (1,), True), (rows, cols))
    dx = b.apply("add", b.apply("mul", b.apply("sub", _wide(g), total), _wide(y)), _wide(r), hint="dx")
    return [g, y, r], _stored([dx, b.reduce("sum", dx, (0,), hint="db")], dtype)


def joined(dtype: DType, rows: Dim, cols: int) -> Region:
    """Two matrices side by side, one of them nowhere 0, with the sum and the largest of each column and of rows."""
    left = cols // 3
    x, y = b.placeholder("x", dtype, (rows, left)), b.placeholder("y", dtype, (rows, cols - left))
    both = b.concat([b.apply("exp", _wide(x)), b.apply("sub", _wide(y), b.like(9.0, _wide(y)))], 1)
    found = [b.reduce("sum", both, (0,), hint="sums"), b.reduce("max", both, (0,), hint="tops")]
    return [x, y], _stored([*found, b.reduce("sum", both, (1,), hint="total")], dtype)


REGIONS: dict[str, Callable[[DType, Dim, int], Region]] = {
    f.__name__: f
    for f in (layer_norm_backward, softmax_backward, extremes, centred, running, relu_backward, added_backward)
}

SHAPES = ((21, 33), (7, 1000), (64, 128), (4095, 5))


def works(region: Region, target: Target) -> tuple[Work, ...]:
    """The works of the region's kernels, all buffers contiguous."""
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return mixed(Work(tuple(outputs), frozenset(inputs), layouts), target)


def growing(
    name: str,
    target: Target,
    rows: int,
    run: Callable[[Kernel, list[np.ndarray], list[tuple[int, ...]], dict[str, int]], list[np.ndarray]],
) -> Verdict:
    """The verdict on a region whose rows change between calls, of which there are `rows` now. `run` is given a kernel,
    what it reads, the shapes of what it writes, and the sizes.
    """
    region, sizes = REGIONS[name](F32, sym("s0"), 33), {"s0": rows}
    arrays = symbolic.arrays(region[0], sizes)
    held = {n: a.ravel() for n, a in arrays.items()}
    for work in works(region, target):
        kernel, reads = lower("kernel", work, target)
        found = run(kernel, [held[n] for n in reads], [symbolic.shape_of(o, sizes) for o in work.outputs], sizes)
        held |= {o: a.ravel() for o, a in zip(work.outputs, found, strict=True)}
    got = [held[o].reshape(symbolic.shape_of(o, sizes)) for o in region[1]]
    return judge_region(region[1], arrays, got, symbols=sizes)


def values(inputs: list[Node], kind: str = "random", seed: int = 3) -> dict[Node, np.ndarray]:
    """Arrays for the inputs: `random`, `large`, `tiny`, `constant`, or `special` with NaN and infinities."""
    rng = np.random.default_rng(seed)
    found = {}
    for n in inputs:
        x = np.asarray(rng.standard_normal(n.shape))
        if kind in ("large", "tiny"):
            x *= 3e3 if kind == "large" else 1e-4
        x = np.full_like(x, 0.7) if kind == "constant" else x
        x = np.abs(x) if n.hint == "rstd" else x
        if kind == "special" and x.size > 40:
            x.flat[[3, x.size // 2, x.size - 1]] = np.nan, np.inf, -np.inf
        found[n] = x.astype(n.dtype.numpy)
    return found


KINDS = ("random", "large", "tiny", "constant", "special")
