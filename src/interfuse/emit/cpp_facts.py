"""What the C++ emitter asks about a kernel before it writes. In: kernels, operators. Out: answers, or reasons why not.

UnsupportedError says why a kernel has no C++ form; the region then runs through the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import ALL, F32, DType, compute_type
from interfuse.ir.index import Dim, Expr, coefficient, symbols, unwrap, wrap
from interfuse.ir.ops import TABLE
from interfuse.lower.kernel import (
    Axis,
    Kernel,
    Let,
    Load,
    Loop,
    Param,
    Reduce,
    Role,
    Scan,
    Stmt,
    Store,
    walk,
)

SCRATCH_BYTES = 1 << 20
"""The largest scratch of one program: it lies on the thread's stack."""

LINE_BYTES = 64
"""What memory is read in."""

FETCH_FROM = 8 << 20
"""Bytes of all buffers from which on rows are fetched ahead: what is smaller lies in caches already."""

FETCH_WORK = 20
"""Operations an element from which on a kernel that goes over its rows once, writing as it reads, asks far ahead."""

FAR_BYTES = 12 << 10
"""How far where it only reads: three pages, and a quarter of a first-level cache."""

STEPS_BYTES = (16 << 10, 2 << 10)
"""How far where rows are written, too: into the second-level cache, and from there into the first. What comes from
memory into the first one at once holds one of its few places for requests meanwhile, and other reads wait for those.
"""

_FLOAT_ONLY = frozenset(
    """sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
sigmoid erf normal_cdf floor ceil trunc rint pow atan2 isinf""".split()
)
_MAY_TRAP = frozenset(("div", "floordiv", "remainder", "fmod"))


def lane_axis_of(kernel: Kernel) -> Axis | None:
    """The axis that vectors run along: the one walked in a block of several indices."""
    blocked = [a for a in kernel.axes if a.block > 1 and a.role is not Role.TILE]
    if len(blocked) > 1:
        raise UnsupportedError(f"C++ kernels have one lane axis, not {', '.join(a.name for a in blocked)}.")
    return blocked[0] if blocked else None


def lane_count(kernel: Kernel, lane_axis: Axis | None, register_bytes: int) -> int:
    """Elements a vector: what one register holds of the widest element, and no more than the axis's block."""
    if lane_axis is None:
        return register_bytes // 4
    made = [s.out for s in walk(kernel.body) if isinstance(s, (Load, Let, Reduce, Scan))]
    widest = max((compute_type(v.dtype).bytes for v in made if lane_axis.name in v.axes), default=4)
    return min(lane_axis.block, register_bytes // max(widest, 4))


def vectors_beside(kernel: Kernel, lane_axis: Axis | None, lanes: int) -> int:
    """How many vectors of a GRID axis a program walks side by side: several where it loops as well."""
    if lane_axis is None or lane_axis.role is not Role.GRID or not any(isinstance(s, Loop) for s in kernel.body):
        return 1
    return max(1, lane_axis.block // lanes)


def vectors_a_line(kernel: Kernel, lane_axis: Axis | None, lanes: int) -> int:
    """How many neighbouring vectors share a cache line of the narrowest parameter that is walked: 1, 2 or 4."""
    if lane_axis is None:
        return 1
    along = {
        s.param
        for s in walk(kernel.body)
        if isinstance(s, (Load, Store)) and any(name.name == lane_axis.name for name in symbols(s.index))
    }
    narrowest = min((kernel.param(name).dtype.bytes for name in along), default=4)
    return max(1, min(4, LINE_BYTES // (lanes * narrowest)))


def buffer_bytes(kernel: Kernel) -> float:
    """Bytes of the parameters that are not scratch; infinite where a size changes from call to call."""
    total = 0.0
    for p in kernel.params:
        if p.mode != "scratch":
            sizes = [d if isinstance(d, int) else math.inf for d in p.shape]
            total += p.dtype.bytes * math.prod(sizes)
    return total


@dataclass(frozen=True)
class Fetch:
    """Loads to ask for ahead, in the loop `phase` (None: in a program of one vector): what they will read in the
    next program, or where `near`, so many bytes further on; where `far`, before that and so far, into the second-level
    cache.
    """

    phase: Loop | None
    loads: tuple[Load, ...]
    far: int = 0
    near: int = 0


def fetched_ahead(kernel: Kernel, lane_axis: Axis | None, streams: bool) -> Fetch | None:
    """What to fetch ahead; None where there is little to read, or no time to gain.

    A kernel that goes over its rows several times reads memory in the first phase and computes in the others; without
    a request ahead memory is idle meanwhile. One that goes over them once waits for memory at each vector as soon as
    what it computes fills the processor's window: it asks far ahead where it writes no element, or where it scans or
    computes much of elements so wide that memory keeps it waiting.
    """
    phases = [s for s in kernel.body if isinstance(s, Loop) and lane_axis is not None and s.axis == lane_axis.name]
    grid = [a for a in kernel.axes if a.role is Role.GRID]
    if not grid or lane_axis is None or buffer_bytes(kernel) < FETCH_FROM:
        return None
    if not phases and any(isinstance(s, Loop) for s in kernel.body):
        return None
    once = phases[0].body if phases else kernel.body
    found = [s for s in once if isinstance(s, Load) and kernel.param(s.param).mode == "in" and not s.picks]
    loads = tuple({(s.param, s.index): s for s in reversed(found) if follows(s, grid[-1], lane_axis, False)}.values())
    if len(phases) > 1:
        return Fetch(phases[1], loads[::-1])
    loads = tuple(s for s in loads[::-1] if follows(s, grid[-1], lane_axis, True))
    writes = any(isinstance(s, Store) and lane_axis.symbol in symbols(s.index) for s in once)
    wide = all(kernel.param(s.param).dtype.bytes >= 4 for s in loads)
    much = takes_much(kernel, once, FETCH_WORK) or any(isinstance(s, Scan) for s in once)
    pays = streams and wide and much if writes else bool(phases)
    if not loads or not pays:
        return None
    far, near = STEPS_BYTES if writes else (0, FAR_BYTES)
    return Fetch(phases[0] if phases else None, loads, far, near)


def takes_much(kernel: Kernel, body: Sequence[Stmt], much: int) -> bool:
    """True where a loop takes at least so many operations an element."""
    work = work_of(kernel, body)
    return isinstance(work, int) and work >= much


def follows(s: Load, grid: Axis, lane: Axis, dense: bool) -> bool:
    """True where a load walks along the lanes in memory, another row in each program; `dense`: each behind the last."""
    if coefficient(s.index, lane.symbol) != 1 or grid.symbol not in symbols(s.index):
        return False
    return not dense or grid is lane or coefficient(s.index, grid.symbol) == lane.extent


def work_of(kernel: Kernel, body: Sequence[Stmt]) -> Dim:
    """Operations of one program: one an access, the table's cost an operator."""
    total: Dim = 0
    for s in body:
        if isinstance(s, Loop):
            total = total + wrap(work_of(kernel, s.body)) * kernel.steps(kernel.axis(s.axis))
        elif isinstance(s, Let):
            total = total + (TABLE[s.op].cost if s.op in TABLE else 1)
        else:
            total = total + 1
    return unwrap(total)


def scratch_elements(p: Param) -> int:
    """How many elements the scratch of one program holds."""
    elements = 1
    for d in p.shape:
        if not isinstance(d, int):
            raise UnsupportedError(f"scratch {p.name} needs a fixed size in a C++ kernel.")
        elements *= d
    if elements * p.dtype.bytes > SCRATCH_BYTES:
        raise UnsupportedError(f"scratch {p.name} takes {elements * p.dtype.bytes} bytes, more than {SCRATCH_BYTES}.")
    return elements


def operator_text(op: str, dtype: DType, divisor: object = None) -> str:
    """The C++ text of an element-wise operator with {0}, {1}, ... for operands of `dtype`; `divisor` is the second
    one's number where it is known.
    """
    if op in ("shl", "shr"):
        return f"shift_{'left' if op == 'shl' else 'right'}({{0}}, {{1}})"
    if op in _FLOAT_ONLY and not dtype.is_float:
        raise UnsupportedError(f"C++ kernels have no {op} of {dtype}.")
    if op in _MAY_TRAP and not dtype.is_float:
        if divisor in (None, 0, -1):
            raise UnsupportedError(f"{op} of {dtype} could divide by zero, which PyTorch reports; the library runs it.")
        return "{0} / {1}" if op == "div" else f"{op}_whole({{0}}, {{1}})"
    row = TABLE[op]
    if row.cpp.startswith("none"):
        raise UnsupportedError(f"{op} has no C++ text ({row.cpp}).")
    return row.cpp


def check_divisions(e: Expr) -> None:
    """Refuse an index that may divide a negative number.

    C++ divides towards zero, the index grammar rounds down: equal only where nothing is negative.
    """
    if e.op in ("floordiv", "mod") and e.args[0].lo < 0:
        raise UnsupportedError(f"the index {e} may divide a negative number.")
    for a in e.args:
        check_divisions(a)


def rounded_by_store(kernel: Kernel) -> frozenset[str]:
    """Values that only round a float to the narrow type of every buffer that they go to: the store rounds anyhow."""
    narrow = {}
    for s in walk(kernel.body):
        if isinstance(s, Let) and s.op in ("round", "cast") and s.args[0].dtype is F32:
            target = ALL[dict(s.attrs)["to"]] if s.op == "round" else s.out.dtype
            if target.is_narrow:
                narrow[s.out.name] = target
    for s in walk(kernel.body):
        used = s.args if isinstance(s, Let) else (s.arg,) if isinstance(s, (Reduce, Scan)) else ()
        if isinstance(s, Store) and kernel.param(s.param).dtype is not narrow.get(s.arg.name):
            used = (s.arg,)
        for v in used:
            narrow.pop(v.name, None)
    return frozenset(narrow)
