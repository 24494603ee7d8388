"""Indirect loads. In: ATen calls that read where integers tell. Out: gathers along one axis, between movements.

A call with several index tensors is a gather along each dimension, one inside the other, so that each index is checked
against its own dimension; all of them become one load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interfuse.capture.rules import lowers
from interfuse.capture.values import (
    Maker,
    axis_of,
    broadcast_shape,
    expand,
    permute,
    reshape,
    take_slice,
)
from interfuse.ir import build
from interfuse.ir.index import Dim
from interfuse.ir.node import Node


def picked(source: Node, index: Node, axis: int, wraps: bool = False) -> Node:
    """source[..., index, ...]: the index, of one dimension, in the place of `axis`."""
    shape = tuple(index.shape[0] if k == axis else d for k, d in enumerate(source.shape))
    along = tuple(index.shape[0] if k == axis else 1 for k in range(len(shape)))
    return build.gather(source, expand(reshape(index, along), shape), axis, wraps)


@lowers("embedding")
def _embedding(c: Maker, weight: Node, indices: Node, *_: Any, **__: Any) -> Node:
    return reshape(picked(weight, reshape(indices, (indices.size,)), 0), c.shape)


@lowers("index_select")
def _index_select(c: Maker, self: Node, dim: int, index: Node) -> Node:
    source = self if self.shape else reshape(self, (1,))
    return reshape(picked(source, reshape(index, (index.size,)), axis_of(dim, len(self.shape))), c.shape)


@lowers("gather")
def _gather(c: Maker, self: Node, dim: int, index: Node, **_: Any) -> Node:
    axis = axis_of(dim, len(self.shape))
    source, at = (x if x.shape else reshape(x, (1,)) for x in (self, index))
    for k, size in enumerate(at.shape):
        if k != axis:  # a smaller index reads the first elements of the other dimensions
            source = take_slice(source, k, 0, size)
    return reshape(build.gather(source, at, axis), c.shape)


@lowers("take")
def _take(c: Maker, self: Node, index: Node) -> Node:
    return reshape(picked(reshape(self, (self.size,)), reshape(index, (index.size,)), 0, wraps=True), c.shape)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Maker, self: Node, indices: Sequence[Node | None]) -> Node:
    given = {k: i for k, i in enumerate(indices) if i is not None}
    places = list(given)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    rest = [k for k in range(len(self.shape)) if k not in given]
    # Indexed dimensions that stand apart come first in the result.
    before = [k for k in rest if adjacent and k < places[0]]
    order = [*before, *places, *(k for k in rest if k not in before)]
    common = broadcast_shape([i.shape for i in given.values()])
    flat = [reshape(expand(i, common), (c.count(expand(i, common), range(len(common))),)) for i in given.values()]
    return reshape(_all_picked(permute(self, order), flat, len(before)), c.shape)


def _all_picked(source: Node, indices: Sequence[Node], axis: int) -> Node:
    """source with its dimensions from `axis` on, one for each index, replaced by the one that the indices share."""
    out = picked(source, indices[0], axis, wraps=True)
    for index in indices[1:]:
        # out[..., j, p, ...] at p = index[j]
        shape: list[Dim] = list(out.shape)
        shape[axis + 1] = 1
        along = [d if k == axis else 1 for k, d in enumerate(shape)]
        told = expand(reshape(index, along), shape)
        out = build.gather(out, told, axis + 1, wraps=True)
        out = reshape(out, (*shape[: axis + 1], *shape[axis + 2 :]))
    return out
