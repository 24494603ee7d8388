"""Regions with indirect loads, for every backend's tests. In: nothing. Out: regions by name, and values for them.

Tables are read by rows, by columns, element by element and through several indices, at places that are inputs or that
the region computes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import BOOL, F16, F32, I32, I64, DType
from interfuse.ir.index import at_sizes
from interfuse.ir.node import Node
from interfuse.tune.trial import index_ends
from tests.symbolic import BATCH, LENGTH

Region = tuple[list[Node], list[Node]]


def _in(name: str, *shape: int, dtype: DType = F32) -> Node:
    return b.placeholder(name, dtype, shape)


def _like(value: float, x: Node) -> Node:
    return b.broadcast(b.constant(value, x.dtype), x.shape)


def rows(table: Node, ids: Node, wraps: bool = False) -> Node:
    """table[ids]: one row of the table an index."""
    flat = b.reshape(ids, (ids.size, 1))
    found = b.gather(table, b.expand(flat, (ids.size, table.shape[1])), 0, wraps)
    return b.reshape(found, (*ids.shape, table.shape[1]))


def over_rows(op: str, x: Node, **attrs: float) -> Node:
    return b.expand(b.reduce(op, x, (len(x.shape) - 1,), keepdims=True, **attrs), x.shape)


def norm(x: Node, weight: Node) -> Node:
    centred = b.apply("sub", x, over_rows("mean", x))
    spread = b.apply("rsqrt", b.apply("add", over_rows("variance", x, correction=0), _like(1e-5, x)))
    return b.apply("mul", b.apply("mul", centred, spread), b.broadcast(weight, x.shape))


def log_softmax(x: Node) -> Node:
    shifted = b.apply("sub", x, over_rows("max", x))
    return b.apply("sub", shifted, b.apply("log", over_rows("sum", b.apply("exp", shifted))))


def _embedding() -> Region:
    table, ids, bias = _in("table", 30, 67), _in("ids", 2, 5, dtype=I64), _in("bias", 67)
    return [table, ids, bias], [b.apply("add", rows(table, ids), b.broadcast(bias, (2, 5, 67)))]


def _embeddings_and_norm() -> Region:
    words, places, kinds, weight = _in("words", 30, 40), _in("places", 7, 40), _in("kinds", 1, 40), _in("weight", 40)
    ids, kind = _in("ids", 2, 5, dtype=I64), _in("kind", 2, 5, dtype=I32)
    place = b.broadcast(rows(places, b.iota(5)), (2, 5, 40))
    total = b.apply("add", b.apply("add", rows(words, ids), place), rows(kinds, kind))
    return [words, places, kinds, weight, ids, kind], [norm(total, weight)]


def _columns_of_each_row() -> Region:
    x, at = _in("x", 6, 19), _in("at", 6, 3, dtype=I64)
    return [x, at], [b.apply("neg", b.gather(x, at, 1))]


def _elements() -> Region:
    x, at = _in("x", 50), _in("at", 4, 33, dtype=I64)
    picked = b.gather(x, b.reshape(b.apply("sub", at, _like(50, at)), (132,)), 0, wraps=True)
    return [x, at], [b.apply("tanh", b.reshape(picked, (4, 33)))]


def _small_elements() -> Region:
    x, at = _in("x", 50, dtype=BOOL), _in("at", 37, dtype=I32)
    return [x, at], [b.apply("not", b.gather(x, at, 0))]


def _two_indices() -> Region:
    x, i, j = _in("x", 4, 5, 21), _in("i", 7, dtype=I64), _in("j", 7, dtype=I64)
    first = b.gather(x, b.expand(b.reshape(i, (7, 1, 1)), (7, 5, 21)), 0)
    second = b.gather(first, b.expand(b.reshape(j, (7, 1, 1)), (7, 1, 21)), 1)
    return [x, i, j], [b.apply("exp", b.reshape(second, (7, 21)))]


def _middle() -> Region:
    x, at = _in("x", 3, 20, 17, dtype=I64), _in("at", 5, dtype=I64)
    found = b.gather(x, b.expand(b.reshape(at, (1, 5, 1)), (3, 5, 17)), 1)
    return [x, at], [b.apply("add", found, found)]


def _index_of_an_index() -> Region:
    table, names, ids = _in("table", 9, 24, dtype=F16), _in("names", 40, dtype=I64), _in("ids", 11, dtype=I64)
    found = b.cast(rows(table, b.gather(names, ids, 0)), F32)
    return [table, names, ids], [b.cast(b.rounded(b.apply("mul", found, _like(0.5, found)), F16), F16)]


def _place_of_the_largest() -> Region:
    x, y = _in("x", 6, 40), _in("y", 6, 40)
    best = b.reduce("argmax", x, (1,), keepdims=True)
    return [x, y], [b.apply("sub", x, b.expand(b.gather(y, best, 1), x.shape)), b.gather(y, best, 1)]


def _moved_source() -> Region:
    x, at = _in("x", 8, 3, 10), _in("at", 24, 2, dtype=I64)
    moved = b.reshape(b.permute(x, (2, 0, 1)), (10, 24))
    part = b.take_slice(b.permute(moved, (1, 0)), (0, 2), (24, 8))
    return [x, at], [b.apply("neg", b.gather(part, at, 1))]


def _cross_entropy() -> Region:
    x, target = _in("x", 5, 40), _in("target", 5, dtype=I64)
    ignored = b.apply("eq", target, _like(3, target))
    safe = b.reshape(b.apply("where", ignored, _like(0, target), target), (5, 1))
    picked = b.reshape(b.gather(log_softmax(x), safe, 1), (5,))
    return [x, target], [b.apply("where", ignored, _like(0.0, picked), b.apply("neg", picked))]


def _summed_rows() -> Region:
    table, ids = _in("table", 12, 35), _in("ids", 20, dtype=I64)
    found = rows(table, ids)
    return [table, ids], [b.reduce("sum", found, (0,)), b.reduce("max", found, (0,))]


def _softmax_of_elements() -> Region:
    x, at, scale = _in("x", 6, 19), _in("at", 6, 21, dtype=I32), _in("scale", 21)
    found = b.apply("mul", b.gather(x, at, 1), b.broadcast(scale, (6, 21)))
    return [x, at, scale], [log_softmax(found)]


def _joined() -> Region:
    """Looked-up rows behind a first row, and beside more columns."""
    table, ids, first = _in("table", 30, 20), _in("ids", 6, dtype=I64), _in("first", 1, 20)
    more = _in("more", 7, 13)
    found = b.concat([first, rows(table, ids)], 0)
    return [table, ids, first, more], [b.apply("neg", b.concat([found, more], 1))]


def _index_of_joined() -> Region:
    table, ids = _in("table", 30, 20), _in("ids", 6, dtype=I64)
    framed = b.pad(ids, (1,), (2,), 29)
    return [table, ids], [norm(rows(table, framed), b.take_slice(b.reshape(table, (600,)), (0,), (20,)))]


def _batch_of_rows() -> Region:
    words, places = _in("words", 30, 20), _in("places", 16, 20)
    ids, weight = b.placeholder("ids", I64, (BATCH, LENGTH)), _in("weight", 20)
    place = b.broadcast(rows(places, b.iota(LENGTH)), (BATCH, LENGTH, 20))
    return [words, places, ids, weight], [norm(b.apply("add", rows(words, ids), place), weight)]


def _table_of_any_length() -> Region:
    table, ids = b.placeholder("table", F32, (LENGTH, 20)), b.placeholder("ids", I64, (BATCH,))
    return [table, ids], [b.apply("neg", rows(table, ids, wraps=True))]


CASES: Mapping[str, Callable[[], Region]] = {
    f.__name__[1:]: f
    for f in (
        _embedding,
        _embeddings_and_norm,
        _columns_of_each_row,
        _elements,
        _small_elements,
        _two_indices,
        _middle,
        _index_of_an_index,
        _place_of_the_largest,
        _moved_source,
        _cross_entropy,
        _summed_rows,
        _softmax_of_elements,
        _joined,
        _index_of_joined,
    )
}
SYMBOLIC: Mapping[str, Callable[[], Region]] = {f.__name__[1:]: f for f in (_batch_of_rows, _table_of_any_length)}
"""Regions over the sizes of tests/symbolic.py."""


def arrays(region: Region, sizes: Mapping[str, int] | None = None, seed: int = 7) -> dict[Node, np.ndarray]:
    """Values for a region's inputs: indices anywhere in what they pick from."""
    rng, ends = np.random.default_rng(seed), index_ends(region[1], region[0])
    out = {}
    for x in region[0]:
        shape = tuple(at_sizes(d, sizes or {}) for d in x.shape)
        if x.dtype.is_float:
            out[x] = rng.standard_normal(shape).astype(x.dtype.numpy)
        else:
            end = at_sizes(ends.get(x, 2), sizes or {})
            out[x] = rng.integers(0, max(end, 1), shape).astype(x.dtype.numpy)
    return out
