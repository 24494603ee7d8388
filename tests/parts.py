"""Regions whose reductions are cut into parts. In: a region and a target. Out: the works of its kernels.

`REGIONS` makes (inputs, outputs) from a type, a shape and an axis; `in_order` runs one kernel after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, DType
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.early import awaiting, early
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.split import split
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from tests import online
from tests.online import axes_of

Region = tuple[list[Node], list[Node]]
Shape = tuple[int, ...]
Run = Callable[[Kernel, list[np.ndarray], tuple[Node, ...]], list[np.ndarray]]
"""Runs a kernel on the flat arrays of what it reads, and gives what lies in the buffers of the nodes that it writes."""

SHAPES: dict[str, tuple[Shape, int | Shape]] = {
    "rows": ((3, 960), 1),
    "odd rows": ((2, 967), 1),
    "columns": ((2, 960, 5), 1),
    "odd columns": ((971, 3), 0),
    "apart": ((6, 5, 10, 16), (0, 2, 3)),
    "apart, the longest first": ((2, 320, 3, 5), (1, 3)),
}


def _spread(kept: Node, x: Node, axis: int | Shape) -> Node:
    return b.spread_over(kept, x, axes_of(axis))


def every(dtype: DType, shape: tuple[int, ...], axis: int | Shape) -> Region:
    """Every plain reduction, some of what is computed first."""
    x = b.placeholder("x", dtype, shape)
    wide = b.cast(x, F32) if dtype.is_narrow else x
    found = [b.reduce(op, wide, axes_of(axis)) for op in ("sum", "max", "min")]
    positive = b.apply("gt", wide, b.broadcast(b.constant(0, wide.dtype), shape))
    found += [b.reduce(op, positive, axes_of(axis)) for op in ("any", "all")]
    return [x], found


def norms(dtype: DType, shape: tuple[int, ...], axis: int | Shape) -> Region:
    """A value over its norm, the norm beside it, and a sum of the quotient: a reduction of reductions."""
    x = b.placeholder("x", dtype, shape)
    wide = b.cast(x, F32) if dtype.is_narrow else x
    norm = b.apply("sqrt", b.reduce("sum", b.apply("mul", wide, wide), axes_of(axis)))
    y = b.apply("div", wide, _spread(norm, wide, axis))
    return [x], [b.cast(n, dtype) for n in (y, norm, b.reduce("sum", b.apply("abs", y), axes_of(axis)))]


def places(dtype: DType, shape: tuple[int, ...], axis: int | Shape) -> Region:
    """Places of the largest and smallest elements."""
    x = b.placeholder("x", dtype, shape)
    return [x], [b.reduce(op, x, axes_of(axis)) for op in ("argmax", "argmin", "max")]


REGIONS: dict[str, Callable[[DType, tuple[int, ...], Any], Region]] = {
    **online.REGIONS, "every": every, "norms": norms, "places": places
}  # fmt: skip

CUT = [(name, shape) for name in REGIONS for shape, (_, axis) in SHAPES.items() if name != "places" or axis in (0, 1)]
"""Regions and shapes: places are those along one axis."""


def works(region: Region, target: Target) -> tuple[Work, ...]:
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    whole = Work(tuple(outputs), frozenset(inputs), layouts)
    return awaiting(split(whole, target), whole.inputs)


def in_order(
    region: Region,
    target: Target,
    arrays: dict[Node, np.ndarray],
    run: Run,
    cut: Callable[[Region, Target], tuple[Work, ...]] = works,
) -> list[np.ndarray]:
    """The outputs, from one kernel after the other; `cut` says which."""
    held = {n: a.ravel() for n, a in arrays.items()}
    found = cut(region, target)
    assert len(found) > 1
    for work in found:
        kernel, reads = lower("kernel", work, target)
        kernel = early(kernel, reads, work) if target.backend == "triton" else kernel
        held |= zip(work.outputs, run(kernel, [held[n] for n in reads], work.outputs), strict=True)
    return [held[o].reshape(o.shape) for o in region[1]]
