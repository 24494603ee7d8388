"""Rows that a kernel computes before another one multiplies them. In: a region with products of a few rows. Out: the
works of two kernels that follow each other.

Every program of a product reads all rows, so what they are is computed once, by a kernel of its own: a norm, say, and
what else does not wait for the products. It gives them in the type in which they are multiplied, to which eager rounds
them too.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.node import Node
from interfuse.lower.domain import above, inside
from interfuse.lower.products import KINDS, factors, sizes_of
from interfuse.lower.split import replaced
from interfuse.lower.target import Target
from interfuse.lower.work import Work


def rows_first(work: Work, target: Target) -> tuple[Work, ...]:
    """The works that compute `work`, rows first; none where nothing is computed before its products, or that is needed
    outside too: it is then a buffer that several kernels read.
    """
    roots = work.roots or work.outputs
    nodes = inside(roots, work.inputs)
    sums = {n: found for n in nodes if (found := factors(n)) is not None}
    if not sums or target.backend != "triton":
        return ()
    given = dict[Node, Node]()
    for row, weight in sums.values():
        source = row.inputs[0] if row.op == "cast" and row.inputs[0].dtype in KINDS else row
        kind = weight.inputs[0].dtype if weight.op == "cast" else weight.dtype
        if source not in work.inputs and kind in KINDS:
            given[row] = source if source.dtype is kind else b.cast(row, kind)
    late = above(nodes, sums)
    if not given or not late.isdisjoint(given) or not {*work.outputs, *roots}.isdisjoint({*given, *given.values()}):
        return ()
    rows = tuple(dict.fromkeys(given.values()))
    ahead = {row: b.cast(found, F32) for row, found in given.items()}
    last = [k for k, r in enumerate(roots) if r in late]
    one = work.before(rows, late)
    ends = replaced(tuple(roots[k] for k in last), work.inputs, ahead)
    two = Work(tuple(work.outputs[k] for k in last), work.inputs | frozenset(rows), one.layouts, ends, sizes=work.sizes)
    return (one, two) if sizes_of(inside(ends, two.inputs), two.outputs) is not None else ()
