"""Joined parts. In: ATen calls that put tensors beside each other, or constants or copies of a tensor around it. Out:
concats and pads.

Whatever mode a padding has, it is parts of the operand side by side; so is a roll, and writing into a part of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from interfuse.capture.aten_movement import clamped
from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, axis_of, convert, expand, number, permute, reshape, unsupported, wide
from interfuse.ir import build, index
from interfuse.ir.index import Dim, unwrap, wrap
from interfuse.ir.node import Node


def _joined(c: Maker, parts: Sequence[Node], axis: int) -> Node:
    """The parts one after another in the call's type, still wide; what has no elements is left out."""
    full = [convert(p, c.dtype) for p in parts if p.shape[axis] != 0]
    if not full:
        return c.constant(0, wide(build.constant(0, c.dtype)).dtype, parts[0].shape)
    return build.concat(full, axis, source=c.source, hint="joined")


@lowers("cat")
def _cat(c: Maker, tensors: Sequence[Node], dim: int = 0) -> Node:
    parts = [t for t in tensors if t.shape != (0,)]  # PyTorch passes over them, whatever the others' rank is
    if not parts:
        return c.constant(0, c.dtype, c.shape)
    return c.narrow(_joined(c, parts, axis_of(dim, len(c.shape))))


@lowers("stack")
def _stack(c: Maker, tensors: Sequence[Node], dim: int = 0) -> Node:
    axis = axis_of(dim, len(c.shape))
    parts = [reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors]
    return c.narrow(_joined(c, parts, axis))


def _sides(padding: Sequence[Dim], rank: int) -> list[tuple[int, Dim, Dim]]:
    """(axis, before, after) of PyTorch's padding, which begins with the last dimension."""
    return [(rank - 1 - k // 2, padding[k], padding[k + 1]) for k in range(0, len(padding), 2)]


def _signed(p: Dim) -> tuple[Dim, Dim]:
    """(elements to add, elements to take away) of one side."""
    if wrap(p).lo >= 0:
        return p, 0
    if wrap(p).hi <= 0:
        return 0, unwrap(wrap(p) * -1)
    raise unsupported("a padding whose sign depends on sizes")


@lowers("constant_pad_nd")
def _constant_pad(c: Maker, self: Node, pad: Sequence[Dim], value: Any = 0) -> Node:
    x, rank = wide(self), len(self.shape)
    lo, hi = list[Dim]([0] * rank), list[Dim]([0] * rank)
    for axis, before, after in _sides(pad, rank):
        (lo[axis], front), (hi[axis], back) = _signed(before), _signed(after)
        x = c.part(x, axis, front, unwrap(wrap(x.shape[axis]) - front - back))
    given = number(value)
    if isinstance(given, float) and self.dtype.kind in ("int", "uint"):
        if not math.isfinite(given):
            raise unsupported("a fill that its type cannot hold")
        given = int(given)
    held = wide(c.constant(given, self.dtype)).attr("value")
    return c.narrow(build.pad(x, tuple(lo), tuple(hi), held, source=c.source))


def _padded(c: Maker, x: Node, padding: Sequence[Dim], before: Any, after: Any) -> Node:
    """x with before(x, axis, count) and after(x, axis, count) beside it, one dimension after another."""
    for axis, lo, hi in _sides(padding, len(x.shape)):
        if min(wrap(lo).lo, wrap(hi).lo) < 0:
            raise unsupported("a negative padding of this mode")
        parts = [before(x, axis, lo)] * (lo != 0) + [x] + [after(x, axis, hi)] * (hi != 0)
        x = build.concat(parts, axis, source=c.source, hint="padded")
    return c.narrow(x)


@lowers("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(c: Maker, self: Node, padding: Sequence[Dim]) -> Node:
    return _padded(
        c,
        wide(self),
        padding,
        lambda x, axis, n: c.part(x, axis, n, n, -1),
        lambda x, axis, n: c.part(x, axis, unwrap(wrap(x.shape[axis]) - 2), n, -1),
    )


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(c: Maker, self: Node, padding: Sequence[Dim]) -> Node:
    def edge(x: Node, axis: int, at: Dim, n: Dim) -> Node:
        return expand(c.part(x, axis, at, 1), (*x.shape[:axis], n, *x.shape[axis + 1 :]))

    return _padded(
        c,
        wide(self),
        padding,
        lambda x, axis, n: edge(x, axis, 0, n),
        lambda x, axis, n: edge(x, axis, unwrap(wrap(x.shape[axis]) - 1), n),
    )


@lowers("flip")
def _flip(c: Maker, self: Node, dims: Sequence[int]) -> Node:
    return build.flip(self, [axis_of(d, len(self.shape)) for d in dims])


@lowers("rot90")
def _rot90(c: Maker, self: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    first, second = (axis_of(d, len(self.shape)) for d in dims)
    turned = build.flip(self, ((), (second,), (first, second), (first,))[k % 4])
    order = list(range(len(self.shape)))
    if k % 2:
        order[first], order[second] = second, first
    return permute(turned, order)


@lowers("roll")
def _roll(c: Maker, self: Node, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Node:
    x = wide(self) if dims else reshape(wide(self), (self.size,))
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        axis = axis_of(dim, len(x.shape))
        size = x.shape[axis]
        if not isinstance(shift, int) or not isinstance(size, int):
            raise unsupported("a roll whose parts depend on sizes")
        cut = -shift % size if size else 0
        if cut:
            x = build.concat([c.part(x, axis, cut, size - cut), c.part(x, axis, 0, cut)], axis, source=c.source)
    return c.narrow(reshape(x, c.shape))


@lowers("repeat")
def _repeat(c: Maker, self: Node, repeats: Sequence[Dim]) -> Node:
    shape = (1,) * (len(repeats) - len(self.shape)) + self.shape
    apart = [d for n in shape for d in (1, n)]
    full = [d for n, times in zip(shape, repeats, strict=True) for d in (times, n)]
    return reshape(expand(reshape(self, apart), full), c.shape)


def _written(c: Maker, x: Node, src: Node, axis: int, start: Dim) -> Node:
    """x with src in the place of the part that begins at `start` along an axis."""
    end = index.unwrap(index.add(start, src.shape[axis]))
    rest = index.unwrap(index.add(x.shape[axis], index.mul(end, -1)))
    return c.narrow(_joined(c, [c.part(x, axis, 0, start), src, c.part(x, axis, end, rest)], axis))


@lowers("slice_scatter")
def _slice_scatter(
    c: Maker, self: Node, src: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Node:
    axis = axis_of(dim, len(self.shape))
    if step != 1:
        raise unsupported("elements written one between others")
    return _written(c, self, src, axis, clamped(start, self.shape[axis], 0))


@lowers("select_scatter")
def _select_scatter(c: Maker, self: Node, src: Node, dim: int, index: Any) -> Node:
    axis = axis_of(dim, len(self.shape))
    size = self.shape[axis]
    if not isinstance(index, int) or not isinstance(size, int):
        raise unsupported("a position that depends on sizes")
    return _written(c, self, reshape(src, (*src.shape[:axis], 1, *src.shape[axis:])), axis, index % size)


def _surrounded(c: Maker, x: Node, axis: int, start: Dim) -> Node:
    """x at `start` along an axis of the call's result, zero around it."""
    lo, hi = list[Dim]([0] * len(c.shape)), list[Dim]([0] * len(c.shape))
    lo[axis], hi[axis] = start, unwrap(wrap(c.shape[axis]) - start - x.shape[axis])
    return c.narrow(build.pad(wide(x), tuple(lo), tuple(hi), 0, source=c.source, hint="surrounded"))


@lowers("slice_backward")
def _slice_backward(
    c: Maker, grad: Node, input_sizes: Sequence[Dim], dim: int, start: Any, end: Any, step: Any
) -> Node:
    axis = axis_of(dim, len(c.shape))
    if step != 1:
        raise unsupported("elements written one between others")
    first = 0 if grad.shape[axis] == 0 else clamped(start, c.shape[axis], 0)
    return _surrounded(c, grad, axis, first)


@lowers("select_backward")
def _select_backward(c: Maker, grad: Node, input_sizes: Sequence[Dim], dim: int, index: Any) -> Node:
    axis = axis_of(dim, len(c.shape))
    size = c.shape[axis]
    if not isinstance(index, int) or not isinstance(size, int):
        raise unsupported("a position that depends on sizes")
    return _surrounded(c, reshape(grad, (*grad.shape[:axis], 1, *grad.shape[axis:])), axis, index % size)


@lowers("copy")
def _copy(c: Maker, self: Node, src: Node, non_blocking: bool = False) -> Node:
    return c.narrow(convert(expand(src, c.shape), c.dtype))
