"""Scans in parts. In: a region with long scans of few rows or columns. Out: the works of two kernels that follow each
other.

A scan goes from element to element, so one of few long rows leaves most of a GPU idle. The first kernel gives the total
of every part; the second scans all parts at once, each on top of the totals of those before it, which every program
joins for itself, in order. The parts are a matter of sizes alone: bits repeat.
"""

from __future__ import annotations

import math

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, with_inputs
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.domain import Domain, find, inside
from interfuse.lower.target import SCANNED, Target
from interfuse.lower.work import Work

TOTALS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""What a part gives to those after it."""

JOINS = {"cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum"}

ENOUGH = 1 << 17
"""Elements from which parts are worth a launch more."""

ROW = 1 << 12
"""Elements of a part of a row at least."""

MOST_PARTS = 128
"""Parts at most: every program reads the totals of all of them."""


def split_scans(work: Work, roots: tuple[Node, ...], target: Target) -> tuple[Work, ...]:
    """The works that compute `roots` for the outputs of `work`, totals first; none where one kernel does as well, or
    where scans or reductions follow each other.
    """
    nodes = inside(roots, work.inputs)
    scans = [n for n in nodes if n.op in SCANS]
    again = any(m.op in SCANS for n in scans for m in inside(n.inputs, work.inputs))
    if target.backend != "triton" or again or any(n.op in REDUCES for n in nodes):
        return ()
    count = _count(find(roots, work.inputs), target, scans)
    if count is None:
        return ()
    cuts = [_Cut(n, count) for n in scans]
    ends = {i: i for i in work.inputs} | {c.scan: c.joined for c in cuts}
    for node in nodes:
        ends.setdefault(node, with_inputs(node, tuple(ends[i] for i in node.inputs)))
    totals = tuple(dict.fromkeys(c.totals for c in cuts))
    layouts = dict(work.layouts) | {t: contiguous(t.shape) for t in totals}
    before = frozenset(c.before for c in cuts)
    last = Work(work.outputs, work.inputs | frozenset(totals), layouts, tuple(ends[r] for r in roots), ahead=before)
    return Work(totals, work.inputs, layouts), last


def _count(domain: Domain, target: Target, scans: list[Node]) -> int | None:
    """How many parts: of what a thread scans at once, or longer ones where that would be too many."""
    rows, cols, inner = domain.rows, domain.cols, domain.inner
    if not isinstance(rows, int) or not isinstance(inner, int) or not isinstance(cols, int):
        return None
    programs = rows * math.ceil(inner / target.lanes)
    if programs >= target.enough or rows * cols * inner < ENOUGH:
        return None
    width = SCANNED // sum(n.dtype.bytes for n in scans) if inner > 1 else ROW
    most = min(cols // max(width, 1), MOST_PARTS)
    return next((k for k in range(most, 1, -1) if cols % k == 0 and most < 2 * k), None)


class _Cut:
    """One scan in `count` parts: their `totals`, the join `before` each of them, and the scan of all, `joined`."""

    def __init__(self, scan: Node, count: int) -> None:
        self.scan = scan
        x, axis, reverse = scan.inputs[0], scan.attr("axis"), scan.attr("reverse")
        self._axis, self._count = axis, count
        parts = b.reshape(x, (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :]))
        self.totals = b.reduce(TOTALS[scan.op], parts, (axis + 1,), hint=f"{scan.hint or scan.op}_parts")
        self.before = self._before(reverse)
        mine = b.scan(scan.op, parts, axis + 1, reverse)
        self.joined = b.reshape(
            b.apply(JOINS[scan.op], b.spread_over(self.before, parts, (axis + 1,)), mine), scan.shape
        )

    def _before(self, reverse: bool) -> Node:
        """What the parts before each part come to, those after it where the scan runs in reverse."""
        axis, shape = self._axis, self.totals.shape
        wide = (*shape[: axis + 1], self._count, *shape[axis + 1 :])
        totals = b.expand(b.reshape(self.totals, (*shape[:axis], 1, *shape[axis:])), wide)
        mine, other = (
            b.expand(
                b.reshape(b.iota(self._count), tuple(self._count if k == at else 1 for k in range(len(wide)))), wide
            )
            for at in (axis, axis + 1)
        )
        earlier = b.apply("gt" if reverse else "lt", other, mine)
        kept = b.apply("where", earlier, totals, b.like(_neutral(self.scan), totals))
        return b.reduce(TOTALS[self.scan.op], kept, (axis + 1,), hint="before")


def _neutral(scan: Node) -> float:
    """What changes no total."""
    if scan.op in ("cumsum", "cumprod"):
        return 0 if scan.op == "cumsum" else 1
    sign = -1 if scan.op == "cummax" else 1
    if scan.dtype.is_float:
        return sign * float("inf")
    ends = np.iinfo(scan.dtype.numpy)
    return int(ends.min if sign < 0 else ends.max)
