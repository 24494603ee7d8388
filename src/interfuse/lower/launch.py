"""What a kernel is launched with. In: its family, axes, statements. Out: warps of a program, steps under way, the key
under which the bits of its reductions repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from interfuse.ir.dtypes import F32
from interfuse.ir.index import Expr, symbols, wrap
from interfuse.lower.axes import STEP_BYTES, WIDEST_SCAN, crowded, power
from interfuse.lower.kernel import Axis, Let, Load, Loop, Reduce, Role, Scan, Stmt, Store, step_along, varies_over, walk
from interfuse.lower.products import FAMILY, NAMES
from interfuse.lower.ring import FAMILY as RING
from interfuse.lower.ring import WARPS as RING_WARPS
from interfuse.lower.split_products import is_split
from interfuse.lower.target import (
    FEW,
    FLIGHT_BYTES,
    GPU,
    HELD_TILE,
    LIGHT_ROW,
    LONG_STEP,
    MOST_STAGES,
    ROWS_AT_ONCE,
    STAGED_BYTES,
    UNIT_WARPS,
    Target,
)
from interfuse.passes.few_rows import FEW as FEW_ROWS

THREAD_BYTES = 128
"""What a thread reads a step beside the sums of columns that it keeps."""

TEAM_WARPS, TEAM_EACH, MANY = 4, 64, 1 << 10
"""Warps of a program whose team takes rows in turn: the fewer, the less they wait for each other, and the more teams
do something meanwhile. Elements of a thread where each unit has one program; rows from which on the next one is fetched
ahead: it takes registers, so that there are fewer teams.
"""

WIDE_STAGES = 4
"""Steps under way where a program scans as many columns side by side as there may be."""

DOT_BYTES = 48 << 10
"""What a program of products may fetch ahead of itself."""

MANY_BYTES, MANY_FLIGHT = 160 << 10, 112 << 10
"""What the programs of a unit may fetch ahead where products have more rows than tensor cores take at least, and what
keeps it busy: rows are fetched beside the matrix.
"""

LARGE = 1 << 14
"""Results of products from which on a program has eight warps."""

ONE_WARP = 1 << 10
"""Elements of a row that one warp holds, 32 a thread."""

FULL = 8
"""Programs that a unit has beside each other where each of them may be small."""

ALIGNED = 8
"""Elements that rows begin at multiples of where they are read in vectors."""


def warps_of(family: str, axes: tuple[Axis, ...], statements: tuple[Stmt, ...]) -> int:
    """Warps of a program: what its tile asks for. Where it holds rows, or walks them in one step, twice as many for as
    long as those of all programs are on the device together, eight at most: each has less to do one thing after the
    other, four elements a thread at least where it has a unit to itself. Element-wise work has more for as long as each
    scheduler of the device has one at most.
    """
    if family == RING:
        return RING_WARPS
    warps, elements = _for_tile(family, axes, statements), power(math.prod(a.block for a in axes))
    one_step = family == "row, streamed" and wrap(axes[-1].extent).hi <= axes[-1].block
    if family not in ("row, resident", "map") and not one_step:
        return warps
    programs = _pieces(axes)
    if family == "map":
        room, least = min(8, 4 * GPU.programs // max(1, programs)), 32
    else:
        room, least = min(8, GPU.programs * UNIT_WARPS // max(1, programs)), 128
    more = 1 if family != "map" and programs <= GPU.programs else 2
    while 2 * warps <= room and elements >= 2 * warps * (least if warps < 4 else more * least):
        warps *= 2
    return warps


def _pieces(axes: tuple[Axis, ...]) -> int:
    """The programs of a launch."""
    return math.prod(-(-wrap(a.extent).hi // a.block) for a in axes if a.role is Role.GRID)


def _for_tile(family: str, axes: tuple[Axis, ...], statements: tuple[Stmt, ...]) -> int:
    """Warps for the tile of one program, between one and sixteen.

    Eight elements a thread; sixteen where they are written in bytes, where element-wise work has a larger tile, where
    sums are carried, and where warps wait for each other in reductions of what they hold, so that more programs share a
    multiprocessor and one's wait is another's work; 32 where a larger tile is of one tensor, a thread reduces what it
    holds first, a long row of narrow elements is held, rows are turned, a row of narrow elements is read one by one, or
    one that a program has to itself is written in bytes, scanned element by element or one of few, or short and reduced
    time and again; 64 where it does so for a row in one step, where a row is read and only what it reduces to is
    written, or where columns are held, 128 where narrow ones are added up by many programs, so that a thread has
    whole columns; 32 in longer steps of columns too. What a thread takes of columns that it scans is all its own.
    Where there are a few programs that only add up what they read, eight; 32 warps for rows in the longest steps.
    Beside sums of columns, which a thread keeps, eight vectors of what is read.
    """
    body = walk(statements)
    if family == "row, in teams":
        return _of_a_team(axes)
    if family == FAMILY:
        return 4 if is_split(statements) else _of_products(axes, body)
    if family == "mixed":
        return min(16, power(max(1, _step_bytes(axes, statements) // THREAD_BYTES // 32)))
    elements = power(math.prod(a.block for a in axes))
    lanes = [a for a in axes if a.block > 1]
    sums = [s for s in body if isinstance(s, Reduce) and s.op == "expsum"]
    weighed = (
        family.startswith("row")
        and bool(sums)
        and all(s.arg.dtype.bytes <= F32.bytes for s in sums)
        and not crowded(statements)
    )
    wide = [s for s in body if isinstance(s, Store) and axes[-1].symbol in symbols(s.index)]
    coded = any(s.arg.dtype.bytes == 1 for s in wide)
    scans = any(isinstance(s, Scan) for s in body)
    programs = math.prod(wrap(a.extent).hi for a in axes if a.role is Role.GRID)
    own = len(lanes) == 1 and (coded or (scans and programs <= ROWS_AT_ONCE) or _waits(axes[-1], body, elements))
    alone = family == "row, resident" and (own or _is_slow(axes[-1], body, len(lanes)))
    if not wide and programs <= FEW and not sums and family.startswith("row"):
        return min(32, max(1, elements // 256))
    if family == "row, streamed" and wide and axes[-1].block >= LONG_STEP and len(lanes) == 1:
        return 32
    if family == "column" and not wide and elements < HELD_TILE and _adds_up(body):
        each = 4096 if _pieces(axes) >= FULL * GPU.programs and _is_narrow(axes[-1], body) else 2048
    elif family.startswith("column") and scans:
        each = 32 * axes[-1].block * max(1, axes[-2].each)
    elif (
        (family == "row, resident" and (not wide or _across(axes, body)))
        or (family == "column" and wide and elements == HELD_TILE)
        or (weighed and wrap(axes[-1].extent).hi <= axes[-1].block)
    ):
        each = 2048
    elif (
        weighed
        or alone
        or _light(family, axes, elements, body)
        or (len(lanes) > 1 and (family == "row, streamed" or elements == HELD_TILE))
    ):
        each = 1024
    else:
        each = 512 if coded else _usual(family, axes, elements, body, bool(wide))
    return min(16, max(1, elements // each))


def _adds_up(body: list[Stmt]) -> bool:
    """True where all that is reduced is one value of 32 bits at most."""
    found = [s for s in body if isinstance(s, Reduce)]
    return len(found) == 1 and found[0].arg.dtype.bytes <= F32.bytes


def _usual(family: str, axes: tuple[Axis, ...], elements: int, body: list[Stmt], wide: bool) -> int:
    """Elements of a warp where nothing speaks for more; `wide` says that more is written than what is reduced to."""
    if family == "map" and elements > GPU.tile_elements:
        return 1024 if sum(isinstance(s, Load) for s in set(body)) == 1 or _turns_one(axes, body) else 512
    results = [s for s in body if isinstance(s, Reduce)]
    narrow = all(max(s.arg.dtype.bytes, s.out.dtype.bytes) <= F32.bytes for s in results)
    carried = narrow and (family == "column, streamed" or (family == "row, streamed" and not wide))
    if carried and family.startswith("column") and elements > GPU.tile_elements:
        return 1024
    return 512 if carried or axes[-1].role is Role.TILE else 256


def _across(axes: tuple[Axis, ...], body: list[Stmt]) -> bool:
    """True where rows that are held together are neighbours in something, and no more than two of all are read: each
    thread then has long pieces of both.
    """
    wide = [s for s in body if isinstance(s, (Load, Store)) and {a.name for a in axes[-2:]} <= varies_over(s)]
    steps = [(step_along(s, axes[-2].symbol), step_along(s, axes[-1].symbol)) for s in wide if axes[-2].block > 1]
    return any(row == 1 and col not in (0, 1, -1) for row, col in steps) and len({*map(_read, wide)} - {None}) <= 2


def _turns_one(axes: tuple[Axis, ...], body: list[Stmt]) -> bool:
    """True for tiles of one tensor that are turned, whatever is read beside it for rows or columns alone."""
    wide = [s for s in body if isinstance(s, (Load, Store)) and len(varies_over(s)) > 1]
    return len(axes) > 1 and _across(axes, body) and len({*map(_read, wide)} - {None}) == 1


def _read(s: Load | Store) -> tuple[str, Expr] | None:
    """What a load reads; None for a store."""
    return (s.param, s.index) if isinstance(s, Load) else None


def _is_slow(axis: Axis, body: list[Stmt], lanes: int) -> bool:
    """True where rows are scanned element by element, or where those of narrow elements that a program has to itself
    are read so.
    """
    scans = any(isinstance(s, Scan) for s in body)
    return _one_by_one(axis, body) and (scans or (lanes == 1 and _is_narrow(axis, body)))


def _waits(axis: Axis, body: list[Stmt], elements: int) -> bool:
    """True for a row of narrow elements that one warp can hold and that is reduced three times and more: warps that
    share it would wait for each other each time, and those that have nothing but what lies past its end for the rest.
    """
    return elements <= ONE_WARP and sum(isinstance(s, Reduce) for s in body) >= 3 and _is_narrow(axis, body)


def _of_products(axes: tuple[Axis, ...], body: list[Stmt]) -> int:
    """Warps of a program that multiplies: a multiplication of tensor cores has eight features at least."""
    features = next(a.block for a in axes if a.name == NAMES[1])
    results = axes[0].block * axes[1].block * sum(isinstance(s, Reduce) for s in body)
    return 8 if results >= LARGE else min(4, features // 8)


def _of_a_team(axes: tuple[Axis, ...]) -> int:
    """Warps of a program that works in a team."""
    alone = math.prod(wrap(a.extent).hi for a in axes if a.role in (Role.GRID, Role.TEAM)) <= GPU.programs
    return max(TEAM_WARPS, axes[-1].block // TEAM_EACH // 32) if alone else TEAM_WARPS


def _one_by_one(axis: Axis, body: Iterable[Stmt]) -> bool:
    """True where neighbours along an axis are not read or written together: rows of odd length, or from the end."""
    back = any(isinstance(s, (Load, Store)) and step_along(s, axis.symbol) == -1 for s in body)
    return back or wrap(axis.extent).hi % ALIGNED != 0


def _step_bytes(axes: tuple[Axis, ...], body: tuple[Stmt, ...]) -> int:
    """The most that a step of a serial axis reads; 0 where there is no such axis."""
    serial = {a.name for a in axes if a.role is Role.SERIAL and a.vector == 1}
    loops = [s for s in body if isinstance(s, Loop) and s.axis in serial]
    loads = [{s for s in walk(loop.body) if isinstance(s, Load)} for loop in loops]

    def fetched(s: Load) -> int:
        return s.out.dtype.bytes * math.prod(a.block for a in axes if a.name in varies_over(s))

    return max((max(1, sum(map(fetched, found))) for found in loads), default=0)


def _light(family: str, axes: tuple[Axis, ...], elements: int, body: list[Stmt]) -> bool:
    """True for long rows that are held and of which one, of narrow elements, is read, or two whose exponentials take
    their time, and one written.
    """
    wide = {s for s in body if isinstance(s, (Load, Store)) and axes[-1].symbol in symbols(s.index)}
    rows = {s for s in wide if isinstance(s, Load) and len(varies_over(s)) > 1}
    slow = any(isinstance(s, Let) and s.op == "exp" for s in body)
    few = len(rows) <= (2 if slow else 1) and sum(isinstance(s, Store) for s in wide) <= 1
    return family == "row, resident" and elements >= LIGHT_ROW and _is_narrow(axes[-1], body) and few


def _is_narrow(axis: Axis, body: Iterable[Stmt]) -> bool:
    """True where all that is read and written along an axis has two bytes an element."""
    wide = {s for s in body if isinstance(s, (Load, Store)) and axis.symbol in symbols(s.index)}
    return all((s.out if isinstance(s, Load) else s.arg).dtype.bytes == 2 for s in wide)


def order_of(family: str, axes: tuple[Axis, ...], target: Target, warps: int) -> str:
    """The key under which the bits of the reductions repeat: on a GPU whatever decides which thread adds what."""
    if target.backend == "triton":
        team = "".join(f"/{a.extent} together" for a in axes if a.role is Role.TEAM)
        vectors = f"/vectors of {axes[-1].vector}" if axes[-1].vector > 1 else ""
        return f"{family}/triton/{'x'.join(str(a.block) for a in axes)}/{warps}{team}{vectors}"
    return f"{family}/{target.backend}/{target.lanes}/{axes[-1].block}"


def stages_of(family: str, axes: tuple[Axis, ...], body: tuple[Stmt, ...], target: Target) -> int:
    """Steps of the serial axis under way at once: what waits for its turn takes `STAGED_BYTES` at most, or `DOT_BYTES`
    where tensor cores multiply it, whose programs need few registers. Where a unit
    has few programs that walk columns, each has as many under way as they need together.
    """
    if family == RING:
        return 1
    if family == "row, in teams":
        return 2 if wrap(axes[0].extent).hi >= MANY else 1
    loops = [s for s in body if isinstance(s, Loop)]
    sums = any(isinstance(s, Reduce) and s.op == "expsum" for s in walk(body))
    long = axes[-1].block >= LONG_STEP
    again = family == "row, streamed" and len(loops) > 1 and (sums or long)
    step = _step_bytes(axes, body)
    if step == 0 or again:  # what is read again is in a cache, and threads have enough of their own to wait for
        return 1
    if family == "mixed":
        return max(1, min(target.stages, 1 + -(-4 * STEP_BYTES // step)))
    pieces = {a: -(-wrap(a.extent).hi // a.block) for a in axes}
    beside = -(-math.prod(n for a, n in pieces.items() if a.role is Role.GRID) // target.programs)
    steps = max(n for a, n in pieces.items() if a.role is Role.SERIAL and a.vector == 1)
    wanted = min(1 + -(-FLIGHT_BYTES // (beside * step)), MOST_STAGES, steps)
    if any(isinstance(s, Scan) for s in walk(body)):  # which has registers for no more
        wanted = WIDE_STAGES if axes[-2].block == WIDEST_SCAN else 1
    if family == FAMILY and is_split(body):  # a unit has several programs, and they take their time for each step
        return min(max(target.stages, 1 + STAGED_BYTES // step), MOST_STAGES, steps)
    room = DOT_BYTES if family == FAMILY else STAGED_BYTES
    if family == FAMILY and next(a.block for a in axes if a.name == NAMES[0]) > FEW_ROWS:
        beside = min(beside, 2)
        room, wanted = MANY_BYTES // beside, min(1 + -(-MANY_FLIGHT // (beside * step)), MOST_STAGES, steps)
    if family == "column, streamed" and beside <= 1 and step <= STEP_BYTES // 2:  # nobody else needs it
        room = FLIGHT_BYTES
    return max(1, min(max(target.stages, wanted), 1 + room // step))
