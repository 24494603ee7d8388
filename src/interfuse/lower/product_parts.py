"""A product of f32 in parts. In: a region with a product whose tiles leave units idle. Out: the works of two kernels.

The first multiplies parts of what rows and features have in common, each a tile's worth of a unit's time; the second
adds up what the parts gave, in order, and does what follows the product.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.domain import inside
from interfuse.lower.split import replaced
from interfuse.lower.split_products import DEEP, SPLIT, THIN, TILES, pays, sizes_of
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from interfuse.passes.few_rows import FEW

PART, AT_ONCE = 256, 3
"""What a part of the common axis has at least, and programs of a unit that parts are made for."""


def product_parts(work: Work, target: Target, spare: int) -> tuple[Work, ...]:
    """The works of two kernels for a product whose tiles leave units idle: the first multiplies parts of the common
    axis, the second adds these up and does the rest; none where there is no such product. What the parts give takes
    `spare` bytes at most.
    """
    roots = work.roots or work.outputs
    linears = [n for n in inside(roots, work.inputs) if n.op == "linear"]
    sizes = sizes_of(linears[0]) if len(linears) == 1 else None
    if sizes is None or not pays(sizes, target):
        return ()
    (linear,), (_, rows, features, common) = linears, sizes
    tall, wide, _ = THIN if rows <= FEW else TILES[-1]
    most = AT_ONCE * target.programs // (-(-rows // tall) * -(-features // wide))
    most = min(most, common // PART, spare // (rows * features * SPLIT.bytes))
    count = max((n for n in range(2, most + 1) if common % (n * DEEP) == 0), default=1)
    if count == 1:
        return ()
    x, weight, *bias = linear.inputs
    along, across = (_cut(n, count, axis) for n, axis in ((x, 2), (weight, 1)))
    whole = (count, rows, features, common // count)
    partial = b.reduce("sum", b.apply("mul", b.expand(along, whole), b.expand(across, whole)), (3,), hint=linear.hint)
    total = b.reduce("sum", partial, (0,), hint=linear.hint)
    out = b.apply("add", total, b.broadcast(bias[0], linear.shape), hint=linear.hint) if bias else total
    layouts = dict(work.layouts) | {partial: contiguous(partial.shape)}
    ends = replaced(roots, work.inputs, {linear: out})
    second = Work(work.outputs, work.inputs | {partial}, layouts, ends, sizes=work.sizes)
    return Work((partial,), work.inputs, layouts, (partial,), sizes=work.sizes), second


def _cut(side: Node, count: int, axis: int) -> Node:
    """A side [n, k] as [count, n, k / count] with an `axis` more, for what it is multiplied by."""
    size, common = side.shape
    parts = b.permute(b.reshape(side, (size, count, common // count)), (1, 0, 2))
    return b.reshape(parts, (*parts.shape[:axis], 1, *parts.shape[axis:]))
