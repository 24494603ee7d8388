"""Windows of buffers. In: the roots of a region, what they read. Out: where in each buffer its kernel begins to read.

A step of an unrolled loop reads x[t]: its kernel is given the address of that and serves every step. Where several
slices of a buffer are read, x[t] and x[t + 1] say, it is given the address of the first of them, and how far they lie
apart is part of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from interfuse.ir.index import Dim, mod, unwrap, wrap
from interfuse.ir.layout import Layout, view_of
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES, POINTWISE
from interfuse.lower.domain import inside
from interfuse.lower.vectors import VECTOR_BYTES


def windows(
    roots: Sequence[Node],
    inputs: frozenset[Node],
    layouts: Mapping[Node, Layout],
    kept: Collection[Node] = (),
    vector: int = VECTOR_BYTES,
) -> dict[Node, Layout]:
    """The layouts, seen from the address that a kernel is given, of inputs whose first elements the roots do not read;
    those `kept` left out.

    Such an address lies a whole number of `vector` bytes behind the buffer's first element, so that what is aligned
    stays so, and as near before the first element that is read as that allows.
    """
    nodes = inside(roots, inputs)
    if all(n.op != "slice" for n in nodes):
        return {}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for i in dict.fromkeys(node.inputs):
            readers.setdefault(i, []).append(node)
    found, ends = dict[Node, Layout](), frozenset(roots)
    for x in inputs.difference(kept) & layouts.keys():
        laid = layouts[x]
        first = wrap(_first(x, laid, readers, ends))
        rest = mod(first, max(vector // x.dtype.bytes, 1))
        if rest.op == "const" and first is not rest:
            found[x] = Layout(laid.strides, unwrap(wrap(laid.offset) - first + rest))
    return found


def _first(node: Node, laid: Layout, readers: Mapping[Node, list[Node]], ends: Collection[Node]) -> Dim:
    """A place in a buffer before which none of its elements is read through `node`, which lies in it so: that of the
    first one, where it is known.
    """
    while node not in ends and (read := readers.get(node)):
        if len(read) > 1:
            each = [_first_of(r, laid, readers, ends) for r in read]
            return next((a for a in each if all((wrap(b) - a).lo >= 0 for b in each)), laid.offset)
        (node,) = read
        view = _seen(node, laid)
        if view is None:
            break
        laid = view
    return laid.offset


def _first_of(reader: Node, laid: Layout, readers: Mapping[Node, list[Node]], ends: Collection[Node]) -> Dim:
    """As `_first`, for one of several that read what is laid out so; only movements and casts are followed."""
    view = _seen(reader, laid) if reader.op in MOVES or reader.op == "cast" else None
    return _start(reader, laid) if view is None or reader.op == "slice" else _first(reader, view, readers, ends)


def _seen(node: Node, laid: Layout) -> Layout | None:
    """How what `node` reads lies where that is laid out so, seen as the node; None where it is not to be seen so."""
    if node.op in MOVES:
        return view_of(node, laid) if 0 not in node.shape else None
    return laid if node.op in POINTWISE else None


def _start(node: Node, laid: Layout) -> Dim:
    """The place of the first element of a slice of what is laid out so; of anything else, that of its own first one."""
    at = wrap(laid.offset)
    if node.op == "slice" and 0 not in node.shape:
        attrs = node.attr("starts"), node.attr("steps"), node.shape, laid.strides
        for start, step, size, stride in zip(*attrs, strict=True):
            at = at + wrap(stride) * (start if step > 0 else wrap(start) + step * (wrap(size) - 1))
    return unwrap(at)


def places(nodes: Iterable[Node], layouts: Mapping[Node, Layout]) -> dict[Node, Layout]:
    """How inputs lie, as `layouts` say, and how those of `nodes`, which come operands first, lie in an input that only
    move it, or compute it element by element. Where a slice of an input starts is then nothing but its place.
    """
    found = dict(layouts)
    for n in nodes:
        base = found.get(n.inputs[0]) if len(n.inputs) == 1 and n not in found else None
        view = _seen(n, base) if base is not None else None
        if view is not None:
            found[n] = view
    return found
