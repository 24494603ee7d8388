"""Reductions of several vectors side by side in C++. In: a loop over rows whose steps carry something. Out: lines.

A program of a column kernel walks several vectors side by side. It takes a few rows of all of them before the next
rows, so that memory is read in long pieces; what a vector carries from row to row waits in an array meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interfuse.emit.cpp_facts import FETCH_FROM, buffer_bytes, follows, takes_much
from interfuse.emit.cpp_phases import Phases
from interfuse.emit.cpp_reduce import Accumulator
from interfuse.emit.pieces import span
from interfuse.ir.index import wrap
from interfuse.lower.kernel import MOMENTS, Axis, Bound, Let, Load, Loop, Reduce

MANY_MOMENTS = 128
"""Vectors side by side whose moments, of 384 bytes each with AVX-512, fill the first-level cache: more rows at a time
move them less often.
"""

ROW_WORK = 20
"""Operations an element from which on rows are taken one by one: what they wait for each other is little beside that,
and several rows of it side by side take the compiler seconds.
"""

HELD_FROM = 32
"""Vectors side by side from which on what their rows add up to is held for many rows before it is joined."""

HELD_ROWS = (8, 256)
"""How many rows of a vector are taken at a time where moments are held, and after how many these are joined."""

HELD_AHEAD = 8
"""How many lines are taken between asking for one and taking it: eight rows of them fit beside what is held. It comes
from the second-level cache, for which the next rows are asked for while these are taken.
"""


class Strips(Phases):
    """Writes the loops of programs that walk vectors side by side."""

    def strip(self, loop: Loop, axis: Axis, piece: Bound, carried: Mapping[str, Accumulator]) -> None:
        """A few rows of all vectors before the next rows, for the vectors of one line at a time: what these carry is
        in registers meanwhile.
        """
        lane, count = self.lane_axis, self.together
        assert lane is not None
        moments = all(s.op in MOMENTS for s in loop.body if isinstance(s, Reduce))
        plain = all(isinstance(s, (Load, Let, Reduce)) for s in loop.body)
        lanes = self.goes_over_lanes(loop)
        tall = wrap(axis.extent).hi >= HELD_ROWS[1] and span(piece) == (0, axis.extent)
        if moments and plain and not lanes and tall and self.side >= HELD_FROM:
            self.tall_strip(loop, axis, carried)
            return
        begin, some, at, left, first, k = map(self.names.fresh, ("from", "rows", "at", "left", "first", "k"))
        start, stop = map(self.dim, span(piece))
        where = f"{start}, {stop}, {self.names.index[lane.name]}, {self.lane_end()}"
        params = f"long {begin}, long {some}, long {at}, long {left}, int {first}"
        loads = all(isinstance(s, (Load, Reduce)) for s in loop.body)
        rows = 32 if count == 1 and self.side >= MANY_MOMENTS and moments and loads else 16
        with self.w.block(f"strips<{self.side}, {count}, {rows}>({where}, [&]({params}) INLINE {{", "});"):
            back = []
            for parts, made in carried.items():
                array, own = self.names.of[parts], self.names.fresh(parts)
                places = [f"{array}[{first}{f' + {i}' if i else ''}]" for i in range(count)]
                if made.carries:
                    pieces = ", ".join(f"{place}.piece()" for place in places)
                    self.w.line(f"{made.kind}::Piece {own}[{count}] = {{{pieces}}};")
                    back.append(f"{array}[{first} + {k}].join({own}[{k}]);")
                else:
                    self.w.line(f"{made.kind} {own}[{count}] = {{{', '.join(places)}}};")
                    back.append(f"{array}[{first} + {k}] = {own}[{k}];")
                self.names.of[parts] = f"{own}[{k}]"
            self.waiting_at(f"{first} + {k}")
            self.few_rows(loop, axis, rows, f"{begin}, {some}", f"{at}, {left}", k)
            self.w.line(f"for (int {k} = 0; {k} < {count}; ++{k}) {{ {' '.join(back)} }}")

    def tall_strip(self, loop: Loop, axis: Axis, carried: Mapping[str, Accumulator]) -> None:
        """The same for moments of many vectors, which pass the first-level cache: what rows add up to is held for many
        rows before it is joined with them, and lines are asked for in the order in which they will be read.
        """
        lane, count = self.lane_axis, self.together
        assert lane is not None
        words = ("from", "rows", "at", "left", "first", "k", "down", "along", "taken")
        begin, some, at, left, first, k, down, along, taken = map(self.names.fresh, words)
        arrays = {parts: self.names.of[parts] for parts in carried}
        held = {parts: self.array(f"{made.kind}::Held", f"{parts} held") for parts, made in carried.items()}
        shape = ", ".join(map(str, (self.side, count, *HELD_ROWS, HELD_AHEAD)))
        where = f"0, {self.dim(axis.extent)}, {self.names.index[lane.name]}, {self.lane_end()}"
        params = ", ".join(f"long {name}" for name in (begin, some, at, left, first, down, along))
        joins = " ".join(f"{arrays[parts]}[{k}].take({held[parts]}[{k}], {taken});" for parts in carried)
        last = f"for (int {k} = 0; {k} < {self.side}; ++{k}) {{ {joins} }}"
        tail = f"}}, [&](long {taken}) INLINE {{ {last} }});"
        with self.w.block(f"tall_strips<{shape}>({where}, [&]({params}) INLINE {{", tail):
            for parts, made in carried.items():
                own = self.names.fresh(parts)
                pieces = (f"{held[parts]}[{first}{f' + {i}' if i else ''}].piece({begin} == 0)" for i in range(count))
                self.w.line(f"{made.kind}::Piece {own}[{count}] = {{{', '.join(pieces)}}};")
                self.names.of[parts] = f"{own}[{k}]"
            self.waiting_at(f"{first} + {k}")
            large = buffer_bytes(self.kernel) >= FETCH_FROM
            loads = [s for s in loop.body if large and isinstance(s, Load) and follows(s, axis, lane, False)]
            loads = [s for s in loads if not s.picks and not s.within]
            self.few_rows(loop, axis, HELD_ROWS[0], f"{begin}, {some}", f"{at}, {left}", k, (loads, down, along))
            back = " ".join(f"{held[parts]}[{first} + {k}].take({self.names.of[parts]});" for parts in carried)
            self.w.line(f"for (int {k} = 0; {k} < {count}; ++{k}) {{ {back} }}")

    def waiting_at(self, place: str) -> None:
        """What waits in arrays lies at a vector's place in the program."""
        self.names.of |= {v: t.replace(f"[{self.beside}]", f"[{place}]") for v, t in self.names.of.items()}

    def goes_over_lanes(self, loop: Loop) -> bool:
        """True where a row is a loop over lanes, for something is read lane by lane."""
        return any(isinstance(s, Load) and self.by_lane(s) for s in loop.body)

    def few_rows(
        self,
        loop: Loop,
        axis: Axis,
        tall: int,
        rows: str,
        vectors: str,
        k: str,
        ask: tuple[Sequence[Load], str, str] = ((), "", ""),
    ) -> None:
        """The body of a strip; `ask` are loads that ask for what lies so many rows and elements from what they read."""
        assert self.lane_axis is not None
        row, column = self.names.give_index(axis.name), self.names.give_index(self.lane_axis.name)
        self.in_tile, (loads, down, along) = True, ask
        part = " part" if any(isinstance(s, Reduce) for s in loop.body) else ""
        each = "each_row" if self.goes_over_lanes(loop) or takes_much(self.kernel, loop.body, ROW_WORK) else "few_rows"
        with self.w.block(f"{each}({rows}, [&](long {row}, int{part}) INLINE {{", "});"):
            head = f"side_by_side<{self.together}>({vectors}, [&](long {column}, long n, int {k}) INLINE {{"
            with self.w.block(head, "});"):
                self.ask(loads, {axis.name: f"({row} + {tall})"}, level="<2>")
                there = {axis.name: f"({row} + {down})", self.lane_axis.name: f"({column} + {along})"}
                self.ask(loads, there)
                self.run(loop.body, True)
        self.in_tile = False
