"""Products on tensor cores, as Triton text. In: the axis that the products of a kernel have in common. Out: the lines
that multiply, step by step.

A step has elements of the first axis as first x common, those of the second as common x second: rows and features of a
matrix, or the other way round. Lanes past an end are 0 in both. What is multiplied past the rows is not stored.
"""

from __future__ import annotations

from interfuse.emit.triton_lanes import Lane
from interfuse.emit.triton_lines import Lines
from interfuse.ir.index import symbols
from interfuse.lower.kernel import Kernel, Load
from interfuse.lower.skinny import NAMES, products_of, sides

ROW, FEATURE, COMMON = NAMES


class Products(Lines):
    """Writes a loop of products: no value of it is seen elsewhere but their sums."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.products = products_of(kernel)

    def _multiply(self, lane: Lane, header: str) -> None:
        """The loop over what all products of the kernel have in common, which `header` begins."""
        first, second = sorted((self.lanes[ROW], self.lanes[FEATURE]), key=lambda own: own.dim)
        shape, turned = f"({first.block}, {second.block})", first.axis.name == FEATURE
        for total in self.products:
            self.writer.line(f"{self._name(total.out)} = tl.zeros({shape}, tl.float32)")
        with self.writer.block(header):
            long = ".to(tl.int64)" if COMMON in self.wide else ""
            self.writer.line(f"{COMMON} = {COMMON}_start + tl.arange(0, {lane.block}){long}")
            for side in sides(self.products):
                self._load_side(side, lane)
            for total, p in self.products.items():
                name, row, weight = (self._name(v) for v in (total.out, p.row.out, p.weight.out))
                both = f"{weight}, {row}" if turned else f"{row}, {weight}"
                self.writer.line(f"{name} = tl.dot({both}, {name})")
        for total in self.products:
            if ROW not in total.out.axes:  # the other rows of the tile are none
                name = self._name(total.out)
                one = f"tl.where({ROW} == 0, {name}, 0.0), axis={self.lanes[ROW].dim}"
                self.writer.line(f"{name} = tl.sum({one}, keep_dims=True)")

    def _load_side(self, s: Load, lane: Lane) -> None:
        """One side of a product as it is stored."""
        own = self.lanes[FEATURE if FEATURE in {x.name for x in symbols(s.index)} else ROW]
        common = f"{COMMON}[:, None]" if own.dim else f"{COMMON}[None, :]"
        place = self.index(s.index, lambda n: common if n == COMMON else n)
        if own.axis.symbol not in symbols(s.index):  # one row
            shape = (lane.block, own.block) if own.dim else (own.block, lane.block)
            place = f"tl.broadcast_to({place}, ({', '.join(shape)}))"
        ends = f"({common} < {lane.extent})" if lane.passes_end else ""
        mask = " & ".join(filter(None, (self._mask({own.axis.name}), ends)))
        zero = f", mask={mask}, other=0.0" if mask else ""
        self.writer.line(f"{self._name(s.out)} = tl.load({s.param}_ptr + {place}{zero})")
