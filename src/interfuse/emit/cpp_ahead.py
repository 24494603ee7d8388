"""Rows in two passes in C++. In: a Kernel whose next row is best read while a row is written. Out: lines.

Where a pass that reads and a pass that writes take turns, memory does one of both at a time. So they are one loop here:
a few vectors of a row are written, and then as many of the next row are read, into the place that they leave. Sums are
added in the order in which they would be otherwise, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from interfuse.emit.cpp_names import Names
from interfuse.emit.cpp_passes import TwoPasses
from interfuse.emit.cpp_reduce import CARRY_ROUNDS, parts_name, sharing
from interfuse.emit.cpp_strips import Strips
from interfuse.emit.cpp_types import held
from interfuse.emit.cpp_weights import AT_ONCE
from interfuse.lower.kernel import MOMENTS, Axis, Let, Load, Reduce, Value, operands

_WORDS = ("Parts", "Found", "read", "carry", "find", "write", "parts", "found", "from", "stop", "weights", "scales")


@dataclass(frozen=True)
class _Spelled:
    """What the C++ text calls the types of what passes give, the lambdas, their parameters, and members of the types.
    `members` are those of what is found about a row; `weighs` is the type that weighs one.
    """

    parts_type: str
    found_type: str
    read: str
    carry: str
    find: str
    write: str
    parts: str
    found: str
    start: str
    stop: str
    weights: str
    scales: str
    weighs: str = field(kw_only=True)
    members: dict[Value, str] = field(default_factory=dict, kw_only=True)


class RowsAhead(Strips):
    """Writes the programs of kernels in two passes over a row."""

    def rows_ahead(self, passes: TwoPasses) -> None:
        """All that one thread does: its scratch row, what the passes do, and the loop over its rows."""
        self.kernel, outer, weighs = passes.kernel, self.names, passes.weights is not None
        lane, row, reduces = self.kernel.axis(passes.read.axis), self.grid[0], _reduces(passes)
        self.names = outer.inner()
        self.scratch_rows()
        self.run(passes.before, False)
        weights_type = f"Weights<{AT_ONCE}, {self.dim(lane.extent)}>" if weighs else ""
        to = _Spelled(*map(self.names.fresh, _WORDS), weighs=weights_type)
        carries = self.structs(passes, lane, to)
        scope = self.names
        self.reading(passes, row, lane, to)
        self.w.line(f"const auto {to.carry} = [&]({to.parts_type}& {to.parts}) INLINE {{ {carries} }};")
        self.names = scope.inner()
        numbers = self.finding(passes, row, to)
        self.names = scope.inner()
        self.names.of |= numbers
        self.writing(passes, row, lane, to)
        rounds = 1 if any(r.op in MOMENTS for r in reduces) else CARRY_ROUNDS
        kinds = f"{to.parts_type}, {to.found_type}, {rounds}, {AT_ONCE}"
        sizes = f"{self.dim(row.extent)}, {self.dim(lane.extent)}"
        self.w.line(f"rows_ahead<{kinds}>({sizes}, {to.read}, {to.carry}, {to.find}, {to.write});")
        self.names = outer

    def structs(self, passes: TwoPasses, lane: Axis, to: _Spelled) -> str:
        """Declare what a pass that reads adds up, and what is found about a row; gives what carries the sums."""
        reduces, fields = _reduces(passes), Names(taken={to.weights, to.scales})
        carried = self.carried(passes.read, lane)
        with self.w.block(f"struct {to.parts_type} {{", "};"):
            for name, made in carried.items():
                member = fields.fresh(name)
                self.names.of[name] = f"{to.parts}.{member}"
                self.w.line(f"{made.kind} {member}{f' = {made.kind}{made.start}' if made.start else ''};")
            if passes.weights is not None:
                self.w.line(f"{to.weighs} {to.weights};")
                self.names.of[passes.weights.total.name] = f"{to.found}.{to.scales}.total"
        self.names.of |= {parts_name(r): self.names.of[parts_name(first)] for r, first in sharing(reduces).items()}
        to.members.update({v: fields.fresh(v.name) for v in self.kept(passes, reduces)})
        with self.w.block(f"struct {to.found_type} {{", "};"):
            for v, member in to.members.items():
                self.w.line(f"{held(v.dtype, False)} {member};")
            if passes.weights is not None:
                self.w.line(f"{to.weighs}::Scales {to.scales};")
        return " ".join(f"{self.names.of[name]}.carry();" for name, made in carried.items() if made.carries)

    def reading(self, passes: TwoPasses, row: Axis, lane: Axis, to: _Spelled) -> None:
        """The pass that reads a row, over some of its columns."""
        self.names = self.names.inner()
        head = f"long {self.names.give_index(row.name)}, {to.parts_type}& {to.parts}, long {to.start}, long {to.stop}"
        with self.w.block(f"const auto {to.read} = [&]({head}) INLINE {{", "};"):
            column = self.names.give_index(lane.name)
            head, tail = (
                f"reduce_vectors({to.stop}, [&](long {column}, long n, int part) INLINE {{",
                f"}}, {to.start});",
            )
            if passes.weights is not None:
                where = f"{self.buffers[passes.weights.row]}, {to.start}, {to.stop}"
                head, tail = f"{to.parts}.{to.weights}.add({where}, [&](long {column}, long n) INLINE {{", "});"
            with self.w.block(head, tail):
                self.fetch_ahead(passes.fetch)
                self.statements(passes.read.body, True)
                if passes.weights is not None:
                    self.w.line(f"return {self.value(passes.weights.arg)};")

    def finding(self, passes: TwoPasses, row: Axis, to: _Spelled) -> dict[str, str]:
        """What follows from a row that was read, for the pass that writes; gives that pass the names of all of it."""
        head = f"long {self.names.give_index(row.name)}, const {to.parts_type}& {to.parts}, {to.found_type}& {to.found}"
        with self.w.block(f"const auto {to.find} = [&]({head}) INLINE {{", "};"):
            if passes.weights is not None:
                way = "shares" if passes.weights.shared else "scales"
                self.w.line(f"{to.parts}.{to.weights}.{way}({to.found}.{to.scales});")
            self.results(_reduces(passes), True)
            self.statements(passes.rest, False)
            for v, member in to.members.items():
                self.w.line(f"{to.found}.{member} = {self.value(v)};")
        numbers = {v.name: self.names.of[v.name] for v in self.numbers if v.name in self.names.of}
        return numbers | {v.name: f"{to.found}.{member}" for v, member in to.members.items()}

    def writing(self, passes: TwoPasses, row: Axis, lane: Axis, to: _Spelled) -> None:
        """The pass that writes a row, over some of its columns."""
        head = f"long {self.names.give_index(row.name)}, const {to.found_type}& {to.found}"
        with self.w.block(f"const auto {to.write} = [&]({head}, long {to.start}, long {to.stop}) INLINE {{", "};"):
            if passes.weights is not None:
                scale = self.names.give(passes.weights.scale.name)
                self.w.line(f"const f32v {scale} = {to.found}.{to.scales}.of[{to.start} / {to.weighs}::width];")
            column = self.names.give_index(lane.name)
            with self.w.block(f"for_vectors({to.stop}, [&](long {column}, long n) INLINE {{", f"}}, {to.start});"):
                self.statements(passes.write.body, True)

    def kept(self, passes: TwoPasses, reduces: Sequence[Reduce]) -> list[Value]:
        """What the writing pass needs of what was found about its row; numbers are spelled where they are used."""
        made = [r.out for r in reduces] + [s.out for s in passes.rest if isinstance(s, (Load, Let))]
        used = {v for s in passes.write.body for v in operands(s)}
        return [v for v in made if v in used and v not in self.numbers]


def _reduces(passes: TwoPasses) -> list[Reduce]:
    return [s for s in passes.read.body if isinstance(s, Reduce)]
