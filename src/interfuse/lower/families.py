"""Schedule families. In: a region and a device profile. Out: its Kernel, with axis roles and sizes chosen.

A family only chooses roles and sizes; the tracing and the loop tree are one for all.

    map             no reduction. One flat axis where every access has one stride along it, else rows x columns.
    row, resident   reductions and scans over trailing axes, the row held on chip: in registers of a program on a GPU,
                    in cache lines and a scratch row on a CPU. Short rows share a program on a GPU.
    row, streamed   the same for rows that do not fit on chip: every phase loads and computes again.
    column          the same over leading or middle axes: neighbouring columns in the lanes of a program, the rows
                    walked step by step, or on a GPU held at once where they are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.ir.dtypes import OPAQUE
from interfuse.ir.index import coefficient, sym
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node
from interfuse.lower.domain import Domain, check_operators, core_of, find, inside, static
from interfuse.lower.kernel import Axis, Kernel, Load, Param, Role
from interfuse.lower.statistics import expand_statistics
from interfuse.lower.trace import Trace, Tracer
from interfuse.lower.tree import statements


@dataclass(frozen=True)
class Target:
    """What a schedule must know of the backend: "cpp" or "triton", vector lanes, and how much of a row fits on chip.

    `row_elements` is the widest row that a program may hold, `scratch_bytes` the most a CPU row may keep beside it:
    beyond either a row is streamed.
    """

    backend: str = "cpp"
    lanes: int = 16
    row_elements: int = 1 << 16
    scratch_bytes: int = 1 << 18
    tile_elements: int = 1024


CPU = Target()
GPU = Target("triton", 32, 1 << 14, 0, 2048)


@dataclass(frozen=True)
class Work:
    """What a kernel is asked for: `outputs` to store, `roots` that compute them (one each, of the same type and shape;
    the outputs themselves where empty), `inputs` that are in buffers, and the layouts of outputs and inputs there."""

    outputs: tuple[Node, ...]
    inputs: frozenset[Node]
    layouts: Mapping[Node, Layout]
    roots: tuple[Node, ...] = ()


def lower(name: str, work: Work, target: Target, doc: tuple[str, ...] = ()) -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel for `work`, and the input nodes behind its "in" parameters in order.

    UnsupportedError says why one kernel cannot do it: an operator without text, a shape without a family. Outputs come
    after inputs in the parameters, in the order of `work.outputs`.
    """
    if any(n.dtype in OPAQUE for n in (*work.outputs, *work.inputs)):
        raise UnsupportedError("complex numbers: library only")
    roots = expand_statistics(work.roots or work.outputs, work.inputs)
    nodes = inside(roots, work.inputs)
    check_operators(nodes, target.backend)
    layouts = {**work.layouts, **{r: work.layouts[o] for r, o in zip(roots, work.outputs, strict=True)}}
    domain = find(roots, work.inputs)
    if domain.reduces:
        axes = (_row_axes if domain.inner == 1 else _column_axes)(domain, target)
        trace = _trace(roots, work.inputs, layouts, domain)
    else:
        domain, trace = _map_domain(roots, work.inputs, layouts)
        axes = _map_axes(domain, target)
    body, scratch = statements(trace, axes[-1])
    family = "map" if not domain.reduces else "row, resident" if domain.inner == 1 else "column"
    if domain.reduces and ((scratch and domain.inner > 1) or not _fits(domain, scratch, target)):
        body, scratch = statements(trace, axes[-1], keep=False)
        family = family.replace("resident", "streamed")
    params, reads = _params(trace, roots, work, layouts)
    warps = _warps(axes) if target.backend == "triton" else 1
    order = f"{family}/{target.backend}/{target.lanes}/{axes[-1].block}" if domain.reduces else ""
    return Kernel(name, (*params, *scratch), axes, body, doc, (), family, warps, order), reads


def _trace(roots: tuple[Node, ...], inputs: frozenset[Node], layouts: Mapping[Node, Layout], domain: Domain) -> Trace:
    row, col = sym("row", 0, domain.rows - 1), sym("col", 0, domain.cols - 1)
    tracer = Tracer(inputs, layouts, domain, row, col)
    if domain.inner > 1:
        row, col = sym("outer", 0, domain.rows - 1), sym("row", 0, domain.cols - 1)
        tracer = Tracer(inputs, layouts, domain, row, col, sym("col", 0, domain.inner - 1))
    for k, root in enumerate(roots):
        tracer.output(root, _out_name(k, len(roots)))
    return tracer.trace


def _out_name(k: int, count: int) -> str:
    return "out" if count == 1 else f"out{k}"


def _map_domain(
    roots: tuple[Node, ...], inputs: frozenset[Node], layouts: Mapping[Node, Layout]
) -> tuple[Domain, Trace]:
    """The split with the most columns along which every access has one stride; at worst the last dimension alone."""
    core, _ = core_of(roots[0], inputs)
    shape = tuple(d for d in static(core.shape) if d != 1) or (1,)
    col = sym("col", 0, 0)
    for k in range(len(shape)):
        domain = Domain(math.prod(shape[:k]), math.prod(shape[k:]), False)
        trace = _trace(roots, inputs, layouts, domain)
        col = sym("col", 0, domain.cols - 1)
        accesses = [m.index for m in trace.made if isinstance(m, Load)] + [s.index for s in trace.stores]
        if all(coefficient(a, col) is not None for a in accesses):
            break
    return domain, trace


def _map_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    rows, cols = domain.rows, domain.cols
    if target.backend == "cpp":
        if rows == 1:
            return (Axis("col", cols, Role.GRID, target.lanes),)
        return (Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, target.lanes))
    block = min(_power(cols), target.tile_elements)
    if rows == 1:
        return (Axis("col", cols, Role.GRID, block),)
    together = max(1, min(_power(rows), target.tile_elements // block))
    return (Axis("row", rows, Role.GRID, together), Axis("col", cols, Role.GRID, block))


def _row_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    if target.backend == "cpp":
        return (Axis("row", domain.rows, Role.GRID), Axis("col", domain.cols, Role.SERIAL, target.lanes))
    if domain.cols > target.row_elements:
        return (Axis("row", domain.rows, Role.GRID), Axis("col", domain.cols, Role.SERIAL, target.tile_elements))
    block = _power(domain.cols)
    together = max(1, min(_power(domain.rows), target.tile_elements // 2 // block))
    return (Axis("row", domain.rows, Role.GRID, together), Axis("col", domain.cols, Role.TILE, block))


def _column_axes(domain: Domain, target: Target) -> tuple[Axis, ...]:
    outer = (Axis("outer", domain.rows, Role.GRID),)
    if target.backend == "cpp":
        return (*outer, Axis("col", domain.inner, Role.GRID, target.lanes), Axis("row", domain.cols, Role.SERIAL))
    lanes = min(_power(domain.inner), target.lanes)
    together = target.tile_elements // lanes
    held = domain.cols <= together
    row = Axis("row", domain.cols, Role.TILE if held else Role.SERIAL, _power(domain.cols) if held else together)
    return (*outer, Axis("col", domain.inner, Role.GRID, lanes), row)


def _power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _warps(axes: tuple[Axis, ...]) -> int:
    """Warps for the tile of one program: eight elements a thread, between one and sixteen warps."""
    tile = math.prod(a.block for a in axes)
    return min(16, max(1, _power(tile) // 256))


def _fits(domain: Domain, scratch: tuple[Param, ...], target: Target) -> bool:
    """True where a row, and what it keeps between passes, fits on chip."""
    return domain.cols <= target.row_elements and _bytes(scratch) <= target.scratch_bytes


def _bytes(scratch: tuple[Param, ...]) -> int:
    """What the scratch rows of one program take."""
    return sum(p.dtype.bytes * math.prod(static(p.shape)) for p in scratch)


def _params(
    trace: Trace, roots: tuple[Node, ...], work: Work, layouts: Mapping[Node, Layout]
) -> tuple[tuple[Param, ...], tuple[Node, ...]]:
    reads = tuple(trace.reads)
    params = [Param(trace.reads[n], n.dtype, n.shape, layouts[n].strides) for n in reads]
    params += [
        Param(_out_name(k, len(roots)), r.dtype, r.shape, layouts[r].strides, "out") for k, r in enumerate(roots)
    ]
    return tuple(params), reads
