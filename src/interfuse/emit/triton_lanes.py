"""The dimensions of Triton tensors. In: a Kernel. Out: its lane axes, each with its place and its names in the text."""

from __future__ import annotations

from dataclasses import dataclass

from interfuse.emit.triton_index import index_text
from interfuse.ir.index import Expr, wrap
from interfuse.lower.kernel import Axis, Kernel, Role


@dataclass(frozen=True)
class Lane:
    """One dimension of the tensors: its axis, position, and the names of its block, extent and mask."""

    axis: Axis
    dim: int
    rank: int
    block: str
    extent: str
    mask: str

    @property
    def passes_end(self) -> bool:
        """True where a block can hold lanes past the axis's end."""
        extent, block = self.axis.extent, self.axis.block
        if self.axis.role is Role.TILE:
            return extent != block
        return not isinstance(extent, int) or extent % block != 0

    def numbers(self) -> str:
        """0, 1, ..., block - 1 along this dimension."""
        at = "" if self.rank == 1 else f"[{', '.join(':' if k == self.dim else 'None' for k in range(self.rank))}]"
        return f"tl.arange(0, {self.block}){at}"


def padded(axis: Axis) -> int:
    """The most indices that the axis's blocks can cover, lanes past its end counted in: these are compared with it."""
    return wrap(axis.extent).hi + axis.block - 1


def lanes_of(kernel: Kernel) -> dict[str, Lane]:
    """The kernel's lane axes by name, in order."""
    axes = [a for a in kernel.axes if a.role is not Role.GRID or a.block > 1]
    lanes = {}
    for k, a in enumerate(axes):
        upper = a.name.upper()
        extent = f"{upper}S" if len(upper) > 1 else f"{upper}_SIZE"
        if isinstance(a.extent, Expr):
            extent = index_text(a.extent, str)
        block, mask = ("BLOCK", "inside") if len(axes) == 1 else (f"{upper}_BLOCK", f"{a.name}_inside")
        lanes[a.name] = Lane(a, k, len(axes), block, extent, mask)
    return lanes
