"""What a kernel is asked for. In: a region's outputs, what computes them, where buffers lie. Out: the frozen Work that
families lower.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Dim, unwrap, wrap
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.axes import power
from interfuse.lower.kernel import PART, Axis, Role


@dataclass(frozen=True)
class Work:
    """What a kernel is asked for: `outputs` to store, `roots` that compute them (one each, of the same type and shape;
    the outputs themselves where empty), `inputs` that are in buffers, and the layouts of outputs and inputs there. What
    is read of an input may begin anywhere in it (lower/windows.py): the kernel is given that address, and the offset of
    its layout leads back from there.

    With `parts` the region is reduced along rows and along columns: a root that reduces over all rows has an output
    with a dimension more, of what each of so many parts of the rows gives; which rows make a part is the kernel's own.
    With `starts` each root is a part of its output alone, whose elements begin so many further on.
    With `met` a row is shared by a team of programs: each of its nodes, what a share of the row gives, is computed as
    the node beside it says and met by what the other programs give; what joins them is reduced `ahead`.
    Reductions that are few enough for every program to do them for itself are done `ahead` of everything else. `sizes`
    are the values of size symbols in the example: lengths up to about that are held on a GPU. `awaited` are the inputs
    that kernels right before this one write, `cached` those that they have read and that a cache has still.
    With `ring` rows go by way of a ring in shared memory.
    """

    outputs: tuple[Node, ...]
    inputs: frozenset[Node]
    layouts: Mapping[Node, Layout]
    roots: tuple[Node, ...] = ()
    parts: int = 0
    starts: tuple[Dim, ...] = ()
    ahead: frozenset[Node] = frozenset()
    met: tuple[tuple[Node, Node], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)
    awaited: frozenset[Node] = frozenset()
    cached: frozenset[Node] = frozenset()
    ring: bool = False

    @property
    def leaves(self) -> frozenset[Node]:
        """What is there before the domain is walked."""
        return self.inputs | self.ahead

    def skipped(self, reads: Sequence[Node]) -> tuple[Dim, ...]:
        """The elements of each buffer before the address that the kernel is given; none where that is 0 of each."""
        found = tuple(unwrap(wrap(self.layouts[n].offset) * -1) for n in reads)
        return found if any(d != 0 for d in found) else ()

    @property
    def joined(self) -> tuple[Axis, ...]:
        """The axis that is reduced ahead; none where nothing is."""
        counts = {math.prod(wrap(n.inputs[0].shape[a]).hi for a in n.attr("axes")) for n in self.ahead}
        if len(counts) > 1:
            raise UnsupportedError(f"reduces {sorted(counts)} parts ahead: one kernel joins as many of each")
        return tuple(Axis(PART, n, Role.TILE, power(n)) for n in counts)

    def before(self, given: Sequence[Node], late: Collection[Node]) -> Work:
        """The work of a kernel that another one follows: it computes what that one is `given`, one dense buffer each,
        and all outputs but those whose roots come `late`.
        """
        roots = self.roots or self.outputs
        first = [k for k, r in enumerate(roots) if r not in late]
        return Work(
            (*given, *(self.outputs[k] for k in first)),
            self.inputs,
            dict(self.layouts) | {n: contiguous(n.shape) for n in given},
            (*given, *(roots[k] for k in first)),
            sizes=self.sizes,
        )
