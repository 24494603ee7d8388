"""The dimensions of Triton tensors. In: a Kernel. Out: its lane axes, each with its place and its names in the text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from interfuse.emit.triton_index import index_text
from interfuse.ir.index import Expr, wrap
from interfuse.lower.kernel import Axis, Kernel, Role
from interfuse.lower.products import FAMILY


@dataclass(frozen=True)
class Lane:
    """One dimension of the tensors: its axis, position, and the names of its block, extent and mask; `ragged` where a
    part of an axis that is shared out can end within a block. What products have in common is no dimension of what they
    give: its position is the rank.
    """

    axis: Axis
    dim: int
    rank: int
    block: str
    extent: str
    mask: str
    ragged: bool = False

    @property
    def passes_end(self) -> bool:
        """True where a block can hold lanes past the axis's end."""
        extent, block = self.axis.extent, self.axis.block
        if self.axis.role is Role.TILE:
            return extent != block
        if self.axis.own_end:
            return self.ragged
        return not isinstance(extent, int) or extent % block != 0 or self.axis.vector > 1

    def numbers(self) -> str:
        """0, 1, ..., block - 1 along this dimension."""
        numbers = f"tl.arange(0, {self.block})"
        if self.axis.each:  # what is contiguous tells Triton how many neighbours a thread takes
            numbers = f"tl.max_contiguous({numbers}, {self.axis.each})"
        return f"{numbers}{self.spread()}"

    def spread(self) -> str:
        """What makes a tensor of one dimension one that lies along this dimension of all."""
        return "" if self.rank == 1 else f"[{', '.join(':' if k == self.dim else 'None' for k in range(self.rank))}]"


def padded(axis: Axis) -> int:
    """The most indices that the axis's blocks can cover, lanes past its end counted in: these are compared with it."""
    return axis.block if axis.role is Role.TILE else wrap(axis.extent).hi + axis.block - 1


def lanes_of(kernel: Kernel) -> dict[str, Lane]:
    """The kernel's lane axes by name, in order."""
    axes = [a for a in kernel.axes if a.role not in (Role.GRID, Role.TEAM) or a.block > 1]
    lanes = {}
    for k, a in enumerate(axes):
        upper = a.name.upper()
        extent = f"{upper}S" if len(upper) > 1 else f"{upper}_SIZE"
        if isinstance(a.extent, Expr):
            extent = index_text(a.extent, str)
        if a.own_end:
            extent = f"{a.name}_end"
        block, mask = ("BLOCK", "inside") if len(axes) == 1 else (f"{upper}_BLOCK", f"{a.name}_inside")
        ragged = a.own_end and a.block > 1 and _ragged(kernel, a)
        lanes[a.name] = Lane(a, k, len(axes) - (kernel.family == FAMILY), block, extent, mask, ragged)
    return lanes


def shape_of(axes: Collection[str], lanes: Mapping[str, Lane]) -> str:
    """The shape, as text, of a tensor that varies over `axes`."""
    return f"({', '.join(x.block if x.axis.name in axes else '1' for x in lanes.values() if x.dim < x.rank)},)"


def _ragged(kernel: Kernel, axis: Axis) -> bool:
    """True where some part of the axis is no whole number of blocks."""
    share, parts, extent = kernel.steps(axis), kernel.axis(axis.among).extent, axis.extent
    fixed = isinstance(share, int) and isinstance(parts, int) and isinstance(extent, int)
    return not fixed or share % axis.block != 0 or extent % axis.block != 0  # type: ignore[operator]
