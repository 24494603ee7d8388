"""The programs of a kernel in C++. In: a Kernel. Out: loops over its GRID axes, and in them what a program runs.

Joined parts are written in pieces. A piece of the axis that vectors run along gets a loop of its own, so that no vector
tests anything; what a whole program decides is a branch around its code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.emit.cpp_facts import Fetch, fetched_ahead, rounded_by_store, scratch_elements, vectors_beside
from interfuse.emit.cpp_lines import Lines
from interfuse.emit.cpp_types import stored
from interfuse.emit.pieces import inside, pieces_of, span
from interfuse.ir.index import symbols, unwrap, wrap
from interfuse.lower.kernel import Axis, Bound, Kernel, Loop, Role, Scan, Stmt, Store, bounds_of, walk


class Programs(Lines):
    """Writes programs; `known` holds what is known inside the pieces that are being written."""

    def __init__(self, kernel: Kernel, register_bytes: int, streaming: frozenset[str]) -> None:
        super().__init__(kernel, register_bytes, streaming)
        self.grid = [a for a in kernel.axes if a.role is Role.GRID]
        self.side = vectors_beside(kernel, self.lane_axis, self.lanes)
        self.shared: Axis | None = None  # the axis whose programs threads share out, and the range of one thread
        self.range = ("", "")
        self.lane_piece: Bound | None = None  # of a GRID lane axis
        self.fetching: Fetch | None = None

    @abstractmethod
    def statements(self, body: Sequence[Stmt], in_lanes: bool) -> None:
        """The statements of one scope."""

    @abstractmethod
    def fetch_ahead(self, fetch: Fetch) -> None:
        """Ask for what will be read at these lanes later."""

    def split(self) -> tuple[Axis, str]:
        """The axis whose programs threads share, the outermost with several, and the indices of one in C++."""
        if not self.grid:
            raise UnsupportedError("a kernel of one program has nothing to share out as a pack.")
        axis = next((a for a in self.grid if a.extent != 1), self.grid[0])
        beside = f"{self.side} * LANES" if self.side > 1 else "LANES"
        return axis, beside if axis is self.lane_axis else "1"

    def members_programs(self) -> None:
        """The loop over one member's programs, as many as a thread was given."""
        self.shared, step = self.split()
        first, last = ("first", "last") if step == "1" else (f"first * {step}", f"last * {step}")
        self.range = (first, last if step == "1" else f"min({last}, {self.dim(self.shared.extent)})")
        for piece in self.lane_pieces():
            self.grid_loops(piece)
        if self.streams():
            self.w.line("finish_streams();")

    def streams(self) -> bool:
        """True where something is stored past the caches."""
        return any(isinstance(s, Store) and s.param in self.streaming for s in walk(self.kernel.body))

    def ends(self, axis: Axis, piece: Bound | None) -> tuple[str, str]:
        """Where the loop over a GRID axis starts and stops; over the lane axis it runs within `piece`."""
        within = piece if piece is not None and axis is self.lane_axis else Bound(axis.symbol, 0, axis.extent)
        start, stop = map(self.dim, span(within))
        if axis is not self.shared:
            return start, stop
        first, last = self.range
        return self.range if span(within) == (0, axis.extent) else (f"max({first}, {start})", f"min({last}, {stop})")

    def grid_loops(self, piece: Bound | None) -> None:
        """One `for` a GRID axis, the bodies nested in the last one; the lane axis runs over `piece` alone."""
        outer, known, self.lane_piece = self.names, self.known, piece
        self.names = outer.inner()
        for axis in self.grid:
            start, stop = self.ends(axis, piece)
            name = self.names.give_index(axis.name)
            vectors = f"{self.side} * LANES" if self.side > 1 else "LANES"
            step = f"{name} += {vectors}" if axis is self.lane_axis else f"++{name}"
            last = " {" if axis is self.grid[-1] else ""
            self.w.line(f"for (long {name} = {start}; {name} < {stop}; {step}){last}")
        with self.w.block(None, "}"):
            if piece is None or self.side > 1:
                self.program(self.enter(self.kernel.body, piece))
            else:
                self.vectors_of(piece)
        self.names, self.known = outer, known

    def vectors_of(self, piece: Bound) -> None:
        """One program of a GRID lane axis: a vector, which may be shorter at the end of the piece."""
        lane, (start, stop) = self.kernel.axis(piece.expr.name), span(piece)
        body, length = self.enter(self.kernel.body, piece), unwrap(wrap(stop) - start)
        whole = span(piece) == (0, lane.extent)
        if isinstance(length, int) and length % self.lanes == 0 and (whole or lane is not self.shared):
            self.w.line("constexpr long n = LANES;")
            self.program(body)
        else:
            end = self.dim(stop) if whole else self.ends(lane, piece)[1]
            with self.w.block(f"lanes_left({end} - {self.names.index[lane.name]}, [&](long n) INLINE {{", "});"):
                self.program(body)

    def program(self, body: Sequence[Stmt]) -> None:
        """Scratch arrays, then the kernel's statements."""
        self.scratch_rows()
        self.cases(body)

    def scratch_rows(self) -> None:
        """Declare the scratch arrays."""
        for p in self.kernel.params:
            if p.mode == "scratch":
                self.buffers[p.name] = self.names.fresh(p.name)
                self.w.line(f"alignas(64) {stored(p.dtype)} {self.buffers[p.name]}[{scratch_elements(p)}];")

    def cases(self, body: Sequence[Stmt]) -> None:
        """The statements, once for each part that whole programs may lie in."""
        pieces, lane = self.program_pieces(body), self.lane_axis
        if not pieces:
            self.fetching = fetched_ahead(replace(self.kernel, body=tuple(body)), lane, self.streams())
            if self.fetching is not None and self.fetching.phase is None:
                self.fetch_ahead(self.fetching)
            self.statements(body, in_lanes=lane is not None and lane.role is Role.GRID)
            return
        outer, known, stored = self.names, self.known, self.rounded_by_store
        for k, piece in enumerate(pieces):
            test = "" if piece.hi is None else f" if ({self.index(piece.expr)} < {self.index(wrap(piece.hi))})"
            self.w.line(f"{'} else' if k else ''}{test} {{".strip())
            self.names = outer.inner()
            with self.w.block():
                self.cases(self.enter(body, piece))
            self.names, self.known, self.rounded_by_store = outer, known, stored
        self.w.line("}")

    def lane_pieces(self) -> tuple[Bound | None, ...]:
        """The pieces of a GRID lane axis, each with loops of its own; (None,) where there is no such axis."""
        lane = self.lane_axis
        if lane is None or lane.role is not Role.GRID:
            return (None,)
        return pieces_of(self.kernel.body, lane.symbol, 0, lane.extent)

    def program_pieces(self, body: Sequence[Stmt]) -> tuple[Bound, ...]:
        """The pieces of the first index that parts whole programs of a body; none where nothing does."""
        inner = {a.symbol for a in self.kernel.axes if a.role is not Role.GRID or a is self.lane_axis}
        tested = (b.expr for s in walk(body) for b in bounds_of(s) if not symbols(b.expr) & inner)
        choices = (found for e in dict.fromkeys(tested) if len(found := pieces_of(body, e, None, None)) > 1)
        return next(choices, ())

    def loop_pieces(self, loop: Loop, axis: Axis) -> tuple[Bound, ...]:
        """The pieces of a SERIAL axis, each with a loop of its own; one where it is shared out."""
        if axis.in_turn:
            raise UnsupportedError(f"C++ kernels walk neighbours: {axis.name} cannot be shared out in turn.")
        if axis.among:
            return (Bound(axis.symbol, *self.kernel.walked(axis)[:2]),)
        pieces = pieces_of(loop.body, axis.symbol, 0, axis.extent)
        # A running total goes on from the last lane of a vector, so only the last vector may be short.
        whole = all(isinstance(p.lo, int) and p.lo % self.lanes == 0 for p in pieces)
        if axis is self.lane_axis and any(isinstance(s, Scan) for s in loop.body) and not whole:
            return (Bound(axis.symbol, 0, axis.extent),)
        return pieces

    def enter(self, body: Sequence[Stmt], piece: Bound | None) -> tuple[Stmt, ...]:
        """`body` inside a piece, which is known from here on."""
        if piece is None:
            return tuple(body)
        self.known = (*self.known, piece)
        if not any(bounds_of(s) for s in walk(body)):
            return tuple(body)
        body = inside(body, piece)
        self.rounded_by_store |= rounded_by_store(replace(self.kernel, body=body))
        return body
