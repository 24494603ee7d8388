"""Rows shared by teams of programs. In: a region whose rows no program can hold. Out: the work of one kernel that
holds a share of a row in each program of a team and reads every element once.

The cut is that of reductions in parts (`lower/split.py`), a part for each program of a team. What a share of a row
gives is met by what the others give, and every program joins all of it for itself, in the same order, before it goes on
with the share that it holds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.index import product, wrap
from interfuse.ir.node import Node
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.axes import power
from interfuse.lower.domain import Domain, bytes_read, find, inside, width
from interfuse.lower.kernel import PLACES
from interfuse.lower.split import Cut, Parts, replaced
from interfuse.lower.statistics import expand_statistics, join_statistics, reduced_operand
from interfuse.lower.target import MOST_MATES, Target
from interfuse.lower.work import Work

FULL = 0.5
"""The part of its lanes that a program fills at least: what a team leaves idle, nobody else uses."""

NARROW, VECTOR = 2, 8
"""Bytes read for an element up to which a program holds a whole share; elements that shares begin at multiples of."""


def team(work: Work, target: Target) -> Work | None:
    """`work` for teams of programs; None where rows are not long, not reduced alone, or cannot be shared evenly."""
    plain = work.roots or work.outputs
    nodes = inside(plain, work.inputs)
    reduces = [n for n in nodes if n.op in REDUCES]
    if target.backend != "triton" or not reduces or any(n.op in SCANS or n.op in PLACES for n in nodes):
        return None
    roots = join_statistics(plain, work.inputs)
    domain = find(roots, work.inputs)
    mates = mates_of(domain, bytes_read(work.inputs, domain), target)
    wide = any(product(r.shape) == domain.kept * domain.cols for r in roots)
    if mates == 0 or not wide or any(n.dtype is not F32 for n in reduces):
        return None
    nodes = inside(roots, work.inputs)
    first = [n for n in nodes if n.op in REDUCES and not any(m.op in REDUCES for m in inside(n.inputs, work.inputs))]
    cuts = [Cut(n, domain.digits, Parts(mates, wrap(domain.cols).hi // mates, 0)) for n in first]
    given = tuple(dict.fromkeys(c.of_parts(op) for c in cuts for op in c.needs))
    joined = {c.node: c.joined() for c in cuts}
    if all(r.dtype.is_narrow for r in roots):  # nobody sees what rounding twice costs
        joined |= _scaled_weights(nodes, work, cuts)
    ends = replaced(roots, work.inputs, joined)
    ends = expand_statistics(ends, work.inputs | frozenset(given))
    ahead = frozenset(n for n in inside(ends, work.inputs | frozenset(given)) if n.op in REDUCES)
    if any(width(n.inputs[0].shape, n.attr("axes")) != mates for n in ahead):
        return None  # a row is reduced again by what it was reduced to
    shares = expand_statistics(tuple(map(_held, given)), work.inputs)
    return replace(work, roots=ends, ahead=ahead, met=tuple(zip(given, shares, strict=True)))


def mates_of(domain: Domain, read: int, target: Target) -> int:
    """The programs of a team: as many as share a row evenly, fill their lanes and hold about what the target says each:
    half of it where more than `NARROW` bytes are `read` for an element, twice as much where there are units enough for
    all rows then. 0 where a program holds a row by itself, or none does.
    """
    rows, cols = domain.rows, domain.cols
    if not isinstance(rows, int) or not isinstance(cols, int) or domain.inner != 1 or domain.parts:
        return 0
    if cols <= target.row_elements:
        return 0
    at_once = rows * cols <= target.programs * 2 * target.share
    share = 2 * target.share if at_once else target.share // 2 if read > NARROW else target.share
    even = [k for k in range(2, MOST_MATES + 1) if cols % (k * VECTOR) == 0 and cols // k <= 2 * target.share]
    full = [k for k in even if cols // k >= FULL * power(cols // k)]
    return min(full, key=lambda k: (abs(cols // k - share), k), default=0)


def _held(given: Node) -> Node:
    """What a share gives, for a share that is held: exponentials are summed once their maximum is there."""
    if given.op != "expsum":
        return given
    x, axes = given.inputs[0], given.attr("axes")
    return b.reduce("sum", _weights(x, b.reduce("max", x, axes), axes)[0], axes, hint=given.hint)


def _weights(x: Node, top: Node, axes: tuple[int, ...]) -> tuple[Node, Node]:
    """Exponentials of distances from a share's maximum, 0 of -inf, and what the distances are measured from."""
    lowest = b.like(float(np.finfo(x.dtype.numpy).min), top)
    start = b.apply("maximum", top, lowest, hint="top")
    return b.apply("exp", b.apply("sub", x, b.spread_over(start, x, axes)), hint="weight"), start


def _scaled_weights(nodes: list[Node], work: Work, cuts: list[Cut]) -> dict[Node, Node]:
    """Exponentials of distances from a row's maximum, from those that are held of its shares and a factor a share."""
    tops = {c.node: c for c in cuts if c.node.op == "max"}
    found = {}
    for n in nodes:
        apart = n.inputs[0] if n.op == "exp" else None
        top = reduced_operand(apart, "max", work.inputs) if apart is not None and apart.op == "sub" else None
        if apart is not None and top in tops:
            cut = tops[top]
            weights, start = _weights(cut.head, cut.of_parts("max"), (cut.axis + 1,))
            factor = b.apply(
                "exp", b.apply("sub", start, b.spread_over(cut.joined(), start, (cut.axis,))), hint="factor"
            )
            whole = b.apply("mul", weights, b.spread_over(factor, weights, (cut.axis + 1,)))
            found[n] = b.reshape(whole, n.shape)
    return found
