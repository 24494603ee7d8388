"""Regions over sizes that change between calls, for every backend's tests. In: nothing. Out: regions, sizes, values.

`s0` is a batch and `s1` a length, both from 0 up; `CASES` holds the regions by name, `SIZES` what to bind them to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, F64, DType
from interfuse.ir.index import Dim, at_sizes, sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import Target
from interfuse.lower.work import Work

BATCH, LENGTH = sym("s0"), sym("s1")
SIZES: tuple[Mapping[str, int], ...] = tuple(
    {"s0": batch, "s1": length} for batch, length in ((2, 7), (0, 3), (3, 0), (1, 1), (5, 1), (1, 13), (4, 16))
)
Region = tuple[list[Node], list[Node]]


def _in(name: str, *shape: Dim, dtype: DType = F32) -> Node:
    return b.placeholder(name, dtype, shape)


def _like(value: float, x: Node) -> Node:
    return b.broadcast(b.constant(value, x.dtype), x.shape)


def _over_rows(op: str, x: Node, **attrs: float) -> Node:
    return b.expand(b.reduce(op, x, (len(x.shape) - 1,), keepdims=True, **attrs), x.shape)


def _softmax(x: Node) -> Node:
    e = b.apply("exp", b.apply("sub", x, _over_rows("max", x)))
    return b.apply("div", e, _over_rows("sum", e))


def _norm(x: Node, weight: Node) -> Node:
    centred = b.apply("sub", x, _over_rows("mean", x))
    spread = b.apply("rsqrt", b.apply("add", _over_rows("variance", x, correction=0), _like(1e-5, x)))
    return b.apply("mul", b.apply("mul", centred, spread), b.broadcast(weight, x.shape))


def _flat() -> Region:
    x, y = _in("x", BATCH, LENGTH, 6), _in("y", BATCH, LENGTH, 6)
    return [x, y], [b.apply("tanh", b.apply("add", x, y))]


def _bias() -> Region:
    x, bias = _in("x", BATCH, LENGTH, 21), _in("bias", 21)
    return [x, bias], [b.apply("add", x, b.broadcast(bias, x.shape))]


def _middle() -> Region:
    x, place = _in("x", BATCH, LENGTH, 5), _in("place", LENGTH, 5)
    return [x, place], [b.apply("add", x, b.broadcast(place, x.shape))]


def _inner() -> Region:
    x, scale = _in("x", BATCH, 3, LENGTH), _in("scale", 3, 1)
    return [x, scale], [b.apply("mul", x, b.broadcast(scale, x.shape))]


def _two_inner() -> Region:
    x, scale = _in("x", 3, BATCH, LENGTH), _in("scale", 3, 1, 1)
    return [x, scale], [
        b.apply("mul", b.reshape(x, (3, BATCH * LENGTH)), b.broadcast(b.reshape(scale, (3, 1)), (3, BATCH * LENGTH)))
    ]


def _norm_rows() -> Region:
    x, r, w = _in("x", BATCH, LENGTH, 19), _in("r", BATCH, LENGTH, 19), _in("weight", 19)
    s = b.apply("add", x, r)
    return [x, r, w], [_norm(s, w), s]


def _masked_softmax() -> Region:
    x, mask = _in("x", BATCH, 3, LENGTH, 9), _in("mask", BATCH, 1, 1, 9)
    return [x, mask], [_softmax(b.apply("add", x, b.broadcast(mask, x.shape)))]


def _half_rows() -> Region:
    x = _in("x", BATCH, LENGTH, 20, dtype=F16)
    return [x], [b.cast(b.rounded(_softmax(b.cast(x, F32)), F16), F16)]


def _heads() -> Region:
    x = _in("x", BATCH, LENGTH, 12)
    split = b.permute(b.reshape(x, (BATCH, LENGTH, 3, 4)), (0, 2, 1, 3))
    return [x], [b.apply("mul", split, _like(0.5, split))]


def _joined_heads() -> Region:
    x, w = _in("x", BATCH, 3, LENGTH, 4), _in("weight", 12)
    joined = b.reshape(b.apply("copy", b.permute(x, (0, 2, 1, 3))), (BATCH * LENGTH, 12))
    return [x, w], [_norm(joined, w)]


def _slice() -> Region:
    x, y = _in("x", BATCH, LENGTH + 1, 6), _in("y", BATCH, LENGTH, 6)
    return [x, y], [b.apply("sub", b.take_slice(x, (0, 1, 0), (BATCH, LENGTH, 6)), y)]


def _last_half() -> Region:
    x = _in("x", BATCH, LENGTH * 2, 6)
    return [x], [b.apply("exp", b.take_slice(x, (0, LENGTH, 0), (BATCH, LENGTH, 6)))]


def _transposed() -> Region:
    x, y = _in("x", LENGTH, 5), _in("y", 5, LENGTH)
    return [x, y], [b.apply("add", b.permute(x, (1, 0)), y)]


def _positions() -> Region:
    x = _in("x", BATCH, LENGTH, 4)
    place = b.broadcast(b.reshape(b.cast(b.iota(LENGTH), F32), (LENGTH, 1)), x.shape)
    return [x], [b.apply("mul", x, place)]


def _row_values() -> Region:
    x = _in("x", BATCH, LENGTH, 11)
    return [x], [b.reduce("mean", x, (2,)), b.reduce("max", x, (2,))]


def _columns() -> Region:
    x = _in("x", BATCH, 5, LENGTH)
    total = b.reduce("sum", x, (1,), keepdims=True)
    return [x], [b.apply("div", x, b.expand(total, x.shape))]


def _middle_columns() -> Region:
    x = _in("x", BATCH, LENGTH, 6, 4)
    return [x], [b.reduce("max", x, (2,)), b.reduce("mean", x, (2,))]


def _scans() -> Region:
    x = _in("x", BATCH, LENGTH, 13)
    return [x], [b.apply("mul", b.scan("cumsum", x, 2), _like(0.5, x))]


def _scans_down() -> Region:
    x = _in("x", BATCH, 5, LENGTH)
    return [x], [b.scan("cumsum", x, 1, reverse=True)]


def _grown() -> Region:
    past, new = _in("past", BATCH, 3, LENGTH, 10), _in("new", BATCH, 3, 1, 10)
    return [past, new], [b.concat([past, new], 2)]


def _row_grown() -> Region:
    """One row, such as tokens so far, and the next."""
    past, new = _in("past", 1, LENGTH), _in("new", 1, 1)
    return [past, new], [b.concat((past, new), 1)]


def _grown_at_the_end() -> Region:
    past, new, scale = _in("past", 3, BATCH, LENGTH), _in("new", 3, BATCH, 2), _in("scale", 3, 1, 1)
    joined = b.concat([past, b.apply("neg", new)], 2)
    return [past, new, scale], [b.apply("mul", joined, b.broadcast(scale, joined.shape))]


def _two_lengths() -> Region:
    x, y, w = _in("x", BATCH, 13), _in("y", LENGTH, 13), _in("weight", 13)
    return [x, y, w], [_norm(b.concat([x, y], 0), w)]


def _rotary() -> Region:
    x, cos, sin = _in("x", BATCH, 3, LENGTH, 10), _in("cos", LENGTH, 10), _in("sin", LENGTH, 10)
    first, second = (b.take_slice(x, (0, 0, 0, at), (BATCH, 3, LENGTH, 5)) for at in (0, 5))
    turned = b.concat([b.apply("neg", second), first], 3)
    straight = b.apply("mul", x, b.broadcast(cos, x.shape))
    return [x, cos, sin], [b.apply("add", straight, b.apply("mul", turned, b.broadcast(sin, x.shape)))]


def _padded() -> Region:
    x = _in("x", BATCH, LENGTH, 7)
    return [x], [b.apply("abs", b.pad(x, (0, 1, 2), (0, 2, 0), -1.0))]


def _flipped() -> Region:
    x = _in("x", BATCH, LENGTH, 6)
    return [x], [b.apply("exp", b.flip(x, (1,)))]


def _flipped_at_the_end() -> Region:
    x = _in("x", BATCH, LENGTH, 6)
    return [x], [b.flip(b.apply("exp", x), (1, 2))]


CASES: Mapping[str, Callable[[], Region]] = {
    f.__name__.strip("_"): f
    for f in (
        _flat,
        _bias,
        _middle,
        _inner,
        _two_inner,
        _norm_rows,
        _masked_softmax,
        _half_rows,
        _heads,
        _joined_heads,
        _slice,
        _last_half,
        _transposed,
        _positions,
        _row_values,
        _columns,
        _scans,
        _scans_down,
        _middle_columns,
        _grown,
        _row_grown,
        _grown_at_the_end,
        _two_lengths,
        _rotary,
        _padded,
        _flipped,
        _flipped_at_the_end,
    )
}


def _long(*names: str, dtype: DType = F32) -> list[Node]:
    return [_in(n, BATCH, 3, LENGTH, dtype=dtype) for n in names]


def _long_softmax() -> Region:
    (x,) = _long("x", dtype=F16)
    return [x], [b.cast(b.rounded(_softmax(b.cast(x, F32)), F16), F16)]


def _long_norm() -> Region:
    x, r = _long("x", "r")
    w = _in("weight", LENGTH)
    s = b.apply("add", x, r)
    return [x, r, w], [_norm(s, w), s]


def _long_results() -> Region:
    """All that a row may carry from step to step at once."""
    x, r, w = _in("x", BATCH, LENGTH), _in("r", BATCH, LENGTH), _in("weight", LENGTH)
    s = b.apply("add", x, r)
    statistics = b.reduce("variance", s, (1,), correction=1), b.reduce("min", s, (1,)), b.reduce("sum", s, (1,))
    return [x, r, w], [_norm(s, w), _softmax(s), *statistics]


def _long_unbiased() -> Region:
    (x,) = _long("x")
    return [x], [b.reduce("variance", x, (2,), correction=1)]


def _long_rows_of_two() -> Region:
    x = _in("x", 3, BATCH, LENGTH)
    return [x], [b.reduce("sum", x, (1, 2)), b.reduce("mean", x, (1, 2))]


def _long_places() -> Region:
    (x,) = _long("x", dtype=F64)
    return [x], [b.reduce("argmax", x, (2,)), b.reduce("min", x, (2,))]


def _long_scan() -> Region:
    (x,) = _long("x")
    return [x], [b.apply("mul", b.scan("cumsum", x, 2), _like(0.5, x))]


def _long_scan_back() -> Region:
    (x,) = _long("x")
    return [x], [b.scan("cumsum", x, 2, reverse=True)]


def _tall() -> Region:
    x = _in("x", BATCH, LENGTH, 6)
    mean = b.reduce("mean", x, (1,), keepdims=True)
    spread = b.reduce("variance", x, (1,), keepdims=True, correction=1)
    return [x], [b.apply("div", b.apply("sub", x, b.expand(mean, x.shape)), b.expand(spread, x.shape))]


def _tall_scan() -> Region:
    x = _in("x", BATCH, LENGTH, 6)
    return [x], [b.scan("cumsum", x, 1)]


def _counted() -> Region:
    x, scale = _in("x", BATCH, LENGTH), _in("scale", BATCH, 1)
    total = b.reduce("sum", b.broadcast(scale, x.shape), (1,), keepdims=True)
    return [x, scale], [b.apply("mul", x, b.expand(total, x.shape))]


LONG: Mapping[str, Callable[[], Region]] = {
    f.__name__.strip("_"): f
    for f in (
        _long_softmax,
        _long_norm,
        _long_results,
        _long_unbiased,
        _long_rows_of_two,
        _long_places,
        _long_scan,
        _long_scan_back,
        _tall,
        _tall_scan,
        _counted,
    )
}
"""Regions that reduce or scan a size that changes, by name; `LENGTHS` is what to bind them to."""

HELD = tuple(name for name in LONG if name != "tall_scan")
"""Those of them that a GPU program holds where they are as short as the example's."""

LENGTHS: tuple[Mapping[str, int], ...] = tuple(
    {"s0": batch, "s1": length} for batch, length in ((2, 7), (0, 3), (1, 1), (2, 16), (1, 2100))
)


EVERY: Mapping[str, Callable[[], Region]] = {**CASES, **LONG}
"""All of them; `sizes_of` says what to bind them to."""


def sizes_of(name: str) -> tuple[Mapping[str, int], ...]:
    """Sizes for the region of that name."""
    return LENGTHS if name in LONG else SIZES


def lowered(
    region: Region, target: Target, example: Mapping[str, int] | None = None
) -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel of a region whose buffers are contiguous, and the inputs that it reads in order; `example` are sizes
    that are known of an example.
    """
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts, sizes=example or {}), target)


def shape_of(node: Node, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The node's shape at these sizes."""
    return tuple(at_sizes(d, sizes) for d in node.shape)


def arrays(nodes: Sequence[Node], sizes: Mapping[str, int], seed: int = 0) -> dict[Node, np.ndarray]:
    """Normal numbers for each node."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(shape_of(n, sizes)).astype(n.dtype.numpy) for n in nodes}


def count(node: Node, sizes: Mapping[str, int]) -> int:
    """The elements of the node at these sizes."""
    return math.prod(shape_of(node, sizes))
