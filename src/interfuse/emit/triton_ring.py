"""Rows in a ring of shared memory, as Gluon text. In: a tidied Kernel with a ring. Out: the code of its module.

Gluon is Triton's lower dialect: the same operators, and a layout wherever a tensor begins; shared memory and the
barriers in it are the text's own. So what warps do for rows is written as for any kernel, and put into Gluon's words.

A program has three sorts of warps. Some fetch: they wait until a chunk of the ring is `empty`, and it is `full` when
what they asked for is there. Some reduce: they walk rows once or oftener, and then what is given of each row is
`known`. Some turn: they take that, so that its place is `free` for the next rows but one, walk the rows a last time and
write across. `turn` numbers the blocks of rows that a program takes, `chunk` all chunks of these, which have some
`steps` each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.emit import triton_prelude as prelude
from interfuse.emit.triton_body import Body
from interfuse.emit.triton_lanes import Lane
from interfuse.ir.index import wrap
from interfuse.lower.kernel import Kernel, Load, Loop, Reduce, Stmt, Store, Value, operands, step_along, walk
from interfuse.lower.ring import BYTES, fetched, steps_of
from interfuse.lower.vectors import VECTOR_BYTES

REDUCERS, FETCHERS = 8, 4
"""Warps that reduce, and that fetch."""

REDUCING, FETCHING = 128, 56
"""Registers of their threads; those that turn have what is left."""

IMPORTS = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
"""

WORDS = frozenset(
    "abs arange cast div_rn exp exp2 fma full load log maximum minimum reduce rsqrt sqrt_rn store sum max min where"
    " int1 int8 int16 int32 int64 uint8 uint16 uint32 float8e4nv float8e5 float16 bfloat16 float32".split()
)
"""Words of Triton that are Gluon's as well."""

BARRIERS = ("full", "empty", "known", "free")
OWN = (*BARRIERS, "gl", "gluon", "mbarrier", "async_copy", "turn", "part", "chunk", "slot", "step", "piece")
"""Names of the text itself."""

INIT = """\
    for slot in gl.static_range(RING):
        mbarrier.init(full.index(slot), count={threads})
        mbarrier.init(empty.index(slot), count=1)
    for slot in gl.static_range(2):
        mbarrier.init(known.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
"""

CHUNKS = "for part in range(CHUNKS):"
SLOT = ("chunk = turn * CHUNKS + part", "slot = chunk % RING")
"""One chunk of a block. Were `turn` in the bounds of a loop alone, Triton would take it for unused, and drop it."""

STEPS = "for step in gl.static_range(STEPS):"
START = "col_start = (part * STEPS + step) * COL_BLOCK"
STEP = "{0}.index(slot * STEPS + step)"
GIVEN = "{0}_given.index(turn & 1)"


class _Walk(Body):
    """Writes what some warps do for a block of rows; `last` where they give chunks back."""

    def __init__(self, kernel: Kernel, rings: dict[Load, str], last: bool) -> None:
        super().__init__(kernel)
        self._rings = {(s.param, s.index): name for s, name in rings.items()}
        self._last, self._unread, self._waits = last, set(self._rings), False
        self._taken |= {*OWN, *self._rings.values()}
        self.named.clear()

    def named_as(self, value: Value) -> str:
        """The name of a value in the text."""
        return self._name(value)

    def _load(self, s: Load) -> None:
        place = s.param, s.index
        if place not in self._rings:
            super()._load(s)
            return
        if self._waits:
            with self.writer.block("if step == 0:"):
                self.writer.line("mbarrier.wait(full.index(slot), chunk // RING & 1)")
        self._waits = False
        read = f"{STEP.format(self._rings[place])}.load(LAYOUT)"
        self.writer.line(f"{self._name(s.out)} = {self._convert(read, self.kernel.param(s.param).dtype, s.out.dtype)}")
        self._unread.discard(place)
        if self._last and not self._unread:
            with self.writer.block("if step == STEPS - 1:"):
                self.writer.line("mbarrier.arrive(empty.index(slot), count=1)")

    def _steps(self, loop: Loop, header: str) -> None:
        if not header:  # one of the steps of a chunk
            super()._steps(loop, "")
            return
        self._waits = True
        with self.writer.block(CHUNKS):
            self._lines(SLOT)
            super()._steps(loop, STEPS)

    def _step(self, loop: Loop, lane: Lane) -> None:
        self.writer.line(START)
        super()._step(loop, lane)

    def rows(self) -> str:
        """The line that tells the indices of a block's rows."""
        piece = "piece.to(tl.int64)" if "row" in self.wide else "piece"
        return f"row = {piece} * ROW_BLOCK + {self.lanes['row'].numbers()}"


def ring_code(kernel: Kernel, entry: str, pointers: Sequence[str]) -> str:
    """The imports and functions of the module whose entry takes the `pointers`; UnsupportedError where what the kernel
    computes has no words in Gluon.
    """
    rings = {s: f"{s.param}_ring{k or ''}" for k, s in enumerate(fetched(walk(kernel.body)))}
    first, last = _apart(kernel.body)
    given = [v for v in dict.fromkeys(a for s in walk(last) for a in operands(s)) if v in _made(first) - _made(last)]
    if any(v.dtype.bytes not in BYTES for v in given):
        raise UnsupportedError("what is given of a row is no number of 16 or 32 bits")
    reduces, turns = (_Walk(replace(kernel, body=b), rings, b is last) for b in (first, last))
    for walks, body in ((reduces, first), (turns, last)):
        with walks.writer.block(), walks.writer.block():
            walks.writer.line(walks.rows())
            if walks is turns:
                _take(turns, given)
            walks.statements(body)
            if walks is reduces:
                _give(reduces, given)
    names = [turns.named_as(v) for v in given]
    buffers = [*rings.values(), *(f"{n}_given" for n in names), *BARRIERS]
    arguments = ", ".join([*pointers, *buffers])
    helpers = dict.fromkeys((*reduces.helpers, *turns.helpers))
    parts = [f"@gluon.jit{_words(prelude.HELPERS[h], '')}" for h in helpers]
    for name, text, layout in (
        ("fetch", _fetching(reduces, rings), "FETCHED"),
        ("reduce_rows", reduces.writer.text(), "REDUCED"),
        ("turn_rows", turns.writer.text(), "TURNED"),
    ):
        head = f"@gluon.jit\ndef {name}({arguments}):\n    turn = 0\n"
        loop = "    for piece in range(gl.program_id(0), PIECES, gl.num_programs(0)):\n"
        parts.append(f"{head}{loop}{_words(text, layout)}        turn += 1\n")
    parts.append(_entry(kernel, entry, pointers, buffers, rings, dict(zip(names, given, strict=True))))
    code = "\n\n".join(parts)
    more = "import triton.language as tl\n" * ("tl." in code)
    more += "from triton.language.extra import libdevice\n" * ("libdevice." in code)
    return f"{more}{IMPORTS}\n{_constants(kernel)}\n\n{code}"


def _apart(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """What the warps that reduce do, and those that turn: the last walk, and what needs no reduction before it."""
    at = max(k for k, s in enumerate(body) if isinstance(s, Loop))
    reduced = {s.out for s in walk(body) if isinstance(s, Reduce)}
    both = list[Stmt]()
    for s in body[:at]:
        if isinstance(s, (Loop, Store)):
            continue
        if reduced.isdisjoint(operands(s)):
            both.append(s)
        else:
            reduced.add(s.out)
    return (*body[:at], *body[at + 1 :]), (*both, _columns_first(body[at]))


def _columns_first(loop: Stmt) -> Loop:
    """The walk with what is the same in all rows before what is read of the ring: it is on its way while warps wait."""
    assert isinstance(loop, Loop)
    rows = {s for s in loop.body if isinstance(s, Store) or "row" in s.out.axes}  # type: ignore[union-attr]
    return replace(loop, body=(*(s for s in loop.body if s not in rows), *(s for s in loop.body if s in rows)))


def _made(body: tuple[Stmt, ...]) -> set[Value]:
    return {s.out for s in walk(body) if not isinstance(s, (Loop, Store))}


def _give(walks: _Walk, given: Sequence[Value]) -> None:
    """Hand over what is given of each row, as soon as its place is free."""
    walks.writer.line("mbarrier.wait(free.index(turn & 1), turn // 2 & 1 ^ 1)")
    for v in given:
        name = walks.named_as(v)
        walks.writer.line(f"{GIVEN.format(name)}.store(gl.reshape({name}, (ROW_BLOCK,)))")
    walks.writer.line("mbarrier.arrive(known.index(turn & 1), count=1)")


def _take(walks: _Walk, given: Sequence[Value]) -> None:
    """Take what is given of each row, so that its place is free."""
    walks.writer.line("mbarrier.wait(known.index(turn & 1), turn // 2 & 1)")
    for v in given:
        name = walks.named_as(v)
        walks.writer.line(f"{name} = {GIVEN.format(name)}.load(gl.SliceLayout(1, LAYOUT))[:, None]")
    walks.writer.line("mbarrier.arrive(free.index(turn & 1), count=1)")


def _fetching(body: _Walk, rings: dict[Load, str]) -> str:
    """What the warps that fetch do for a block of rows."""
    writer = Writer()
    with writer.block(), writer.block():
        writer.line(body.rows())
        with writer.block(CHUNKS):
            for line in SLOT:
                writer.line(line)
            writer.line("mbarrier.wait(empty.index(slot), chunk // RING & 1 ^ 1)")
            with writer.block("for step in range(STEPS):"):
                writer.line(START)
                writer.line(f"col = col_start + {body.lanes['col'].numbers()}")
                for s, name in rings.items():
                    place = f"{s.param}_ptr + {body.index(s.index)}"
                    writer.line(f"async_copy.async_copy_global_to_shared({STEP.format(name)}, {place})")
            writer.line("async_copy.mbarrier_arrive(full.index(slot), increment_count=False)")
    return writer.text()


def _words(text: str, layout: str) -> str:
    """Triton's text in Gluon's words: a tensor of rows and columns has the `layout`, one of either a slice of it."""
    text = text.replace("LAYOUT", layout)
    for dim, spread in ((1, "[:, None]"), (0, "[None, :]")):
        plain = rf"tl\.arange\(0, (\w+)\){re.escape(spread)}"
        text = re.sub(plain, rf"gl.arange(0, \1, gl.SliceLayout({dim}, {layout})){spread}", text)
    text = re.sub(r"tl\.full\(\(\), ([^,]+), (tl\.\w+)\)", r"tl.cast(\1, \2)", text)
    text = re.sub(r"tl\.full\((\([^()]+\)), ([^,]+), (tl\.\w+)\)", rf"tl.full(\1, \2, \3, {layout})", text)
    if missing := {*re.findall(r"\btl\.(\w+)", text)} - WORDS - {"PropagateNan"}:
        raise UnsupportedError(f"no ring: Gluon has no {', '.join(sorted(missing))}")
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", text)


def _entry(
    kernel: Kernel,
    entry: str,
    pointers: Sequence[str],
    buffers: list[str],
    rings: dict[Load, str],
    given: dict[str, Value],
) -> str:
    """The function that is launched: it sets shared memory and barriers up and lets each sort of warps begin."""
    shared = "gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order={0})"
    writer = Writer()
    with writer.block():
        for s, name in rings.items():
            kind = prelude.TYPES[kernel.param(s.param).dtype]
            shape = f"(RING * STEPS, ROW_BLOCK, COL_BLOCK), {shared.format('[1, 0]')}"
            writer.line(f"{name} = gl.allocate_shared_memory({kind}, {shape})")
        for name, v in given.items():
            shape = f"(2, ROW_BLOCK), {shared.format('[0]')}"
            writer.line(f"{name}_given = gl.allocate_shared_memory({prelude.TYPES[v.dtype]}, {shape})")
        for name in BARRIERS:
            count = "RING" if name in ("full", "empty") else "2"
            writer.line(f"{name} = gl.allocate_shared_memory(gl.int64, ({count}, 1), mbarrier.MBarrierLayout())")
        for line in INIT.format(threads=32 * FETCHERS).splitlines():
            writer.line(line[4:])
        writer.line(f"buffers = ({', '.join((*pointers, *buffers))})")
        parts = ", ".join(f"({name}, buffers)" for name in ("turn_rows", "reduce_rows", "fetch"))
        warps, registers = f"[{REDUCERS}, {FETCHERS}]", f"[{REDUCING}, {FETCHING}]"
        writer.line(f"gl.warp_specialize([{parts}], {warps}, {registers})")
    return f"@gluon.jit\ndef {entry}({', '.join(pointers)}):\n{writer.text().replace('tl.', 'gl.')}"


def _constants(kernel: Kernel) -> str:
    """The sizes, and how threads lie over a chunk: those that fetch or reduce have neighbours of a row, those that turn
    have neighbours of a column, of which each writes a vector.
    """
    row, col = kernel.axis("row"), kernel.axis("col")
    rows = wrap(row.extent).hi
    sizes = {"COLS": col.extent, "ROW_BLOCK": row.block, "COL_BLOCK": col.block}
    steps = steps_of(col)
    sizes |= {"STEPS": steps, "CHUNKS": wrap(col.extent).hi // (steps * col.block)}
    sizes |= {"PIECES": rows // row.block, "RING": kernel.ring}
    widest = max(kernel.param(s.param).dtype.bytes for s in fetched(walk(kernel.body)))
    lines = [f"{name} = gl.constexpr({n})" for name, n in sizes.items()]
    each = VECTOR_BYTES // widest
    across = min(32, col.block // each)
    for name, warps in (("FETCHED", FETCHERS), ("REDUCED", REDUCERS)):
        layout = f"gl.BlockedLayout([1, {each}], [{32 // across}, {across}], [{warps}, 1], [1, 0])"
        lines.append(f"{name} = gl.constexpr({layout})")
    lines.append(f"TURNED = gl.constexpr({_turned(kernel, row.block, col.block)})")
    return "\n".join(lines) + "\n"


def _turned(kernel: Kernel, rows: int, cols: int) -> str:
    """The layout of the warps that turn: what each bit of a register's, lane's and warp's number moves it by."""
    stores = [s for s in walk(kernel.body) if isinstance(s, Store) and step_along(s, kernel.axis("col").symbol)]
    written = min(kernel.param(s.param).dtype.bytes for s in stores)
    down, each = min(rows, VECTOR_BYTES // written), rows * cols // (32 * kernel.warps)
    columns = [[0, 1 << k] for k in range(cols.bit_length() - 1)]
    before, behind = ([[1 << k, 0] for k in range(n.bit_length() - 1)] for n in (down, rows))
    own, lanes = (each // down).bit_length() - 1, (32 * down // rows).bit_length() - 1
    registers, lane = before + columns[:own], columns[own : own + lanes] + behind[len(before) :]
    return f"gl.DistributedLinearLayout({registers}, {lane}, {columns[own + lanes :]}, [], [{rows}, {cols}])"
