"""Kernel IR to Triton. In: a Kernel. Out: a TritonSource: a Python module as text, and what a launch must know.

The emitter chooses nothing. Grid axes are decoded from program_id(0), tile axes are held at once, and loads and stores
are masked where a block can pass its axis's end. `triton_body` writes the statements, `triton_index` the index
arithmetic, `triton_prelude` knows types and operators.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, replace

from interfuse.base.errors import UnsupportedError
from interfuse.base.text import Writer
from interfuse.device.profile import OVERLAPPING
from interfuse.emit import triton_prelude as prelude
from interfuse.emit import triton_team
from interfuse.emit.tidy import tidy
from interfuse.emit.triton_body import CHAINED, Body
from interfuse.emit.triton_codes import coded
from interfuse.emit.triton_even import EVEN, MULTIPLE, even_symbols
from interfuse.emit.triton_index import index_text
from interfuse.emit.triton_narrow import narrowed
from interfuse.emit.triton_ring import ring_code
from interfuse.emit.triton_shared import piece_line
from interfuse.ir.index import Dim, contiguous_strides, floordiv, product, symbols, text, unwrap, wrap
from interfuse.lower.kernel import Axis, Kernel, Param, Role
from interfuse.lower.pack import ALIGNED

MOST_LANES, MOST_PROGRAMS = 1 << 20, (1 << 31) - 1
"""The largest tensor that Triton allows, in elements, and the largest grid, in programs."""


TABLE = (("table_ptr", "*i64"), ("members", "i32"))
"""Arguments of a packed kernel. The table has a column after the other, each with an entry a member: its first program,
then the addresses of its buffers, then its sizes."""

ALIGN = "ALIGN"
"""The constexpr of a packed kernel: what all addresses are multiples of, in bytes."""


@dataclass(frozen=True)
class TritonSource:
    """A generated module. `entry` is its kernel; arguments are the non-scratch parameters, then the size symbols.

    `arguments` holds (name, type) as signatures write types; `constants` the constexpr arguments; `grid` the number of
    programs (no launch at 0), `warps` the warps of each. Where symbols are `even`, the constant EVEN must be 0 unless
    all of them are multiples of 16. Where it `flushes`, subnormal results of exponentials may be 0. A packed kernel
    takes the table of its members instead, and `grid` are the programs of one of them. Where an extent of `tiles` is
    larger than the number beside it, `beyond` is launched instead. One that `waits` for the kernel before it may be
    launched while that one runs.

    Where programs work in teams of `team`, all of a launch must be there at once: it is launched cooperatively, for as
    many whole teams as the device holds and `grid` has at most, with `words` of 64 bits for each team behind the
    buffers, which are 0 before the first launch and belong to one launch at a time.
    """

    text: str
    entry: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    grid: Dim
    warps: int
    even: tuple[str, ...] = ()
    flushes: bool = False
    tiles: tuple[tuple[Dim, int], ...] = ()
    beyond: TritonSource | None = None
    waits: bool = False
    team: int = 0
    words: int = 0

    @property
    def forms(self) -> list[TritonSource]:
        """Every form that a launch may take: this one, the one for other sizes, and what serves longer ones."""
        own = [self] if self.uneven is None else [self, self.uneven]
        return own + (self.beyond.forms if self.beyond is not None else [])

    @property
    def uneven(self) -> TritonSource | None:
        """The same for sizes that are no multiples of 16; None where that makes no difference."""
        constants = tuple((n, 0 if n == EVEN else v) for n, v in self.constants)
        return replace(self, constants=constants) if self.even else None


def emit(kernel: Kernel) -> TritonSource:
    """The Triton module for `kernel`; UnsupportedError where it has no text (scratch rows, huge tiles, ...)."""
    if any(p.mode == "scratch" for p in kernel.params):
        raise UnsupportedError("scratch rows: a GPU program keeps its row in registers")
    kernel, flushes = narrowed(tidy(kernel))
    kernel = coded(kernel)
    if kernel.ring:
        return _in_a_ring(kernel, flushes)
    body = Body(kernel)
    own = {a.name for a in kernel.own_axes}
    lanes = product(tuple(x.axis.block for x in body.lanes.values() if x.axis.name in own and x.dim < x.rank))
    grid = product(tuple(_programs(a) for a in kernel.axes if a.role in (Role.GRID, Role.TEAM)))
    if wrap(lanes).hi > MOST_LANES:
        raise UnsupportedError(f"a tile of {lanes} elements: Triton holds at most {MOST_LANES} in a program")
    if isinstance(grid, int) and grid > MOST_PROGRAMS:
        raise UnsupportedError(f"a grid of {grid} programs: a launch takes at most {MOST_PROGRAMS}")
    with body.writer.block():
        body.statements(kernel.body)
    statements = body.writer.text()
    if kernel.team:
        head, statements = _in_turn(kernel, body, statements)
    else:
        head = _head(kernel, body)
    sizes = [
        (x.extent, x.axis.extent) for x in body.lanes.values() if isinstance(x.axis.extent, int) and not x.axis.own_end
    ]
    sizes += [(x.block, x.axis.block) for x in body.lanes.values()]
    constants = tuple((n, v) for n, v in sizes if re.search(rf"\b{n}\b", head + statements))
    even = even_symbols(kernel, body.lanes)
    constants += ((EVEN, 1),) if even else ()
    constants += ((CHAINED, 0),) if kernel.follows or kernel.leads else ()
    arguments = _pointers(kernel)
    arguments += (triton_team.ARGUMENT,) if kernel.team else ()
    arguments += tuple((s, "i32") for s in kernel.symbols)  # what Triton takes them for, until one passes 2^31 - 1
    fixed = kernel.symbols
    if kernel.packed:
        arguments, constants, fixed = TABLE, (*constants, (ALIGN, ALIGNED)), ("members",)
    spelled = ", ".join([*(n for n, _ in arguments), *(f"{n}: tl.constexpr" for n, _ in constants)])
    entry = _entry(kernel)
    functions = [f"@triton.jit{prelude.HELPERS[h]}" for h in body.helpers]
    # Triton would compile again for a size of 1 and for multiples of 16.
    special = f"(do_not_specialize={_quoted(fixed)})" if fixed else ""
    functions.append(f"@triton.jit{special}\n{_wrapped(f'def {entry}({spelled}):')}\n{head}\n{statements}")
    code = "\n\n".join(functions)
    imports = "import triton\nimport triton.language as tl\n"
    if CHAINED in code:
        imports += "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
    if "libdevice." in code:
        imports += "from triton.language.extra import libdevice\n"
    module = f'"""{_doc(kernel, grid)}\n"""\n{imports}\n\n{code}'
    tiles = tuple((a.extent, a.block) for a in kernel.tiles)
    beyond = emit(kernel.beyond) if kernel.beyond is not None else None
    shape = (grid, kernel.warps, even, flushes, tiles, beyond, kernel.follows, kernel.team, triton_team.words(kernel))
    return TritonSource(module, entry, arguments, constants, *shape)


def _in_a_ring(kernel: Kernel, flushes: bool) -> TritonSource:
    """The module of a kernel whose rows go by way of a ring."""
    entry, arguments, grid = _entry(kernel), _pointers(kernel), _programs(kernel.axis("row"))
    code = ring_code(kernel, entry, [name for name, _ in arguments])
    module = f'"""{_doc(kernel, grid)}\n"""\n\n{code}'
    return TritonSource(module, entry, arguments, (), grid, kernel.warps, flushes=flushes)


def _pointers(kernel: Kernel) -> tuple[tuple[str, str], ...]:
    return tuple((f"{p.name}_ptr", f"*{prelude.SIGNATURE[p.dtype]}") for p in kernel.params)


def _entry(kernel: Kernel) -> str:
    """The name of the kernel's function."""
    entry = re.sub(r"\W", "_", kernel.name)
    return f"{entry}_kernel" if entry in prelude.HELPERS or keyword.iskeyword(entry) else entry


def _in_turn(kernel: Kernel, body: Body, statements: str) -> tuple[str, str]:
    """Head and statements of a kernel whose teams take rows in turn."""
    writer, team = Writer(), triton_team
    grid = [a for a in kernel.axes if a.role is Role.GRID]
    with writer.block():
        team.before(kernel, writer)
        for axis in (a for a in kernel.axes if a.role is Role.TILE):
            _tile(writer, axis, body)
        if body.ahead:
            for line in (team.ahead(kernel, "row" in body.wide, True), *body.fetches()):
                writer.line(line)
        with writer.block(team.loop(kernel, index_text(wrap(product(tuple(map(_programs, grid)))), str))):
            if body.ahead:
                writer.line(team.ahead(kernel, "row" in body.wide, False))
            _pieces(writer, grid, body, True)
            _shared_indices(writer, kernel, body)
    inside = "\n".join(f"    {line}" if line.strip() else "" for line in statements.splitlines())
    return writer.text(), f"{inside}\n    {team.AFTER}\n"


def _tile(writer: Writer, axis: Axis, body: Body) -> None:
    """The indices of a tile."""
    if axis.vector > 1 and body.held is not None:
        for line in body.held.head:
            writer.line(line)
        return
    _axis(writer, axis, body, "")
    if axis.name in body.in_pieces:
        writer.line(piece_line(body.lanes[axis.name]))


def _pieces(writer: Writer, grid: list[Axis], body: Body, several: bool) -> None:
    """Which piece of each grid axis a program has."""
    for k, axis in enumerate(grid):
        inner = product(tuple(_programs(a) for a in grid[k + 1 :]))
        outermost = all(_programs(a) == 1 for a in grid[:k])
        _axis(writer, axis, body, _piece(inner, _programs(axis), outermost, several))
        if axis.vector > 1 and body.held is not None:
            for line in body.held.head:
                writer.line(line)


def _shared_indices(writer: Writer, kernel: Kernel, body: Body) -> None:
    """The indices that several accesses share, outside serial loops."""
    serial = {a.name for a in kernel.axes if a.role is Role.SERIAL}
    for e, name in body.named.items():
        if not {s.name for s in symbols(e)} & serial:
            writer.line(f"{name} = {body.index(e)}")


def chained(source: TritonSource, target: str) -> dict[str, int]:
    """The constant that lets a kernel start while the one before it ends, and for the later of the two the launch that
    allows it, where `source` has the constant and the target ("cuda:90", ...) can do that.

    What does not wait must not be launched so: a library's kernel before it may let others start before it is done.
    """
    able = target.startswith("cuda:") and int(target.split(":")[1]) >= OVERLAPPING
    if not able or all(n != CHAINED for n, _ in source.constants):
        return {}
    return {CHAINED: 1} | ({"launch_pdl": True} if source.waits else {})


def together(source: TritonSource) -> dict[str, bool]:
    """The launch of a kernel whose programs wait for each other."""
    return {"launch_cooperative_grid": True} if source.team else {}


def warps_on(kind: str, warps: int) -> int:
    """The warps of a program on "cuda" or "hip": a program has 1024 threads at most, and a warp of "hip" 64."""
    return min(warps, 16) if kind == "hip" else warps


def options(kind: str, flushes: bool) -> dict[str, bool]:
    """Compiler options for "cuda" or "hip": no contraction of a * b + c, which would round otherwise than eager does
    and can move a floor or a comparison; no flushing of subnormals inside libdevice but where the source `flushes`.
    """
    return {"enable_fp_fusion": False} | ({"enable_reflect_ftz": flushes} if kind == "cuda" else {})


def _quoted(names: tuple[str, ...]) -> str:
    listed = ", ".join(f'"{n}"' for n in names)
    return f"[{listed}]"


def _programs(axis: Axis) -> Dim:
    """How many pieces a grid axis has."""
    return unwrap(floordiv(wrap(axis.extent) + (axis.block - 1), axis.block))


def _is_long(name: str, kernel: Kernel, body: Body) -> bool:
    """True where the symbol may pass 2^31 - 1."""
    seen = [s for e in (*body.exprs, *(wrap(a.extent) for a in kernel.axes)) for s in symbols(e) if s.name == name]
    return max((s.hi for s in seen), default=0) >= 1 << 31


def _wrapped(line: str) -> str:
    """A def line, its arguments on a line of their own where it would pass 120 columns."""
    if len(line) <= 120:
        return line
    start, rest = line.split("(", 1)
    lines = [f"{start}("]
    for part in rest.removesuffix("):").split(", "):
        if lines[-1].endswith("(") or len(lines[-1]) + len(part) > 116:
            lines.append(f"    {' ' * 4}{part},")
        else:
            lines[-1] += f" {part},"
    return "\n".join(lines).removesuffix(",") + "):"


def _head(kernel: Kernel, body: Body) -> str:
    """The index of every grid and tile axis, the masks that are used, and the indices that several accesses share."""
    writer = Writer()
    grid = [a for a in kernel.axes if a.role is Role.GRID]
    several = sum(_programs(a) != 1 for a in grid) > 1
    with writer.block():
        if kernel.packed:
            several = True
            _member(writer, kernel, body)
        else:
            for name in kernel.symbols:
                if name in body.wide:
                    writer.line(f"{name} = {name}.to(tl.int64)")
            even = even_symbols(kernel, body.lanes)
            if even:
                with writer.block(f"if {EVEN}:"):
                    for name in even:
                        writer.line(f"{name} = {name} // {MULTIPLE} * {MULTIPLE}  # changes nothing, but tells Triton")
            if (kernel.follows or kernel.leads) and not body.awaits:
                body.chain(writer)
            if several:
                writer.line("program = tl.program_id(0)")
        if body.nothing:
            writer.line(f"{body.nothing} = tl.program_id(1)  # 0; unknown, so that rows and what they share lie alike")
        _pieces(writer, grid, body, several)
        for axis in kernel.axes:
            if axis.role is Role.TILE:
                _tile(writer, axis, body)
        _shared_indices(writer, kernel, body)
    return writer.text()


def _member(writer: Writer, kernel: Kernel, body: Body) -> None:
    """Which member of the pack this program works for, which of its programs this is, its buffers and sizes."""
    writer.line("program = tl.program_id(0)")
    if kernel.level:
        writer.line("member = program % members  # all have as many programs, which take turns")
    else:
        writer.line("member = 0  # the last one that begins at or before this program")
        writer.line("end = members")
        with writer.block("while end - member > 1:"):
            writer.line("middle = (member + end) // 2")
            writer.line("begun = tl.load(table_ptr + middle) <= program")
            writer.line("member = tl.where(begun, middle, member)")
            writer.line("end = tl.where(begun, end, middle)")
    writer.line("row_ptr = table_ptr + member")
    writer.line("program = program // members" if kernel.level else "program -= tl.load(row_ptr).to(tl.int32)")
    for k, p in enumerate(kernel.params, 1):
        address = f"tl.load(row_ptr + {k} * members).to(tl.pointer_type({prelude.TYPES[p.dtype]}))"
        writer.line(f"{p.name}_ptr = tl.multiple_of({address}, {ALIGN})")
    for k, name in enumerate(kernel.symbols, 1 + len(kernel.params)):
        wide = name in body.wide or _is_long(name, kernel, body)
        writer.line(f"{name} = tl.load(row_ptr + {k} * members){'' if wide else '.to(tl.int32)'}")


def _piece(inner: Dim, count: Dim, outermost: bool, several: bool) -> str:
    """Which piece of a grid axis this program has; "" where there is one piece only."""
    if count == 1:
        return ""
    if not several:
        return "tl.program_id(0)"
    divided = "program" if inner == 1 else f"program // {index_text(wrap(inner), str, parent=3)}"
    return divided if outermost else f"{divided} % {index_text(wrap(count), str, parent=3)}"


def _axis(writer: Writer, axis: Axis, body: Body, piece: str) -> None:
    """One axis's index, and its mask where it is used."""
    lane, wide = body.lanes.get(axis.name), axis.name in body.wide
    if wide and piece:
        piece = f"{piece}.to(tl.int64)" if piece in ("program", "tl.program_id(0)") else f"({piece}).to(tl.int64)"
    if lane is None:
        writer.line(f"{axis.name} = {piece or '0'}")
        return
    numbers = lane.numbers() + (".to(tl.int64)" if wide and not piece else "")
    writer.line(f"{axis.name} = {f'{piece} * {lane.block} + {numbers}' if piece else numbers}")
    if lane.mask in body.used_masks:
        writer.line(f"{lane.mask} = {axis.name} < {lane.extent}")


def _doc(kernel: Kernel, grid: Dim) -> str:
    lines = list(kernel.doc) or [kernel.name]
    if not any("[" in line for line in lines):
        lines += ["", *_shape_lines(kernel.params)]
    each = " a member" if kernel.packed else ""
    lines.append(f"Family: {kernel.family}; {text(wrap(grid))} programs of {kernel.warps} warps{each}.")
    return "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")


def _shape_lines(params: tuple[Param, ...]) -> list[str]:
    """Names, shape, type and layout; parameters that agree share a line."""
    groups: dict[str, list[str]] = {}
    for p in params:
        dense = all(d == 1 or s == w for d, s, w in zip(p.shape, p.strides, contiguous_strides(p.shape), strict=True))
        dims = ", ".join(text(wrap(d)) for d in p.shape)
        layout = "contiguous" if dense else f"strides [{', '.join(text(wrap(s)) for s in p.strides)}]"
        groups.setdefault(f"[{dims}] {prelude.LONG_NAMES[p.dtype]}, {layout}.", []).append(p.name)
    return [f"{', '.join(names)}: {rest}" for rest, names in groups.items()]
