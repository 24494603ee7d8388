"""Layouts of buffers. In: shapes and strides. Out: how a value lies in memory, and views of one buffer as another
value.

Layout belongs to buffers (graph inputs, outputs, operands of library calls), never to values.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

from interfuse.ir.index import Dim, contiguous_strides, floordiv, maximum, mod, product, unwrap, wrap
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES


@dataclass(frozen=True)
class Layout:
    """Strides and offset of a value in its buffer, in elements."""

    strides: tuple[Dim, ...]
    offset: Dim = 0

    def is_contiguous(self, shape: tuple[Dim, ...]) -> bool:
        """True where elements lie row-major without gaps; dimensions of size 1 may have any stride."""
        wanted = contiguous_strides(shape)
        return all(d == 1 or s == w for d, s, w in zip(shape, self.strides, wanted, strict=True))


def laid_over(mine: Mapping[Node, Layout], others: Mapping[Node, Layout]) -> Mapping[Node, Layout]:
    """`mine` before `others`, both as they are: copies of all layouts for each of many regions would take a time that
    grows with the square of the graph.
    """
    return ChainMap(cast(Any, mine), cast(Any, others)) if mine else others


def contiguous(shape: tuple[Dim, ...]) -> Layout:
    """The row-major layout of a shape."""
    return Layout(contiguous_strides(shape))


@overload
def reach(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int: ...
@overload
def reach(shape: Sequence[Dim], strides: Sequence[Dim], itemsize: int) -> Dim: ...
def reach(shape: Sequence[Dim], strides: Sequence[Dim], itemsize: int) -> Dim:
    """Bytes from the first element of a tensor to the end of its last one."""
    last: Dim = 0
    for d, s in zip(shape, strides, strict=True):
        last = last + (d - 1) * s  # type: ignore[operator]
    return 0 if 0 in shape else (last + 1) * itemsize


def extent(shape: tuple[Dim, ...], strides: tuple[Dim, ...], itemsize: int) -> Dim:
    """Bytes of a buffer for a tensor, none where a size that changes is 0: more than those of its elements where they
    lie with gaps, as they do in what is scattered into every second column of a matrix.
    """
    if Layout(strides).is_contiguous(shape):
        return unwrap(wrap(product(shape)) * itemsize)
    return unwrap(maximum(reach(shape, strides, itemsize), 0))


def view_of(node: Node, base: Layout) -> Layout | None:
    """The layout that makes the movement `node` a view of its input's buffer; None where only a copy will do."""
    source = node.inputs[0]
    if node.op == "permute":
        return Layout(tuple(base.strides[p] for p in node.attr("order")), base.offset)
    if node.op == "expand":
        strides = tuple(0 if a != b else s for a, b, s in zip(source.shape, node.shape, base.strides, strict=True))
        return Layout(strides, base.offset)
    if node.op == "slice":
        offset, steps = wrap(base.offset), node.attr("steps")
        if min(steps, default=1) < 0:
            return None  # PyTorch has no negative strides
        for start, stride in zip(node.attr("starts"), base.strides, strict=True):
            offset = offset + start * wrap(stride)
        return Layout(tuple(unwrap(wrap(s) * k) for s, k in zip(base.strides, steps, strict=True)), unwrap(offset))
    if node.op == "reshape":
        return _reshaped(source.shape, node.shape, base)
    return None


def _runs(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> list[tuple[Dim, Dim]]:
    """Dimensions of size above 1 joined where one continues the next: [(size, inner stride)], outermost first."""
    runs: list[tuple[Dim, Dim]] = []
    for d, s in zip(shape, strides, strict=True):
        if d == 1:
            continue
        if runs and runs[-1][1] == unwrap(wrap(d) * s):
            runs[-1] = (product((runs[-1][0], d)), s)
        else:
            runs.append((d, s))
    return runs


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where b divides a whatever the size symbols are (as far as their terms show it); None else."""
    if isinstance(b, int):
        return unwrap(floordiv(a, b)) if unwrap(mod(a, b)) == 0 else None
    if a is b:
        return 1
    if isinstance(a, int):
        return None
    left = list(a.args if a.op == "mul" else (a,))
    number = left.pop().value if left[-1].op == "const" else 1
    for factor in b.args if b.op == "mul" else (b,):
        if factor.op == "const" and number % factor.value == 0:
            number //= factor.value
        elif factor in left:
            left.remove(factor)
        else:
            return None
    return product((*left, number))


def _reshaped(old: tuple[Dim, ...], new: tuple[Dim, ...], base: Layout) -> Layout | None:
    if product(old) == 0:
        return Layout(contiguous_strides(new), base.offset)
    runs = _runs(old, base.strides)
    strides: list[Dim] = []
    room, stride = runs.pop() if runs else (1, 1)
    for d in reversed(new):
        if d == 1:
            strides.append(stride)
            continue
        if room == 1 and runs:
            room, stride = runs.pop()
        left = _quotient(room, d)
        if left is None:
            return None
        strides.append(stride)
        room, stride = left, unwrap(wrap(stride) * d)
    return Layout(tuple(reversed(strides)), base.offset)


def base_of(node: Node, held: Container[Node] = ()) -> Node:
    """The value behind a chain of movements, or the first in it that is `held`."""
    while node not in held and node.op in MOVES:
        node = node.inputs[0]
    return node
