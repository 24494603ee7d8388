"""Schedule families. In: a region and a device profile. Out: its Kernel, with axis roles and sizes chosen.

A family only chooses roles and sizes; the tracing and the loop tree are one for all. Sizes may change between calls:
the kernel takes their symbols and serves every value. A length that may pass what fits on chip is streamed.

    map             no reduction. One flat axis where every access has one stride along it, else rows x columns.
    row, resident   reductions and scans over trailing axes, the row held on chip: in registers of a program on a GPU,
                    in cache lines and a scratch row on a CPU. Short rows share a program on a GPU.
    row, streamed   the same for rows that do not fit on chip: every phase loads and computes again.
    row, in teams   the same for rows that one program cannot hold: a team of programs does, and meets on the way.
    row, in a ring  rows that are reduced and written across: chunks of them wait in a ring in shared memory.
    mixed           reductions over all rows beside reductions along rows or what every element gives: a program takes
                    some of the rows one by one and adds up its columns on the way; a second kernel joins these sums.
    product         products of a few rows with matrices: a GPU's tensor cores multiply steps of both.
    column          the same over leading or middle axes: neighbouring columns in the lanes of a program, the rows
                    walked step by step, or on a GPU held at once where they are few.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import F32, OPAQUE, compute_type
from interfuse.ir.index import INF, Dim, at_sizes, coefficient, const, product, symbols, wrap
from interfuse.ir.index import contiguous_strides as dense
from interfuse.ir.layout import Layout, laid_over
from interfuse.ir.node import Node
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower import ring
from interfuse.lower.accesses import accesses, adds_up, bounds, size_symbols
from interfuse.lower.axes import (
    Rows,
    column_axes,
    fills,
    long_steps,
    map_axes,
    mixed_axes,
    over_rows,
    power,
    row_axes,
    step_axes,
    stepped,
    total_axes,
    turned_axes,
    turned_map_axes,
)
from interfuse.lower.domain import Digits, Domain, bytes_read, check_operators, core_of, find, find_both, inside
from interfuse.lower.factors import largest_first
from interfuse.lower.joins import check_parts
from interfuse.lower.kernel import (
    Axis,
    Kernel,
    Loop,
    Param,
    Role,
    Stmt,
    step_along,
    varies_over,
)
from interfuse.lower.launch import order_of, stages_of, warps_of
from interfuse.lower.nested import find_blocks, in_blocks
from interfuse.lower.order import in_memory_order, map_domains, memory_digits, places, position
from interfuse.lower.products import FAMILY, multiplied
from interfuse.lower.schedule import HELD, Schedule
from interfuse.lower.statistics import expand_statistics, join_statistics
from interfuse.lower.target import PARTED, ROWS_AT_ONCE, SHORT, SOON, Target
from interfuse.lower.together import TeamTracer, shares_of, team_axes
from interfuse.lower.trace import Tracer
from interfuse.lower.traced import Trace
from interfuse.lower.tree import statements, within_rows
from interfuse.lower.turned import across, is_across, shared
from interfuse.lower.vectors import held_in_vectors, in_vectors, map_in_vectors
from interfuse.lower.work import Work


def lower(
    name: str, work: Work, target: Target, doc: tuple[str, ...] = (), schedule: Schedule | None = None
) -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel for `work`, and the input nodes behind its "in" parameters in order.

    What `schedule` says is done so, the rest as the family chooses. UnsupportedError says why one kernel cannot do it:
    an operator without text, a shape without a family, a schedule that the family cannot have. Outputs come after
    inputs in the parameters, in the order of `work.outputs`.
    """
    schedule = schedule or Schedule()
    if any(n.dtype in OPAQUE for n in (*work.outputs, *work.inputs)):
        raise UnsupportedError("complex numbers: library only")
    work = replace(work, roots=work.roots or work.outputs)
    nodes = inside(work.roots, work.inputs)
    check_operators(nodes, target.backend)
    check_parts(nodes)
    make = _mixed if work.parts else _in_teams if work.met else _in_a_ring if work.ring else _plain
    made = make(work, target, schedule)
    params, reads = _params(made.trace, work)
    if target.backend == "triton" and made.family == "row, streamed":
        made = replace(made, axes=(*made.axes[:-1], in_vectors(made.axes[-1], made.body)))
    if target.backend == "triton" and made.family == "row, resident" and all(a.block == 1 for a in made.axes[:-1]):
        made = replace(made, axes=(*made.axes[:-1], held_in_vectors(made.axes[-1], made.body)))
    if target.backend == "triton" and made.family == "map" and len(made.axes) == 1:
        made = replace(made, axes=(map_in_vectors(made.axes[0], made.body),))
    axes = (*work.joined, *made.axes)
    warps, stages, what = 1, 1, (made.family, made.axes, made.body)
    if target.backend == "triton":
        warps, stages = schedule.warps or warps_of(*what), schedule.stages or stages_of(*what, target)
    order = order_of(made.family, made.axes, target, warps) if made.family != "map" else ""
    sizes = size_symbols(made.trace, axes)
    params = (*params, *made.scratch)
    kernel = Kernel(name, params, axes, made.body, doc, sizes, made.family, warps, order, stages=stages, ring=made.ring)
    return (replace(kernel, beyond=_beyond(kernel, reads, work, target)) if kernel.tiles else kernel), reads


def _beyond(kernel: Kernel, reads: tuple[Node, ...], work: Work, target: Target) -> Kernel:
    """The kernel for lengths that `kernel` does not hold, with its parameters."""
    other, others = lower(kernel.name, replace(work, sizes={}), target, kernel.doc)
    if set(others) != set(reads) or not set(other.symbols) <= set(kernel.symbols):
        raise UnsupportedError("a length that changes is held and streamed from other buffers")
    of = dict(zip((*others, *work.outputs), other.params, strict=True))
    return replace(other, params=tuple(of[n] for n in (*reads, *work.outputs)))


@dataclass(frozen=True)
class _Made:
    """What a family made of a region: axes, trace, statements, and the scratch rows that these need."""

    family: str
    axes: tuple[Axis, ...]
    trace: Trace
    body: tuple[Stmt, ...]
    scratch: tuple[Param, ...]
    ring: int = 0


def _plain(work: Work, target: Target, schedule: Schedule) -> _Made:
    """A region with reductions along one axis, along rows and blocks of them, or without any."""
    if target.backend == "triton":
        work = replace(work, roots=largest_first(work.roots, work.leaves))
    nodes = inside(work.roots, work.leaves)
    if (blocks := find_blocks(nodes, {r.size for r in work.roots}, target)) is not None:
        roots = expand_statistics(work.roots, work.leaves)
        made = in_blocks(blocks, target, schedule, lambda d, rows: _trace(roots, work, d, target, rows))
        return _Made("row, resident", *made)
    over = functools.partial(_trace, work.roots, work, target=target)
    if (few := multiplied(work, target, schedule, over)) is not None:
        return _Made(FAMILY, *few)
    domain = walked(work, target)
    if domain.reduces:
        return _reducing(work, _as_example(domain, work.sizes, target), target, schedule)
    domain, trace = _map_domain(work, target)
    turned = target.backend == "triton" and is_across(trace, domain)
    # The more a program does, the less joining parts for itself weighs; and what a GPU holds at once comes in one go.
    large = work.ahead or (len(trace.reads) == 1 and fills(domain, target))
    axes = (
        turned_map_axes(domain, target, bool(work.cached))
        if turned
        else map_axes(domain, target, bool(large), work.sizes)
    )
    axes = schedule.placed(axes, target.backend, target.lanes)
    return _Made("map", axes, trace, *statements(trace, axes[-1]))


def walked(work: Work, target: Target) -> Domain:
    """The domain of a region in the order in which its kernel walks it: that of memory where all accesses agree."""
    domain = find(work.roots, work.leaves)
    nodes = inside(work.roots, work.leaves)
    buffers = [n for n in (*work.inputs, *work.outputs) if wrap(n.size).hi > wrap(domain.kept).hi]
    odd = any(work.layouts[n].strides != dense(n.shape) for n in buffers) or any(n.op == "permute" for n in nodes)
    if not domain.reduces or not odd:
        return domain
    axes = dict(zip(("row", "col", "inner"), places(domain), strict=False))
    every = {s.name for s in axes.values() if s.op == "sym"}
    wide = [a for a in accesses(_trace(work.roots, work, domain, target)) if varies_over(a) == every]
    return in_memory_order(domain, [a.index for a in wide], axes)


def _as_example(domain: Domain, sizes: Mapping[str, int], target: Target) -> Domain:
    """The domain with lengths that a GPU program may hold, where they change and the example's is such a one."""
    cols = domain.cols
    if isinstance(cols, int) or target.backend == "cpp" or any(s.name not in sizes for s in symbols(cols)):
        return domain
    most = max(power(at_sizes(cols, sizes)), SHORT)
    return replace(domain, most=most) if most <= target.row_elements else domain


def _mixed(work: Work, target: Target, schedule: Schedule) -> _Made:
    """A region with reductions along rows and, in parts, along columns: a row after the other, as of row, resident."""
    both = find_both(inside(work.roots, work.inputs))
    if both is None:
        raise UnsupportedError("reductions of more than rows and columns")
    if schedule.streamed:
        raise UnsupportedError(f"the schedule {schedule}: rows whose columns are added up are held on chip")
    whole = both.domain.reduces or target.backend == "cpp"
    if whole and both.domain.longest > target.widest:
        cols = both.domain.longest
        raise UnsupportedError(f"sums of {cols} columns beside reductions of rows: a program holds {target.widest}")
    if target.backend == "cpp":
        roots = join_statistics(work.roots, work.inputs, exponentials=False)
    else:
        roots = expand_statistics(work.roots, work.inputs)
    axes = mixed_axes(both.domain, work.parts, bytes_read(work.inputs, both.domain), target)
    axes = schedule.placed(axes, target.backend, target.lanes)
    trace = _trace(roots, work, both.domain, target)
    body, scratch = within_rows(trace, axes[1], axes[2])
    if _bytes(scratch) > target.scratch_bytes:
        body, scratch = within_rows(trace, axes[1], axes[2], keep=False)
    return _Made("mixed", axes, trace, body, scratch)


def _in_teams(work: Work, target: Target, schedule: Schedule) -> _Made:
    """Rows that a team of programs shares: each holds its share, as in row, resident."""
    if schedule.streamed:
        raise UnsupportedError(f"the schedule {schedule}: what a team shares is held on chip")
    domain, rows = shares_of(work)
    axes = schedule.placed(team_axes(domain, rows), target.backend, target.lanes)
    trace = _trace(work.roots, work, domain, target, rows)
    return _Made("row, in teams", axes, trace, *statements(trace, axes[-1]))


def _in_a_ring(work: Work, target: Target, schedule: Schedule) -> _Made:
    """Rows that go by way of a ring in shared memory, from which all walks read them."""
    domain = replace(walked(work, target), most=INF)
    trace = _trace(join_statistics(work.roots, work.leaves), work, domain, target)
    axes, body, chunks = ring.in_a_ring(trace, domain, target, schedule)
    return _Made(ring.FAMILY, axes, trace, body, (), chunks)


def _reducing(work: Work, domain: Domain, target: Target, schedule: Schedule) -> _Made:
    """A region with reductions or scans: held on chip where that is possible, else read step by step in each pass.

    What registers or the first cache lines hold is read again for nothing, so that statistics are spelled in several
    passes there; elsewhere moments are spelled in one, and so are sums of exponentials where the domain is streamed.
    What is spelled for one pass already is streamed.
    """
    nodes = inside(work.roots, work.leaves)
    if domain.apart and target.backend == "cpp" and wrap(domain.kept * domain.cols).hi >= PARTED:
        raise UnsupportedError("reduces dimensions apart, element by element: in parts or not at all")
    once = any(n.op == "expsum" for n in nodes)
    target = _asked(target, domain, True if once else schedule.streamed)
    family = "row" if domain.inner == 1 else "column"
    gpu_rows = family == "row" and target.backend == "triton"
    every = replace(domain, most=INF)
    first = _trace(work.roots, work, every, target) if gpu_rows else None
    rows = None if first is None else across(first, domain)
    turned = first is not None and not schedule.blocks and (rows is not None or is_across(first, domain))
    if first is not None and rows is None and not turned:
        rows = shared(first, domain)
    if turned:
        axes = turned_axes(domain, target, rows)
    elif first is not None and schedule.streamed is None and adds_up(first, nodes, domain, target):
        axes = total_axes(domain, target)
    elif family == "row":
        axes = row_axes(domain, target)
    else:
        scanned = sum(compute_type(n.dtype).bytes for n in nodes if n.op in SCANS)
        reduces = [n for n in nodes if n.op in REDUCES]
        narrow = all(product(r.shape) == domain.kept for r in work.roots)
        carried = len(reduces) if narrow and all(n.dtype.bytes <= F32.bytes for n in reduces) else None
        axes = column_axes(domain, target, scanned, carried, narrow)
    axes = schedule.placed(over_rows(axes, rows), target.backend, target.lanes)
    if gpu_rows and not turned and schedule.streamed is None:
        made = _weighed(work, domain, target, schedule, rows)
        if made is not None:
            return made
    if not once and _held(domain, axes, target):
        short = domain.inner == 1 and domain.longest <= target.short_row
        if target.backend == "cpp" and not short:  # a second pass over such a row costs as much as the first
            spelled = join_statistics(work.roots, work.leaves, exponentials=False)
        else:
            spelled = expand_statistics(work.roots, work.leaves)
        trace = _trace(spelled, work, domain, target, rows)
        most = wrap(domain.rows).hi if gpu_rows and domain.longest <= SOON else INF
        body, scratch = statements(trace, axes[-1], soon=most <= target.programs, few=most <= ROWS_AT_ONCE)
        if not scratch or (domain.inner == 1 and _bytes(scratch) <= target.scratch_bytes):
            return _Made("row, resident" if family == "row" else family, axes, trace, body, scratch)
    if schedule.streamed is False:
        raise UnsupportedError(f"the schedule {schedule} holds what does not fit on chip")
    if gpu_rows and not turned and not schedule.blocks:
        axes = long_steps(axes, nodes, bytes_read(work.inputs, domain), target)
    trace = _trace(join_statistics(work.roots, work.leaves), work, every, target, rows)
    return _Made(f"{family}, streamed", axes, trace, *statements(trace, axes[-1], keep=False))


def _weighed(work: Work, domain: Domain, target: Target, schedule: Schedule, rows: Rows | None) -> _Made | None:
    """A GPU kernel that reads its rows once, for the sum of exponentials of each and what lies at places of them: each
    thread takes many elements a step. None where that is not all that the region asks for.
    """
    roots = join_statistics(work.roots, work.leaves)
    sums = [n for n in inside(roots, work.leaves) if n.op == "expsum"]
    if not sums or any(n.dtype.bytes > F32.bytes for n in sums):
        return None
    trace = _trace(roots, work, replace(domain, most=INF), target, rows)
    row, col = step_axes(domain, target)
    body, _ = statements(trace, col, keep=False, late=domain.longest > col.block)
    once = sum(isinstance(s, Loop) for s in body) == 1
    if not once and domain.longest <= target.row_elements:
        return None
    axes = over_rows((row, stepped(col, body, once)), rows)
    return _Made("row, streamed", schedule.placed(axes, target.backend, target.lanes), trace, body, ())


def is_turned(work: Work, target: Target) -> bool:
    """True for rows that are reduced and lie across in what is read or written, one of them beside the other."""
    domain = walked(work, target)
    if domain.inner != 1 or not domain.reduces:
        return False
    trace = _trace(work.roots, work, replace(domain, most=INF), target)
    return across(trace, domain) is None and is_across(trace, domain)


def _asked(target: Target, domain: Domain, streamed: bool | None) -> Target:
    """The target with as much room on chip as a schedule asks for: none to stream a domain, all to hold it."""
    if streamed is None:
        return target
    if streamed:
        return replace(target, row_elements=0)
    elements = max(target.tile_elements, power(domain.longest) * target.lanes if domain.inner != 1 else 0)
    return replace(target, row_elements=HELD, tile_elements=min(elements, HELD), scratch_bytes=8 * HELD)


def _held(domain: Domain, axes: tuple[Axis, ...], target: Target) -> bool:
    """True where a program's part of the domain stays on chip from one pass to the next."""
    if axes[-1].role is Role.TILE:
        return True
    beside, fixed = axes[-2].block if domain.inner != 1 else 1, isinstance(domain.cols, int)
    return target.backend == "cpp" and fixed and domain.longest * beside <= target.row_elements


def _trace(roots: tuple[Node, ...], work: Work, domain: Domain, target: Target, rows: Rows | None = None) -> Trace:
    """`roots` traced over the domain, each stored where the output in its place goes; `rows` where several axes make
    up the index of a row.
    """
    mine = {r: work.layouts[o] for r, o in zip(roots, work.outputs, strict=True)}
    for root, start in zip(roots, work.starts, strict=False):
        mine[root] = Layout(mine[root].strides, mine[root].offset + start)
    layouts = laid_over(mine, work.layouts)
    # A mask a part costs a GPU more than an index that is worked out; a CPU has a loop for each part.
    indices = places(domain)
    indices[0] = indices[0] if rows is None else rows.index
    part = next((a.symbol for a in work.joined), const(0))
    by_index = target.backend == "triton"
    new = functools.partial(TeamTracer, met=work.met) if work.met else Tracer
    tracer = new(work.inputs, layouts, domain, *indices, by_index=by_index, ahead=work.ahead, part=part)
    for k, (root, output) in enumerate(zip(roots, work.outputs, strict=True)):
        if root.shape == output.shape or work.starts:
            tracer.output(root, _out_name(k, len(roots)))
        else:
            tracer.partial(root, _out_name(k, len(roots)), position("chunk", work.parts))
    return tracer.finished()


def _out_name(k: int, count: int) -> str:
    return "out" if count == 1 else f"out{k}"


def _map_domain(work: Work, target: Target) -> tuple[Domain, Trace]:
    """The split with the most columns along which every access has one stride, else the one where all that lack it are
    looked up element by element; at worst the last dimension alone.

    On a CPU each part of a joined value must be one piece of the columns as well, for a loop of its own.
    """
    core, _ = core_of(work.roots[0], work.leaves)
    shape = tuple(d for d in core.shape if d != 1) or (1,)
    found: tuple[Domain, Trace] | None = None
    for domain in map_domains(shape, _map_digits(work, product(shape), target)):
        trace, col = _trace(work.roots, work, domain, target), position("col", domain.cols)
        reached = accesses(trace)
        pieces = target.backend != "cpp" or all(b.expr is col or col not in symbols(b.expr) for b in bounds(trace))
        if pieces and all(step_along(a, col) is not None for a in reached):
            return domain, trace
        if found is None and pieces and all(coefficient(a.index, col) is not None for a in reached):
            found = domain, trace
    return found or (domain, trace)


def _map_digits(work: Work, size: Dim, target: Target) -> Digits:
    """What element-wise work is made of in the order of memory; none where that is the order of its dimensions."""
    buffers = [n for n in (*work.inputs, *work.outputs) if n.size == size]
    if work.starts or all(work.layouts[n].strides == dense(n.shape) for n in buffers):
        return ()
    flat = Domain(1, size, False)
    trace, col = _trace(work.roots, work, flat, target), position("col", size)
    wide = [a.index for a in accesses(trace) if varies_over(a) == {col.name}]
    return () if bounds(trace) else memory_digits(flat, wide, {"col": col})


def _bytes(scratch: tuple[Param, ...]) -> int:
    """What the scratch rows of one program take."""
    return sum(p.dtype.bytes * wrap(product(p.shape)).hi for p in scratch)


def _params(trace: Trace, work: Work) -> tuple[tuple[Param, ...], tuple[Node, ...]]:
    """The parameters that are not scratch, inputs first, and the nodes behind the inputs."""
    reads, layouts = tuple(trace.reads), work.layouts
    params = [Param(trace.reads[n], n.dtype, n.shape, layouts[n].strides) for n in reads]
    for k, o in enumerate(work.outputs):
        shape = work.roots[k].shape if work.starts else o.shape
        params.append(Param(_out_name(k, len(work.outputs)), o.dtype, shape, layouts[o].strides, "out"))
    return tuple(params), reads
