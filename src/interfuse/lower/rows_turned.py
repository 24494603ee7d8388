"""Rows that are reduced by one kernel and turned by another. In: a region whose rows are reduced, and lie across in
what is read or written. Out: the works of two kernels that follow each other.

A program that reduces whole rows and writes them across has long rows and short columns at once, and each of its steps
waits for the one before. Two kernels have programs of any shape, many more of them, and what the second one reads again
the second-level cache has still, where rows are few.
"""

from __future__ import annotations

from interfuse.ir.index import product, wrap
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.domain import find, inside
from interfuse.lower.families import is_turned
from interfuse.lower.kernel import PLACES
from interfuse.lower.target import Target
from interfuse.lower.work import Work

KEPT_BYTES = 1 << 25
"""What is read at most: a second-level cache has room for it beside what is written."""


def rows_turned(work: Work, target: Target) -> tuple[Work, ...]:
    """The works that compute `work`, what rows are reduced to first; none where rows do not lie across, or are too many
    for a cache.
    """
    roots = work.roots or work.outputs
    nodes = inside(roots, work.inputs)
    reduces = tuple(n for n in nodes if n.op in REDUCES)
    if target.backend != "triton" or not reduces or any(n.op in SCANS or n.op in PLACES for n in nodes):
        return ()
    domain = find(roots, work.inputs)
    wide = [k for k, r in enumerate(roots) if product(r.shape) == domain.kept * domain.cols]
    read = sum(wrap(n.size).hi * n.dtype.bytes for n in work.inputs)
    whole = Work(work.outputs, work.inputs, work.layouts, roots, sizes=work.sizes)
    if not wide or domain.inner != 1 or read > KEPT_BYTES or not is_turned(whole, target):
        return ()
    given = tuple(n for n in reduces if any(n in m.inputs for m in inside([roots[k] for k in wide], work.inputs)))
    if not given or not set(given).isdisjoint(roots):
        return ()
    ends, outputs = tuple(roots[k] for k in wide), tuple(work.outputs[k] for k in wide)
    one, known = work.before(given, ends), work.inputs | frozenset(given)
    if any(n.op in REDUCES for n in inside(ends, known)):
        return ()
    return one, Work(outputs, known, one.layouts, ends, sizes=work.sizes, cached=work.inputs)
