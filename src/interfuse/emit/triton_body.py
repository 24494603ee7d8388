"""The statements of a Kernel as Triton text. In: a tidied Kernel. Out: lines, and the helpers and masks that they use.

One line a value. A lane axis (a grid axis with block > 1, a tile, a serial step) is one dimension of every tensor
that varies over it; the others have size 1 there, so that shapes meet by broadcasting. With one lane axis tensors are
1-D and what does not vary over it is a scalar. Masked lanes enter a reduction as its identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit import triton_counted as counted
from interfuse.emit import triton_prelude as prelude
from interfuse.emit import triton_team
from interfuse.emit.triton_dot import Products
from interfuse.emit.triton_index import INT32
from interfuse.emit.triton_lanes import Lane, padded, shape_of
from interfuse.emit.triton_reduce import (
    COMBINE,
    COMPOSITE,
    JOINS,
    Carried,
    Operand,
    distinct,
    expsum,
    identity,
    moments,
    paired,
)
from interfuse.emit.triton_steps import Piece, apart, ended, held, pieces
from interfuse.ir.index import Dim, symbols, wrap
from interfuse.lower.kernel import (
    MOMENTS,
    PART,
    PLACES,
    Axis,
    Kernel,
    Let,
    Load,
    Loop,
    Meet,
    Reduce,
    Role,
    Scan,
    Scope,
    Stmt,
    Store,
    Value,
    walk,
)

CHAINED = "CHAINED"
"""The constexpr of kernels that overlap with the one before or behind."""


class Body(Products):
    """Writes a kernel's statements, loops and reductions."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._carried: dict[tuple[Value, str], str] = {}
        self.awaits = frozenset(kernel.awaits if kernel.follows and not kernel.packed else ())
        self._waited = not self.awaits
        for axis in kernel.axes:
            if axis.role is Role.TILE and axis.vector > 1:
                self._piece = held(self.lanes[axis.name], self.index(wrap(axis.origin)))
            if axis.role is Role.GRID and axis.vector > 1:
                self._piece = ended(self.lanes[axis.name])

    def chain(self, writer: Writer) -> None:
        """Wait for the kernel before this one, and let the one behind it start."""
        with writer.block(f"if {CHAINED}:"):
            if self.kernel.follows:
                writer.line("gdc_wait()  # for what the kernel before this one writes")
            if self.kernel.leads:
                writer.line("gdc_launch_dependents()")

    @property
    def held(self) -> Piece | None:
        """The row that a program holds in whole vectors, or the map that it takes in these."""
        return self._piece

    # --- statements

    def statements(self, body: tuple[Stmt, ...]) -> None:
        """Write statements in order; a loop over a tile writes its body as it is, for the tile is there at once."""
        pairs = paired(body, self.lanes)
        for k, s in enumerate(body):
            self._wait_before(s)
            if isinstance(s, Loop):
                self.writer.gap()
                if self.kernel.axis(s.axis).role is Role.SERIAL:
                    self._serial(s)
                else:
                    self.statements(s.body)
            elif isinstance(s, Load):
                self._load(s)
            elif isinstance(s, Let):
                self._let(s)
            elif isinstance(s, Reduce):
                if s in pairs:
                    self._pair(pairs[s], s)
                elif s in pairs.values():
                    continue  # it comes with its partner
                elif s.op in PLACES:
                    self._place(s, self._masked(s), self._places(s))
                else:
                    self.writer.line(f"{self._name(s.out)} = {self._reduced(s, self._masked(s))}")
            elif isinstance(s, Scan):
                self._scan(s)
            elif isinstance(s, Meet):
                if k == 0 or not isinstance(body[k - 1], Meet):
                    self._meet([*itertools.takewhile(lambda m: isinstance(m, Meet), body[k:])])  # type: ignore[list-item]
            else:
                self._store(s)
            if isinstance(s, (Load, Let)):
                for p in self.kernel.picks:
                    if p.value == s.out:
                        self._look_up(p)

    def _wait_before(self, s: Stmt) -> None:
        """Wait where `s` is the first that reads what the kernel before this one writes, or that writes."""
        if self._waited or (isinstance(s, Loop) and self.kernel.axis(s.axis).role is not Role.SERIAL):
            return
        if any(isinstance(i, Store) or (isinstance(i, Load) and i.param in self.awaits) for i in walk((s,))):
            self._waited = True
            self.chain(self.writer)

    def _meet(self, meets: list[Meet]) -> None:
        """A meeting of the team."""
        self.writer.gap()
        self._lines(triton_team.meeting(self.kernel, meets, self._name, self._own, self.fetches()))

    # --- reductions

    def _masked(self, s: Reduce) -> str:
        """The reduction's argument with the identity in the lanes past the axis's end."""
        mask = self._mask({s.axis})
        found = self._operand(s.arg)
        return f"tl.where({mask}, {found}, {identity(s.op, s.arg.dtype)})" if mask else found

    def _pair(self, s: Reduce, other: Reduce) -> None:
        """Two reductions at once: warps that share a row wait for each other once."""
        if s.op == "max":
            s, other = other, s
        lane, join = self.lanes[s.axis], self._note_helpers("plus_and_max" if other.op == "max" else "plus_both")
        names, found = f"{self._name(s.out)}, {self._name(other.out)}", f"({self._masked(s)}, {self._masked(other)})"
        self.writer.line(f"{names} = tl.reduce({found}, {lane.dim}, {join}{', keep_dims=True' * (lane.rank > 1)})")

    def _reduced(self, s: Reduce, argument: str) -> str:
        """The reduction of `argument` across the lanes of its axis.

        What every program joins ahead and has no other lanes becomes a plain number: Triton would spread a tensor of
        one over the tile in the layout of the parts, and turn it into that of the tile afterwards.
        """
        lane, dtype = self.lanes[s.axis], s.arg.dtype
        alone = s.axis == PART and self.lanes.keys() & set(s.arg.axes) == {s.axis}
        axis, keep = ("None", "") if alone and lane.rank > 1 else (lane.dim, ", keep_dims=True" * (lane.rank > 1))
        where = f", axis={axis}{keep}" if lane.rank > 1 and not alone else ""
        if s.op in ("any", "all"):
            return f"tl.{'max' if s.op == 'any' else 'min'}({argument}.to(tl.int32){where}) != 0"
        if s.op == "sum" or not (dtype.is_float or s.op == "prod"):
            found = f"tl.{s.op}({argument}{where})"
            return f"{found}.to({prelude.TYPES[dtype]})" if dtype.bytes < 4 else found
        combine = self._note_helpers({"max": "nan_max", "min": "nan_min", "prod": "times"}[s.op])
        return f"tl.reduce({argument}, {axis}, {combine}{keep})"

    def _serial(self, loop: Loop) -> None:
        """A loop in steps of the axis's block: one accumulator a reduction before it, their lanes joined after it."""
        axis, lane, body = self.kernel.axis(loop.axis), self.lanes[loop.axis], walk(loop.body)
        if self.products:
            self._multiply(lane, self._every(axis, lane))
            return
        if any(isinstance(s, Loop) and self.kernel.axis(s.axis).role is Role.SERIAL for s in loop.body):
            raise UnsupportedError("a serial loop inside a serial loop has no Triton text")
        carried = [s for s in body if isinstance(s, Reduce) and s.axis == axis.name]
        for s in body:
            if isinstance(s, Reduce) and (s.scope is Scope.CARRY) != (s in carried):
                raise UnsupportedError(f"{s.out.name}: inside a serial loop only reductions along it are carried")
        joint = self._joint(carried)
        for s in carried:
            if s not in joint:
                self._start(s)
        self._lines(line for made in distinct(joint.values()) for line in made.before)
        for scan in [s for s in body if isinstance(s, Scan) and s.axis == axis.name]:
            self._start_scan(scan)
        found = list[Piece]()
        if axis.vector > 1:
            stored = any(isinstance(s, Store) for s in body)
            before, found = pieces(lane, self.index(wrap(axis.origin)), self.kernel.stages, loop.backwards, stored)
            self._lines(before)
        elif self._weighs(axis, carried):
            found = apart(lane, self.kernel.stages, loop.backwards, axis.name in self.wide)
        if found:
            for self._piece in found:
                self._steps(loop, self._piece.loop)
            self._piece = None
        else:
            self._steps(loop, self._every(axis, lane, loop.until))
        self._lines(line for made in distinct(joint.values()) for line in made.after)
        for s in carried:
            name = self._name(s.out)
            if s in joint:
                self.writer.line(f"{name} = {self._note_helpers(joint[s].results[s.op])}")
            elif s.op in PLACES:
                self._place(s, f"{name}_best", name)
            else:
                self.writer.line(f"{name} = {self._reduced(s, name)}")

    def _weighs(self, axis: Axis, carried: list[Reduce]) -> bool:
        """True for a loop of several steps that sums exponentials and passes the end: in each step a mask would cost
        more than what it guards.
        """
        several = isinstance(axis.extent, int) and axis.extent > 2 * axis.block and axis.extent % axis.block != 0
        sums = any(s.op == "expsum" for s in carried) and all(s.op in ("expsum", "max") for s in carried)
        return several and sums and not axis.among

    def _every(self, axis: Axis, lane: Lane, until: Dim | None = None) -> str:
        """The header of a loop over all steps, or those `until` an index."""
        first, last, step = map(wrap, self.kernel.walked(axis))
        if axis.own_end:
            self.writer.line(f"{lane.extent} = {self.index(last)}")
        by = self.index(step) if axis.in_turn else lane.block
        end = lane.extent if until is None else self.index(wrap(until))
        return counted.head(axis, lane, (self.index(first), end, by), self.kernel.stages)

    def _steps(self, loop: Loop, header: str) -> None:
        """The steps of a loop under one header, or one step without."""
        if header:
            with self.writer.block(header):
                self._steps(loop, "")
            return
        body, outer, known = walk(loop.body), self.writer, self._looked_up
        self.writer = Writer()
        carried = [s for s in body if isinstance(s, Reduce) and s.axis == loop.axis]
        joint, self._loop = self._joint(carried), loop
        stepped: set[str] = set()
        for along, several in itertools.groupby(body, lambda s: s in carried):
            if not along:
                self.statements(tuple(several))
                continue
            for inside in several:
                assert isinstance(inside, Reduce)
                if inside in joint:
                    self._lines(line for line in joint[inside].step if joint[inside].before[0] not in stepped)
                    stepped.add(joint[inside].before[0])
                    continue
                name, part = self._name(inside.out), self._masked(inside)
                if inside.op in PLACES:
                    name, part = f"{name}_best, {name}", f"{part}, {self._places(inside)}"
                self.writer.line(f"{name} = {self._note_helpers(COMBINE[inside.op]).format(name, part)}")
        inner, self.writer, self._looked_up = self.writer, outer, known
        self._loop = None
        self._step(loop, self.lanes[loop.axis])
        for line in inner.text().splitlines():
            self.writer.line(line)

    def _joint(self, carried: list[Reduce]) -> dict[Reduce, Carried]:
        """What is carried for reductions that need several numbers; those that can share it have the same."""
        found: dict[tuple[Value, bool], Carried] = {}
        weighed = {s.arg for s in carried if s.op == "expsum"}
        joint = {}
        for s in carried:
            if s.op in COMPOSITE or (s.op == "max" and s.arg in weighed):
                key = s.arg, s.op in MOMENTS
                if key not in found:
                    x = Operand.of(s, self._operand(s.arg), self.lanes, self._mask({s.axis}), self.kernel)
                    found[key] = (moments if s.op in MOMENTS else expsum)(x, self._own_of(s))
                joint[s] = found[key]
        return joint

    def _own_of(self, s: Reduce) -> Callable[[str], str]:
        """Free names for what is carried for a reduction: the same ones each time."""

        def own(wish: str) -> str:
            if (s.arg, wish) not in self._carried:
                self._carried[s.arg, wish] = self._own(wish)
            return self._carried[s.arg, wish]

        return own

    # --- scans

    def _scan(self, s: Scan) -> None:
        """The scan of this step's lanes; in a serial loop with what came before, which it carries on."""
        lane, name, join = self.lanes[s.axis], self._name(s.out), JOINS[s.op]
        arg = self._operand(s.arg)
        if s.axis not in s.arg.axes:
            arg = f"tl.broadcast_to({arg}, {shape_of(s.out.axes, self.lanes)})"
        combine = self._note_helpers({"sum": "plus", "prod": "times", "max": "nan_max", "min": "nan_min"}[join])
        if s.arg.dtype.bytes < 4 and not s.arg.dtype.is_float:
            arg = f"({arg}).to(tl.int32)"
        if s.scope is Scope.LANE:
            if self._piece is not None:  # lanes before the row are others'
                arg = f"tl.where({self._piece.inside}, {arg}, {identity(join, s.arg.dtype)})"
            self.writer.line(f"{name} = {self._typed_scan(s, f'tl.associative_scan({arg}, {lane.dim}, {combine})')}")
            return
        part, carry = f"{name}_part", f"{name}_carry"
        mask = self._mask({s.axis})
        start = identity(join, s.arg.dtype)
        self.writer.line(f"{part} = {f'tl.where({mask}, {arg}, {start})' if mask else arg}")
        joined = self._note_helpers(COMBINE[join])
        along = f"tl.associative_scan({part}, {lane.dim}, {combine})"
        self.writer.line(f"{name} = {self._typed_scan(s, joined.format(carry, along))}")
        total = self._reduced(Reduce(s.out, join, s.arg, s.axis, Scope.LANE), part)
        self.writer.line(f"{carry} = {self._typed_scan(s, joined.format(carry, total))}")

    def _typed_scan(self, s: Scan, found: str) -> str:
        """The scan in the type of its result: Triton widens small integers."""
        return f"({found}).to({prelude.TYPES[s.out.dtype]})" if s.out.dtype.bytes < 4 else found

    def _start_scan(self, s: Scan) -> None:
        """What a scan carries into its serial loop."""
        start, kind = identity(JOINS[s.op], s.arg.dtype), prelude.TYPES[s.out.dtype]
        shape = shape_of([a for a in s.out.axes if a != s.axis], self.lanes) if len(self.lanes) > 1 else "()"
        self.writer.line(f"{self._name(s.out)}_carry = tl.full({shape}, {start}, {kind})")

    def _start(self, s: Reduce) -> None:
        """The accumulator of a carried reduction: its identity in every lane, with place 0 where it wants a place."""
        name, shape = self._name(s.out), shape_of(s.arg.axes, self.lanes)
        start = f"tl.full({shape}, {identity(s.op, s.arg.dtype)}, {prelude.TYPES[s.arg.dtype]})"
        if s.op in PLACES:
            self.writer.line(f"{name}_best = {start}")
            start = f"tl.full({shape}, 0, {self._place_type(s)})"
        self.writer.line(f"{name} = {start}")

    # --- places of the largest or smallest element

    def _place_type(self, s: Reduce) -> str:
        return "tl.int64" if padded(self.kernel.axis(s.axis)) > INT32 else "tl.int32"

    def _places(self, s: Reduce) -> str:
        """The place of each lane of the argument."""
        shape = shape_of(s.arg.axes, self.lanes)
        return s.axis if len(self.lanes) == 1 else f"tl.broadcast_to({s.axis}, {shape})"

    def _place(self, s: Reduce, argument: str, places: str) -> None:
        """The first place of the largest or smallest element across the lanes of the axis."""
        lane, name = self.lanes[s.axis], self._name(s.out)
        combine = self._note_helpers(COMBINE[s.op].split("(")[0])
        keep = ", keep_dims=True" if lane.rank > 1 else ""
        self.writer.line(f"_, {name} = tl.reduce(({argument}, {places}), {lane.dim}, {combine}{keep})")
        self.writer.line(f"{name} = {name}.to(tl.int64)")

    def _step(self, loop: Loop, lane: Lane) -> None:
        """The first lines of a serial step: its indices and its mask."""
        axis = lane.axis
        if self._piece is not None:
            self._lines(self._piece.head)
            self._shared_places(loop, axis)
            return
        masked = lane.mask in self.used_masks
        self._lines(counted.first_lines(axis, lane, loop.backwards, axis.name in self.wide, masked))
        self._shared_places(loop, axis)

    def _shared_places(self, loop: Loop, axis: Axis) -> None:
        """The indices of a step that several accesses share."""
        used = {s.index for s in walk(loop.body) if isinstance(s, (Load, Store))}
        for e in self.named:
            if e in used and axis.symbol in symbols(e):
                self.writer.line(f"{self.named[e]} = {self._place_text(e)}")
