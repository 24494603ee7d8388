"""Counted traffic. In: captured calls, kernels, values. Out: the bytes that cross device memory ("counted").

One rule on both sides of every comparison: each distinct element that is read or written counts once. An expanded
operand counts the elements that it really has, an operand given twice counts once, a view moves nothing, and what a
kernel keeps for itself (scratch) or reads again within one launch stays on chip. A gather reads as many elements of its
table as it writes. Parameters count like any operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from interfuse.ir.graph import Call
from interfuse.ir.index import Dim, Expr, at_sizes, product
from interfuse.ir.layout import Layout, contiguous, view_of
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES
from interfuse.lower.bounds import share
from interfuse.lower.kernel import Bound, Kernel, Load, Param, Store, bounds_of, varies_over, walk

LABEL_LOSSES = frozenset(("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"))

GATHERS = LABEL_LOSSES | frozenset(
    (
        "aten.embedding.default",
        "aten.index_select.default",
        "aten.gather.default",
        "aten.index.Tensor",
        "aten._unsafe_index.Tensor",
        "aten.take.default",
    )
)
"""Calls that read from operand 0 only what their indices name."""

Sizes = Mapping[str, int]
"""Values of the size symbols, by name."""


def call_bytes(call: Call, sizes: Sizes | None = None) -> int:
    """Bytes that eager reads and writes for `call`: distinct operands and results; 0 for a view or where nothing runs.

    `sizes` gives the size symbols of a dynamic graph; a symbol without a value counts as its least possible value.
    """
    if call.view_of is not None or (call.launches == 0 and not call.joined):
        return 0
    outs = [o for o in call.outs if o is not None]
    if call.target in GATHERS and call.operands:
        table, *indices = call.operands
        # A loss reads one score a label, whatever it gives.
        named = indices[:1] if call.target in LABEL_LOSSES else outs
        picked = sum(_count(n.size, sizes) for n in named)
        read = min(picked, _distinct(table, sizes)) * table.dtype.bytes
        return read + moved_bytes((i for i in indices if i is not table), outs, sizes)
    return moved_bytes(call.operands, outs, sizes)


def moved_bytes(reads: Iterable[Node], writes: Iterable[Node], sizes: Sizes | None = None) -> int:
    """Bytes of the distinct values in `reads` (distinct elements of each) and of the distinct values in `writes`."""
    read = sum(_distinct(n, sizes) * n.dtype.bytes for n in dict.fromkeys(reads))
    return read + sum(_count(n.size, sizes) * n.dtype.bytes for n in dict.fromkeys(writes))


def kernel_bytes(kernel: Kernel, sizes: Sizes | None = None) -> int:
    """Bytes that one launch of `kernel` reads and writes: what its loads and stores reach of each parameter, once.

    Accesses of one parameter at different indices add up, to at most the elements that the parameter has; where values
    tell the place, each is taken to be another. What is read within bounds counts there alone. Scratch stays on chip
    and is not counted.
    """
    return _kernel_bytes(kernel, sizes, (Load, Store))


def read_bytes(kernel: Kernel, sizes: Sizes | None = None, of: frozenset[str] | None = None) -> int:
    """Those of `kernel_bytes` that are read, of the parameters `of` alone where they are given."""
    return _kernel_bytes(kernel, sizes, (Load,), of)


def _kernel_bytes(
    kernel: Kernel, sizes: Sizes | None, kinds: tuple[type, ...], of: frozenset[str] | None = None
) -> int:
    reached: dict[tuple[str, type], dict[tuple[Expr, frozenset[str], tuple[Bound, ...]], None]] = {}
    for stmt in walk(kernel.body):
        if isinstance(stmt, (Load, Store)) and isinstance(stmt, kinds) and (of is None or stmt.param in of):
            access = stmt.index, varies_over(stmt), bounds_of(stmt)
            reached.setdefault((stmt.param, type(stmt)), {})[access] = None
    extents = {a.name: _count(a.extent, sizes) for a in kernel.axes}
    total = 0
    for (name, _), accesses in reached.items():
        param = kernel.param(name)
        if param.mode != "scratch":
            elements = 0.0
            for _, over, within in accesses:
                span = math.prod(extents[name] for name in over if name in extents)
                elements += span * math.prod(share(b, extents, sizes or {}) for b in within)
            total += min(round(elements), _held(param, sizes)) * param.dtype.bytes
    return total


def _count(size: Dim, sizes: Sizes | None) -> int:
    """`size` as a number of elements."""
    return at_sizes(size, sizes or {})


def _held(param: Param, sizes: Sizes | None) -> int:
    """The distinct elements of a parameter: dimensions of stride 0 repeat what is there."""
    return _count(product(tuple(d for d, s in zip(param.shape, param.strides, strict=True) if s != 0)), sizes)


def _distinct(node: Node, sizes: Sizes | None) -> int:
    """The distinct elements behind a value: those that its views really reach in the buffer they look at."""
    layout = view(node)
    return _count(product(tuple(d for d, s in zip(node.shape, layout.strides, strict=True) if s != 0)), sizes)


def view(node: Node) -> Layout:
    """How `node` lies in the buffer under its chain of movements; contiguous where the chain ends or needs a copy."""
    if node.op not in MOVES:
        return contiguous(node.shape)
    return view_of(node, view(node.inputs[0])) or contiguous(node.shape)
