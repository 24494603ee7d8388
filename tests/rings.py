"""Regions whose rows are reduced and written across. In: an element type, rows, columns. Out: regions, and their
kernels by way of a ring.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, DType
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.schedule import Schedule
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from tests.emit import triton_cases as cases

Region = tuple[list[Node], list[Node]]


def lowered(region: Region, target: Target, schedule: Schedule | None = None) -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel whose rows go by way of a ring, and what it reads."""
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("region", Work(tuple(outputs), frozenset(inputs), layouts, ring=True), target, schedule=schedule)


def softmax(dtype: DType, rows: int, cols: int) -> Region:
    """Softmax along rows, written across: two numbers of a row are given."""
    x = b.placeholder("x", dtype, (rows, cols))
    y = b.cast(_softmax(b.cast(x, F32) if dtype.is_narrow else x), dtype) if dtype.is_narrow else _softmax(x)
    return [x], [b.apply("copy", b.permute(y, (1, 0)))]


def _softmax(x: Node) -> Node:
    top = b.reduce("max", x, (1,))
    weights = b.apply("exp", b.apply("sub", x, b.spread_over(top, x, (1,))))
    return b.apply("div", weights, b.spread_over(b.reduce("sum", weights, (1,)), x, (1,)))


def residual(dtype: DType, rows: int, cols: int) -> Region:
    """(x + r) * scale of its row, over the root of the sum of squares, in batches: two tensors go by way of rings."""
    x, r = (b.placeholder(name, dtype, (2, rows // 2, cols)) for name in "xr")
    scale = b.placeholder("scale", F32, (2, rows // 2))
    both = b.apply("add", *(b.cast(n, F32) if dtype.is_narrow else n for n in (x, r)))
    total = b.reduce("sum", b.apply("mul", both, both), (2,))
    root = b.apply("mul", b.apply("rsqrt", b.apply("add", total, b.like(1e-3, total))), scale)
    y = b.apply("mul", both, b.spread_over(root, both, (2,)))
    return [x, r, scale], [b.apply("copy", b.permute(b.cast(y, dtype) if dtype.is_narrow else y, (0, 2, 1)))]


def norm(dtype: DType, rows: int, cols: int) -> Region:
    """LayerNorm with weights, written across."""
    return cases.turned_norm_region(dtype, rows, cols, False)


def statistics(dtype: DType, rows: int, cols: int) -> Region:
    """Softmax, written across, and what a row gives besides."""
    return cases.turned_region(dtype, rows, cols, False)


PLAIN = (norm, softmax)
REGIONS = (*PLAIN, residual, statistics)
