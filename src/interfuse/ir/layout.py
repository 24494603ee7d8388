"""Layouts of buffers. In: shapes and strides. Out: how a value lies in memory, and views of one buffer as another value.

Layout belongs to buffers (graph inputs, outputs, operands of library calls), never to values.
"""
from __future__ import annotations

from dataclasses import dataclass

from interfuse.ir.index import Dim, contiguous_strides, product, unwrap, wrap
from interfuse.ir.node import Node


@dataclass(frozen=True)
class Layout:
    """Strides and offset of a value in its buffer, in elements."""

    strides: tuple[Dim, ...]
    offset: Dim = 0

    def is_contiguous(self, shape: tuple[Dim, ...]) -> bool:
        """True where elements lie row-major without gaps; dimensions of size 1 may have any stride."""
        wanted = contiguous_strides(shape)
        return all(d == 1 or s == w for d, s, w in zip(shape, self.strides, wanted, strict=True))


def contiguous(shape: tuple[Dim, ...]) -> Layout:
    """The row-major layout of a shape."""
    return Layout(contiguous_strides(shape))


def view_of(node: Node, base: Layout) -> Layout | None:
    """The layout that makes the movement `node` a view of its input's buffer; None where only a copy will do."""
    source = node.inputs[0]
    if node.op == "permute":
        return Layout(tuple(base.strides[p] for p in node.attr("order")), base.offset)
    if node.op == "expand":
        strides = tuple(0 if a != b else s for a, b, s in zip(source.shape, node.shape, base.strides, strict=True))
        return Layout(strides, base.offset)
    if node.op == "slice":
        offset = wrap(base.offset)
        for start, stride in zip(node.attr("starts"), base.strides, strict=True):
            offset = offset + start * wrap(stride)
        steps = node.attr("steps")
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
        if not isinstance(room, int) or not isinstance(d, int):
            if room != d:
                return None
            strides.append(stride)
            room = 1
        elif room % d:
            return None
        else:
            strides.append(stride)
            room, stride = room // d, unwrap(wrap(stride) * d)
    return Layout(tuple(reversed(strides)), base.offset)
