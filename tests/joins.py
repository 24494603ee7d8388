"""Regions that join parts, for every backend's tests. In: nothing. Out: regions by name, and arrays for their inputs.

Sizes are odd, so that parts end inside vectors and tiles; each region is one kernel on either target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, I64, U8, DType
from interfuse.ir.index import Dim
from interfuse.ir.node import Node
from tests.symbolic import Region


def _in(name: str, *shape: int, dtype: DType = F32) -> Node:
    return b.placeholder(name, dtype, shape)


def _like(value: float, x: Node) -> Node:
    return b.broadcast(b.constant(value, x.dtype), x.shape)


def _twice(x: Node) -> Node:
    return b.apply("mul", x, _like(2, x))


def _part(x: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    """x[start:stop:step] along one axis."""
    starts, shape, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    starts[axis], shape[axis], steps[axis] = start, len(range(start, stop, step)), step
    return b.take_slice(x, tuple(starts), tuple(shape), tuple(steps))


def norm(x: Node) -> Node:
    """x over the root of the mean of its squares, along the last axis."""
    mean = b.reduce("mean", b.apply("mul", x, x), (len(x.shape) - 1,), keepdims=True)
    scale = b.apply("rsqrt", b.apply("add", mean, _like(1e-5, mean)))
    return b.apply("mul", x, b.expand(scale, x.shape))


def rotary(x: Node, cos: Node, sin: Node) -> Node:
    """Rotary embedding with halves turned, as Llama does it."""
    axis, width = len(x.shape) - 1, int(x.shape[-1])
    first, second = _part(x, axis, 0, width // 2), _part(x, axis, width // 2, width)
    turned = b.concat([b.apply("neg", second), first], axis)
    straight = b.apply("mul", x, b.broadcast(cos, x.shape))
    return b.apply("add", straight, b.apply("mul", turned, b.broadcast(sin, x.shape)))


def kept_and_multiplied(length: Dim) -> Region:
    """A cache that grows, put out and multiplied: rows of what is put out are columns of the product."""
    past, new, query = (b.placeholder(n, F32, (2, size, 16)) for n, size in (("past", length), ("new", 1), ("q", 1)))
    cache = b.concat([past, new], 1)
    keys = b.permute(cache, (0, 2, 1))
    scores = b.reduce("sum", b.apply("mul", b.broadcast(b.permute(query, (0, 2, 1)), keys.shape), keys), (1,))
    return [past, new, query], [cache, scores]


def _rows() -> Region:
    x, y = _in("x", 3, 21), _in("y", 5, 21)
    return [x, y], [b.concat([x, y], 0)]


def _columns() -> Region:
    x, y, z = _in("x", 4, 13), _in("y", 4, 1), _in("z", 4, 38)
    return [x, y, z], [b.concat([x, y, z], 1)]


def _computed() -> Region:
    x, y, bias = _in("x", 2, 3, 9), _in("y", 2, 8, 9), _in("bias", 9)
    parts = [_twice(x), b.apply("exp", b.apply("add", y, b.broadcast(bias, y.shape)))]
    return [x, y, bias], [b.apply("add", b.concat(parts, 1), b.broadcast(bias, (2, 11, 9)))]


def _flat() -> Region:
    x, y = _in("x", 3, 7), _in("y", 2, 7)
    return [x, y], [_twice(b.concat([x, y, x], 0))]


def _rotary() -> Region:
    x, cos, sin = _in("x", 2, 3, 5, 22), _in("cos", 5, 22), _in("sin", 5, 22)
    return [x, cos, sin], [rotary(x, cos, sin)]


def _rotary_of_heads() -> Region:
    x, cos, sin = _in("x", 2, 5, 66), _in("cos", 2, 1, 5, 22), _in("sin", 2, 1, 5, 22)
    return [x, cos, sin], [rotary(b.permute(b.reshape(x, (2, 5, 3, 22)), (0, 2, 1, 3)), cos, sin)]


def _append() -> Region:
    past, new = _in("past", 2, 3, 6, 10), _in("new", 2, 3, 1, 10)
    return [past, new], [b.concat([past, new], 2)]


def _normed() -> Region:
    x, y, w = _in("x", 6, 19), _in("y", 6, 24), _in("w", 43)
    joined = b.concat([x, b.apply("tanh", y)], 1)
    return [x, y, w], [b.apply("mul", norm(joined), b.broadcast(w, joined.shape)), joined]


def _normed_rows() -> Region:
    x, y = _in("x", 3, 21), _in("y", 4, 21)
    return [x, y], [norm(b.concat([x, _twice(y)], 0))]


def _dense() -> Region:
    x, y, scale = _in("x", 2, 3, 5, 7), _in("y", 2, 2, 5, 7), _in("scale", 5, 1, 1)
    joined = b.concat([x, y], 1)
    return [x, y, scale], [
        b.apply("maximum", b.apply("mul", joined, b.broadcast(scale, joined.shape)), _like(0, joined))
    ]


def _nested() -> Region:
    x, y = _in("x", 4, 9), _in("y", 4, 17)
    inner = b.concat([x, y], 1)
    return [x, y], [b.concat([b.apply("abs", inner), _twice(b.concat([y, inner], 1))], 1)]


def _summed() -> Region:
    x, y = _in("x", 3, 4, 11), _in("y", 3, 6, 11)
    return [x, y], [b.reduce("sum", b.concat([x, y], 1), (1,)), b.reduce("max", b.concat([x, y], 1), (1,))]


def _summed_beside() -> Region:
    x, y = _in("x", 5, 40), _in("y", 5, 23)
    return [x, y], [b.reduce("sum", b.concat([x, y], 1), (0,))]


def _scanned() -> Region:
    x, y = _in("x", 3, 18), _in("y", 3, 21)
    return [x, y], [b.scan("cumsum", b.concat([x, y], 1), 1)]


def _turned() -> Region:
    x, y = _in("x", 4, 6), _in("y", 4, 11)
    return [x, y], [b.permute(_twice(b.concat([x, y], 1)), (1, 0))]


def _spread() -> Region:
    x, y = _in("x", 4, 1), _in("y", 1, 9)
    return [x, y], [b.concat([b.expand(x, (4, 5)), b.expand(y, (4, 9))], 1)]


def _channels_last() -> Region:
    x, y = _in("x", 2, 4, 5, 3), _in("y", 2, 4, 5, 2)
    back = (0, 3, 1, 2)
    return [x, y], [_twice(b.concat([b.permute(x, back), b.permute(y, back)], 1))]


def _padded() -> Region:
    x, r = _in("x", 2, 5, 7), _in("r", 2, 8, 9)
    return [x, r], [b.apply("add", b.pad(_twice(x), (0, 1, 2), (0, 2, 0), 0.5), r)]


def _padded_rows() -> Region:
    x = _in("x", 5, 30)
    return [x], [norm(b.pad(x, (0, 3), (0, 4), 1.0))]


def _padded_and_cropped() -> Region:
    x = _in("x", 6, 23)
    return [x], [b.pad(_part(x, 1, 3, 23), (2, 0), (0, 5), -1.0)]


def _reflected() -> Region:
    x = _in("x", 5, 6, 17)
    wide = b.concat([_part(x, 2, 3, 0, -1), x, _part(x, 2, 15, 13, -1)], 2)
    return [x], [b.concat([_part(wide, 1, 1, 0, -1), wide, _part(wide, 1, 4, 2, -1)], 1)]


def _replicated() -> Region:
    x = _in("x", 5, 17)
    return [x], [b.concat([b.expand(_part(x, 1, 0, 1), (5, 3)), x, b.expand(_part(x, 1, 16, 17), (5, 2))], 1)]


def _rolled() -> Region:
    x, y = _in("x", 3, 7, 6), _in("y", 3, 7, 6)
    up = b.concat([_part(x, 1, 5, 7), _part(x, 1, 0, 5)], 1)
    return [x, y], [b.apply("sub", b.concat([_part(up, 2, 1, 6), _part(up, 2, 0, 1)], 2), y)]


def _rolled_by_one() -> Region:
    """One element before the others: no index varies in its part."""
    x, y = _in("x", 33), _in("y", 33)
    return [x, y], [b.apply("add", b.concat([_part(x, 0, 32, 33), _part(x, 0, 0, 32)], 0), y)]


def _flipped() -> Region:
    x, y = _in("x", 4, 19), _in("y", 4, 19)
    return [x, y], [b.apply("sub", b.flip(x, (0, 1)), y)]


def _flipped_back() -> Region:
    x = _in("x", 4, 19)
    return [x], [b.flip(b.scan("cumsum", b.flip(x, (1,)), 1), (1,))]


def _flipped_rows() -> Region:
    x = _in("x", 3, 5, 19)
    whole = b.spread_over(b.reduce("sum", x, (2,)), x, (2,))
    return [x], [b.permute(b.flip(b.apply("sub", x, whole), (0, 2)), (0, 2, 1)), b.flip(_twice(x), (1,))]


def _half() -> Region:
    x, y = _in("x", 3, 13, dtype=F16), _in("y", 3, 20, dtype=F16)
    wide = b.concat([b.cast(x, F32), b.rounded(b.apply("tanh", b.cast(y, F32)), F16)], 1)
    return [x, y], [b.cast(wide, F16)]


def _half_as_it_is() -> Region:
    x, y = _in("x", 3, 13, dtype=F16), _in("y", 3, 20, dtype=F16)
    return [x, y], [b.pad(b.concat([x, y], 1), (1, 2), (0, 0), 3.0)]


def _bfloat() -> Region:
    x, cos, sin = (_in(n, 5, 22, dtype=BF16) for n in ("x", "cos", "sin"))
    return [x, cos, sin], [b.cast(rotary(*(b.cast(n, F32) for n in (x, cos, sin))), BF16)]


def _integers() -> Region:
    x, y = _in("x", 3, 13, dtype=I64), _in("y", 3, 20, dtype=I64)
    return [x, y], [b.apply("add", b.concat([x, _twice(y)], 1), b.broadcast(b.iota(33), (3, 33)))]


def _bytes() -> Region:
    x, y = _in("x", 3, 13, dtype=U8), _in("y", 3, 40, dtype=U8)
    return [x, y], [b.concat([x, y], 1)]


def _truth() -> Region:
    x, y = _in("x", 3, 13, dtype=BOOL), _in("y", 3, 20, dtype=BOOL)
    return [x, y], [b.apply("not", b.pad(b.concat([x, y], 1), (0, 1), (0, 0), True))]


def _picked() -> Region:
    table, y = _in("table", 7, 9), _in("y", 4, 9)
    turns = b.apply("and", b.apply("mul", b.iota(5), _like(3, b.iota(5))), _like(6, b.iota(5)))
    places = b.expand(b.reshape(turns, (5, 1)), (5, 9))
    return [table, y], [_twice(b.concat([b.gather(table, places, 0), y], 0))]


def _single() -> Region:
    x, y = _in("x", 1), _in("y", 1)
    return [x, y], [b.concat([x, _twice(y)], 0)]


CASES: Mapping[str, Callable[[], Region]] = {
    f.__name__.strip("_"): f
    for f in (
        _rows,
        _columns,
        _computed,
        _flat,
        _rotary,
        _rotary_of_heads,
        _append,
        _normed,
        _normed_rows,
        _dense,
        _nested,
        _summed,
        _summed_beside,
        _scanned,
        _turned,
        _spread,
        _channels_last,
        _padded,
        _padded_rows,
        _padded_and_cropped,
        _reflected,
        _replicated,
        _rolled,
        _rolled_by_one,
        _flipped,
        _flipped_back,
        _flipped_rows,
        _half,
        _half_as_it_is,
        _bfloat,
        _integers,
        _bytes,
        _truth,
        _picked,
        _single,
    )
}


def _large_rotary() -> Region:
    x, cos, sin = _in("x", 8, 32, 2048, 128), _in("cos", 2048, 128), _in("sin", 2048, 128)
    return [x, cos, sin], [rotary(x, cos, sin)]


def _large_append() -> Region:
    past, new = _in("past", 8, 8, 2047, 128, dtype=BF16), _in("new", 8, 8, 1, 128, dtype=BF16)
    return [past, new], [b.concat([past, new], 2)]


def _large_normed() -> Region:
    x, y = _in("x", 4096, 1024, dtype=BF16), _in("y", 4096, 3072, dtype=BF16)
    return [x, y], [b.cast(norm(b.concat([b.cast(x, F32), b.cast(y, F32)], 1)), BF16)]


def _large_padded() -> Region:
    x, r = _in("x", 32, 64, 224, 224), _in("r", 32, 64, 226, 226)
    return [x, r], [b.apply("add", b.pad(x, (0, 0, 1, 1), (0, 0, 1, 1)), r)]


LARGE: Mapping[str, Callable[[], Region]] = {
    "rotary": _large_rotary,
    "append": _large_append,
    "normed": _large_normed,
    "padded": _large_padded,
}
"""Sizes as models have them, for what is compiled and not run."""
