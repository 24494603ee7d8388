"""Rows in two passes in C++. In: a Kernel whose next row is best read while a row is written. Out: lines.

Where a pass that reads and a pass that writes take turns, memory does one of both at a time. So they are one loop here:
a few vectors of a row are written, and then as many of the next row are read, into the place that they leave. Sums are
added in the order in which they would be otherwise, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from interfuse.emit.cpp_facts import TwoPasses
from interfuse.emit.cpp_names import Names
from interfuse.emit.cpp_phases import Phases
from interfuse.emit.cpp_reduce import CARRY_ROUNDS, parts_name, sharing
from interfuse.emit.cpp_types import held
from interfuse.lower.kernel import MOMENTS, Let, Load, Reduce, Value, operands


class RowsAhead(Phases):
    """Writes the programs of kernels in two passes over a row."""

    def rows_ahead(self, passes: TwoPasses) -> None:
        """All that one thread does: its scratch row, what the passes do, and the loop over its rows."""
        lane, row = self.kernel.axis(passes.read.axis), self.grid[0]
        outer, reduces = self.names, [s for s in passes.read.body if isinstance(s, Reduce)]
        self.names = outer.inner()
        self.scratch_rows()
        self.run(passes.before, False)
        parts_type, found_type, read, carry, find, write, parts, found, start, stop = map(
            self.names.fresh, ("Parts", "Found", "read", "carry", "find", "write", "parts", "found", "from", "stop")
        )
        carried, fields = self.carried(passes.read, lane), Names()
        with self.w.block(f"struct {parts_type} {{", "};"):
            for name, made in carried.items():
                member = fields.fresh(name)
                self.names.of[name] = f"{parts}.{member}"
                self.w.line(f"{made.kind} {member}{f' = {made.kind}{made.start}' if made.start else ''};")
        self.names.of |= {parts_name(r): self.names.of[parts_name(first)] for r, first in sharing(reduces).items()}
        kept = self.kept(passes, reduces)
        members = {v: fields.fresh(v.name) for v in kept}
        with self.w.block(f"struct {found_type} {{", "};"):
            for v in kept:
                self.w.line(f"{held(v.dtype, False)} {members[v]};")
        scope = self.names

        self.names = scope.inner()
        head = f"long {self.names.give_index(row.name)}, {parts_type}& {parts}, long {start}, long {stop}"
        with self.w.block(f"const auto {read} = [&]({head}) INLINE {{", "};"):
            column = self.names.give_index(lane.name)
            with self.w.block(
                f"reduce_vectors({stop}, [&](long {column}, long n, int part) INLINE {{", f"}}, {start});"
            ):
                self.fetch_ahead(passes.fetch)
                self.statements(passes.read.body, True)
        carries = " ".join(f"{scope.of[name]}.carry();" for name, made in carried.items() if made.carries)
        self.w.line(f"const auto {carry} = [&]({parts_type}& {parts}) INLINE {{ {carries} }};")

        self.names = scope.inner()
        head = f"long {self.names.give_index(row.name)}, const {parts_type}& {parts}"
        with self.w.block(f"const auto {find} = [&]({head}) INLINE {{", "};"):
            self.results(reduces, True)
            self.statements(passes.rest, False)
            self.w.line(f"return {found_type}{{{', '.join(self.value(v) for v in kept)}}};")
        numbers = {v.name: self.names.of[v.name] for v in self.numbers if v.name in self.names.of}

        self.names = scope.inner()
        self.names.of |= numbers | {v.name: f"{found}.{members[v]}" for v in kept}
        head = f"long {self.names.give_index(row.name)}, const {found_type}& {found}, long {start}, long {stop}"
        with self.w.block(f"const auto {write} = [&]({head}) INLINE {{", "};"):
            column = self.names.give_index(lane.name)
            with self.w.block(f"for_vectors({stop}, [&](long {column}, long n) INLINE {{", f"}}, {start});"):
                self.statements(passes.write.body, True)

        rounds = 1 if any(r.op in MOMENTS for r in reduces) else CARRY_ROUNDS
        sizes = f"{self.dim(row.extent)}, {self.dim(lane.extent)}"
        self.w.line(f"rows_ahead<{parts_type}, {rounds}>({sizes}, {read}, {carry}, {find}, {write});")
        self.names = outer

    def kept(self, passes: TwoPasses, reduces: Sequence[Reduce]) -> list[Value]:
        """What the writing pass needs of what was found about its row; numbers are spelled where they are used."""
        made = [r.out for r in reduces] + [s.out for s in passes.rest if isinstance(s, (Load, Let))]
        used = {v for s in passes.write.body for v in operands(s)}
        return [v for v in made if v in used and v not in self.numbers]
