"""Whether a kernel may write over what it reads. In: a kernel, one of its inputs and one of its outputs. Out: a reason.

An element must be read by the program that writes it alone, and before it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Dim
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel, Load, Store, walk


def check_over(kernel: Kernel, reads: Sequence[Node], outputs: Sequence[Node], over: Mapping[Node, Node]) -> None:
    """UnsupportedError where the kernel, made for these nodes, cannot write the values in `over` over their inputs."""
    for form in (kernel,) if kernel.beyond is None else (kernel, kernel.beyond):
        buffers = (p.name for p in form.params if p.mode != "scratch")
        names = dict(zip((*reads, *outputs), buffers, strict=True))
        for value, place in over.items():
            check_in_place(form, names.get(place), names[value])


def check_in_place(kernel: Kernel, source: str | None, target: str) -> None:
    """UnsupportedError where output `target` cannot lie where input `source` lies; None where it is not read."""
    if kernel.picks:
        raise UnsupportedError("an index that is out of range would show only after writing")
    out = kernel.param(target)
    if not _one_place_each(out.shape, out.strides):
        raise UnsupportedError("what is written has elements that share their place")
    statements = walk(kernel.body)
    stores = [k for k, s in enumerate(statements) if isinstance(s, Store) and s.param == target]
    if len(stores) != 1:
        raise UnsupportedError("what is written is stored more than once")
    store = statements[stores[0]]
    loads = [(k, s) for k, s in enumerate(statements) if isinstance(s, Load) and s.param == source]
    assert isinstance(store, Store)
    if any(k > stores[0] or s.index is not store.index for k, s in loads):
        raise UnsupportedError("what is written is still read elsewhere in the kernel")


def _one_place_each(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """True where each element surely has a place of its own."""
    reach: Dim = 1
    for d, s in sorted(zip(shape, strides, strict=True), key=lambda pair: _number(pair[1])):
        if d == 1:
            continue
        if s != reach and not (isinstance(s, int) and isinstance(reach, int) and s >= reach):
            return False
        reach = s * d
    return True


def _number(stride: Dim) -> int:
    return stride if isinstance(stride, int) else max(stride.lo, 1) << 20
