"""Products on tensor cores, as Triton text. In: the axis that the products of a kernel have in common. Out: the lines
that multiply, step by step.

A step has elements of the first axis as first x common, those of the second as common x second: rows and features of a
matrix, or the other way round. Lanes past an end are 0 in both. What is multiplied past the rows is not stored. What is
wider than tensor cores take is split into two numbers, of which three products are added up.
"""

from __future__ import annotations

from interfuse.emit.triton_lanes import Lane
from interfuse.emit.triton_lines import Lines
from interfuse.ir.index import symbols
from interfuse.lower.kernel import Kernel, Load, step_along
from interfuse.lower.products import NAMES, products_of, sides
from interfuse.lower.split_products import SPLIT

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
        places = {s: self._first(s, lane) for s in sides(self.products)}
        with self.writer.block(header):
            if lane.passes_end or None in places.values():
                long = ".to(tl.int64)" if COMMON in self.wide else ""
                self.writer.line(f"{COMMON} = {COMMON}_start + tl.arange(0, {lane.block}){long}")
            for side, place in places.items():
                self._load_side(side, lane, place)
            for total, p in self.products.items():
                name, row, weight = (self._name(v) for v in (total.out, p.row.out, p.weight.out))
                both = f"{weight}, {row}" if turned else f"{row}, {weight}"
                split = ', input_precision="tf32x3"' if self.kernel.param(p.row.param).dtype is SPLIT else ""
                self.writer.line(f"{name} = tl.dot({both}, {name}{split})")
        for total in self.products:
            if ROW not in total.out.axes:  # the other rows of the tile are none
                name = self._name(total.out)
                one = f"tl.where({ROW} == 0, {name}, 0.0), axis={self.lanes[ROW].dim}"
                self.writer.line(f"{name} = tl.sum({one}, keep_dims=True)")

    def _first(self, s: Load, lane: Lane) -> str | None:
        """The places of the first step, written ahead of the loop: threads then have registers for no others. None
        where a step is no fixed distance from the one before.
        """
        step = step_along(s, lane.axis.symbol)
        if step is None:
            return None
        long = ".to(tl.int64)" if COMMON in self.wide else ""
        name = self._own(f"{self._name(s.out)}_at")
        place = self._place_of(s, lane, f"tl.arange(0, {lane.block}){long}{self._spread(s)}")
        self.writer.line(f"{name} = {s.param}_ptr + {place}")
        return f"{name} + {COMMON}_start" + (f" * {step}" if step != 1 else "")

    def _own_lane(self, s: Load) -> Lane:
        """The lane of a side's own axis."""
        return self.lanes[FEATURE if FEATURE in {x.name for x in symbols(s.index)} else ROW]

    def _spread(self, s: Load) -> str:
        return "[:, None]" if self._own_lane(s).dim else "[None, :]"

    def _place_of(self, s: Load, lane: Lane, common: str) -> str:
        """The index of a side where what both have in common is `common`."""
        own = self._own_lane(s)
        place = self.index(s.index, lambda n: common if n == COMMON else n)
        if own.axis.symbol in symbols(s.index):
            return place
        shape = (lane.block, own.block) if own.dim else (own.block, lane.block)
        return f"tl.broadcast_to({place}, ({', '.join(shape)}))"  # one row

    def _load_side(self, s: Load, lane: Lane, place: str | None) -> None:
        """One side of a product as it is stored, from `place` where that was written ahead."""
        own, common = self._own_lane(s), f"{COMMON}{self._spread(s)}"
        place = place or f"{s.param}_ptr + {self._place_of(s, lane, common)}"
        ends = f"({common} < {lane.extent})" if lane.passes_end else ""
        mask = " & ".join(filter(None, (self._mask({own.axis.name}), ends)))
        zero = f", mask={mask}, other=0.0" if mask else ""
        self.writer.line(f"{self._name(s.out)} = tl.load({place}{zero})")
