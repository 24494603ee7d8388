"""Reductions that carry more than one number, as Triton text. In: how an operand and its axis are spelled. Out: lines
before, in and after a serial loop, and the results.

No step of the loop joins lanes, so programs do not wait for each other's warps; what the lanes carry is joined once at
the end, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from interfuse.emit import triton_prelude as prelude
from interfuse.emit.triton_lanes import Lane
from interfuse.ir.dtypes import F32, DType
from interfuse.ir.index import Dim, wrap
from interfuse.lower.kernel import MOMENTS, PART, Axis, Kernel, Let, Reduce, Role, Stmt, Value, operands, walk
from interfuse.lower.target import LONG_STEP, ROWS_AT_ONCE

JOINS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""What joins the parts of each scan."""

COMBINE = {
    "argmax": "larger_first({0}, {1})",
    "argmin": "smaller_first({0}, {1})",
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "nan_max({0}, {1})",
    "min": "nan_min({0}, {1})",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
}

VECTOR = 8
"""The most elements that a thread loads at once."""

PAIRS = ({"sum"}, {"sum", "max"})
"""Operators of two reductions that can be one."""

COMPOSITE = MOMENTS | {"expsum"}
"""Reductions that carry more than one number; a maximum comes out of an `expsum` as well."""


@dataclass(frozen=True)
class Operand:
    """What is reduced: `text` of `dtype` in lanes of `shape`, `mask` where lanes may pass the end ("" where not).

    `along` are the arguments of a reduction by which Triton finds the axis, `lane` is its dimension, `lanes` numbers
    the `block` lanes that share its `count` elements, `size` in the text, `start` is the loop's variable. `folded` is
    what a step carries where lanes that one thread has are carried as one; 0 where they are not. Moments carry `eights`
    of neighbours as one where a step is long, and are `plain` where nobody tells an infinite mean from NaN.
    """

    text: str
    dtype: DType
    mask: str
    shape: str
    along: str
    lane: int
    lanes: str
    block: int
    count: Dim
    size: str
    start: str
    folded: int = 0
    at_once: bool = False
    eights: bool = False
    plain: bool = False

    @staticmethod
    def of(s: Reduce, text: str, lanes: Mapping[str, Lane], mask: str, kernel: Kernel) -> Operand:
        """The operand of `s` in a kernel, spelled `text`."""
        lane = lanes[s.axis]
        extent, block = lane.axis.extent, lane.axis.block
        blocks = [x.block if x.axis.name in s.arg.axes else "1" for x in lanes.values()]
        return Operand(
            text,
            s.arg.dtype,
            mask,
            _shape(blocks),
            f", axis={lane.dim}, keep_dims=True" if lane.rank > 1 else "",
            lane.dim,
            lane.numbers(),
            block,
            extent,
            lane.extent if wrap(extent).op in ("const", "sym") else f"({lane.extent})",
            f"{s.axis}_start",
            _folded(s, lane, kernel.warps),
            lane.rank == 1 and s.arg.dtype is F32 and _at_once(lane.axis, kernel),
            lane.rank == 1 and s.arg.dtype is F32 and block >= LONG_STEP and not lane.passes_end,
            s.op in MOMENTS and not _tells_infinite(s.arg, walk(kernel.body)),
        )

    def masked(self, text: str, rest: str) -> str:
        """`text` with `rest` in the lanes past the end."""
        return f"tl.where({self.mask}, {text}, {rest})" if self.mask else text


@dataclass(frozen=True)
class Carried:
    """Lines before the loop, in each step, after it; `results` by operator."""

    before: tuple[str, ...]
    step: tuple[str, ...]
    after: tuple[str, ...]
    results: dict[str, str]


def distinct(carried: Iterable[Carried]) -> list[Carried]:
    """Everything that is carried, once."""
    return list({made.before: made for made in carried}.values())


def paired(body: Sequence[Stmt], lanes: Mapping[str, Lane]) -> dict[Reduce, Reduce]:
    """Reductions along a tile of the same lanes that can be one, two and two: two sums, or a sum and a maximum. The
    second's partner is the first, which nothing needs before. Where a program holds several rows, its warps have their
    own and hardly wait for each other.
    """
    found: dict[Reduce, Reduce] = {}
    for k, s in enumerate(body):
        if not isinstance(s, Reduce) or s in found or not _alone(s, lanes):
            continue
        for later in body[k + 1 :]:
            if isinstance(later, Reduce) and {s.op, later.op} in PAIRS and _lanes_of(s) == _lanes_of(later) != ():
                found[later] = s
            if not isinstance(later, Let) or s.out in later.args:
                break
    return found


def _alone(s: Reduce, lanes: Mapping[str, Lane]) -> bool:
    """True for a reduction along a tile, not of parts, in a program that has one row."""
    others = [lanes[a].axis for a in s.arg.axes if a in lanes and a != s.axis]
    tile = s.axis in lanes and s.axis != PART and lanes[s.axis].axis.role is Role.TILE
    return tile and all(a.block == 1 for a in others)


def _lanes_of(s: Reduce) -> tuple[object, ...]:
    """What two reductions that can be one have in common; () for what is none of floats."""
    return (s.axis, s.scope, s.arg.axes, s.arg.dtype) if s.arg.dtype.is_float else ()


def _at_once(axis: Axis, kernel: Kernel) -> bool:
    """True for rows of one step, where there are so few of them that registers for all of a step leave room enough."""
    rows = math.prod(wrap(a.extent).hi for a in kernel.axes if a.role is Role.GRID)
    return isinstance(axis.extent, int) and axis.extent <= axis.block and rows <= ROWS_AT_ONCE


def _tells_infinite(arg: Value, statements: list[Stmt]) -> bool:
    """True where someone sees the mean of `arg` before what is infinite in it became NaN, as it does in var_mean."""
    means = {s.out for s in statements if isinstance(s, Reduce) and s.op == "mean" and s.arg == arg}
    nothing = {s.out for s in statements if isinstance(s, Let) and s.op == "sub" and {*s.args} <= means}
    made = {s.out for s in statements if isinstance(s, Let) and s.op == "add" and {*s.args} & nothing}
    return any(means & {*operands(s)} and getattr(s, "out", None) not in nothing | made for s in statements)


def _folded(s: Reduce, lane: Lane, warps: int) -> int:
    """Lanes that a step carries where each thread has some vectors of the step: what lies a vector a thread apart is
    the same thread's, whatever the layout, and is reduced without a word to other threads.
    """
    carried = 32 * VECTOR * warps
    return carried if lane.rank == 1 and s.arg.dtype is F32 and lane.axis.block >= 2 * carried else 0


def _shape(blocks: list[str]) -> str:
    return f"({', '.join(blocks)}{',' if len(blocks) == 1 else ''})"


def moments(x: Operand, own: Callable[[str], str]) -> Carried:
    """Mean and spread by Welford's update: each lane carries the mean of its elements and their squared distances.

    Sums of distances from a fixed pivot would be shorter, and up to a hundred times less accurate where the mean is
    small beside its elements. The lanes are joined by Chan's formula, weighted where some have one element less. `own`
    gives a free name like the one wished for.
    """
    mean, squares, apart, whole, off = (
        own(f"{x.text}_{wish}") for wish in ("mean", "squares", "apart", "whole", "off")
    )
    kind, div = prelude.TYPES[x.dtype], prelude.operator_text("div", x.dtype)
    if x.eights:
        return _moments_of_eights(x, own, (mean, squares, apart, whole, off))
    share = f"(1.0 / tl.cast({x.start} // {x.block} + 1, {kind}))"  # no branch, as an exact division has one
    if isinstance(x.count, int):
        each, rest = divmod(x.count, x.block)
        seen = f"tl.where({x.lanes} < {rest}, {each + 1}.0, {each}.0)" if rest else f"{each}.0"
        count = f"{float(x.count)}"
    else:
        more = f"({x.lanes} < {x.size} % {x.block}).to(tl.int32)"
        seen, count = f"tl.cast({x.size} // {x.block} + {more}, {kind})", f"tl.cast({x.size}, {kind})"
    distance = x.masked(f"{x.text} - {mean}", "0.0")
    step = (
        f"{apart} = {distance}",
        f"{mean} = tl.fma({apart}, {share}, {mean})",
        f"{squares} = tl.fma({apart}, {distance}, {squares})",
    )
    if not x.plain:  # nor fused, for want of registers
        step = (
            f"{apart} = {x.masked(f'apart_from({mean}, {x.text})', '0.0')}",
            f"{mean} = {mean} + {apart} * {share}",
            f"{squares} = {squares} + {apart} * {x.masked(f'({x.text} - {mean})', '0.0')}",
        )
    return Carried(
        tuple(f"{name} = tl.full({x.shape}, 0.0, {kind})" for name in (mean, squares)),
        step,
        (
            f"{whole} = {div.format(f'tl.sum({mean} * {seen}{x.along})', count)}",
            f"{off} = {mean} - {whole}",
            f"{squares} = tl.sum({squares} + {off} * {off} * {seen}{x.along})",
        ),
        {"mean": whole, "spread": squares},
    )


def _moments_of_eights(x: Operand, own: Callable[[str], str], names: tuple[str, ...]) -> Carried:
    """The same with one lane for eight neighbours, which a thread has and joins first, in two passes: fewer operations
    an element, and an eighth of what is carried.
    """
    mean, squares, apart, whole, off = names
    near, within, count = own(f"{x.text}_near"), own(f"{x.text}_within"), wrap(x.count).hi
    kind, div = prelude.TYPES[x.dtype], prelude.operator_text("div", x.dtype)
    seen = float(VECTOR * count // x.block)
    return Carried(
        tuple(f"{name} = tl.full(({x.shape.strip('(,)')} // {VECTOR},), 0.0, {kind})" for name in (mean, squares)),
        (
            f"{near}, {within} = eights({x.text})",
            f"{apart} = apart_from({mean}, {near})",
            f"{mean} = {mean} + {apart} * (1.0 / tl.cast({x.start} // {x.block} + 1, {kind}))",
            f"{squares} = {squares} + {within} + {apart} * ({near} - {mean}) * {float(VECTOR)}",
        ),
        (
            f"{whole} = {div.format(f'tl.sum({mean} * {seen})', f'{float(count)}')}",
            f"{off} = {mean} - {whole}",
            f"{squares} = tl.sum({squares} + {off} * {off} * {seen})",
        ),
        {"mean": whole, "spread": squares},
    )


def expsum(x: Operand, own: Callable[[str], str]) -> Carried:
    """The sum of exp(element - maximum), each lane measuring from its own largest element so far.

    A lane starts from the lowest finite number, so that -inf adds nothing. Where a thread has several elements of a
    step they are measured from one maximum.
    """
    top, total = own(f"{x.text}_top"), own(f"{x.text}_total")
    kind, lowest = prelude.TYPES[x.dtype], prelude.literal(float(np.finfo(x.dtype.numpy).min), x.dtype)
    highest = own(f"{x.text}_highest")
    keep = ", keep_dims=True" if x.along else ""
    given = x.masked(x.text, 'float("-inf")')
    if x.at_once:  # nothing goes from step to step
        return Carried(
            (f"{top} = tl.full((), {lowest}, {kind})", f"{total} = tl.full((), 0.0, {kind})"),
            (
                f"{top} = nan_max({top}, tl.reduce({given}, {x.lane}, nan_max))",
                f"{total} = {total} + tl.sum(tl.exp2(({given} - {top}) * {math.log2(math.e)}))",
            ),
            (),
            {"expsum": total, "max": f'tl.where({total} == 0, float("-inf"), {top})'},
        )
    shape, update = (f"({x.folded},)", "weighed_together") if x.folded else (x.shape, "weighed")
    return Carried(
        (f"{top} = tl.full({shape}, {lowest}, {kind})", f"{total} = tl.full({shape}, 0.0, {kind})"),
        (f"{top}, {total} = {update}({top}, {total}, {given})",),
        (
            f"{highest} = tl.reduce({top}, {x.lane}, nan_max{keep})",
            f"{total} = tl.sum({total} * libdevice.exp({top} - {highest}){x.along})",
        ),
        {"expsum": total, "max": f'tl.where({total} == 0, float("-inf"), {highest})'},
    )


def identity(op: str, dtype: DType) -> str:
    """What leaves a reduction of `dtype` as it is, as a Python number."""
    if op in ("any", "all"):
        return str(op == "all")
    if op in ("sum", "prod"):
        return prelude.literal(op == "prod", dtype)
    if dtype.is_float:
        return prelude.literal(float("-inf") if op in ("max", "argmax") else float("inf"), dtype)
    limits = np.iinfo(dtype.numpy)
    return prelude.literal(limits.min if op in ("max", "argmax") else limits.max, dtype)
