"""Rows and columns of one region in one pass. In: a region that reduces both. Out: the works of kernels that follow
each other.

The first kernel gives a program some neighbouring rows: it reduces each, computes what a row gives, and adds up columns
on the way, so that every program has a part of each column's result. A second kernel joins the parts and computes what
follows from columns alone; what needs joined columns beside whole rows is left to a third.

How many parts there are is a matter of the kind of device, and of the rows where they are few: never of threads. Parts
are joined in order, so bits repeat.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.index import mod, mul, product, unwrap
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, make, topological
from interfuse.ir.ops import COMPARES, REDUCES
from interfuse.lower.axes import mixed_parts
from interfuse.lower.domain import Domain, above, bytes_read, find_both, inside
from interfuse.lower.kernel import share_of
from interfuse.lower.split import is_small, replaced
from interfuse.lower.target import Target
from interfuse.lower.work import Work

_NOTHING = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
"""Reductions of columns that a program carries, and what changes none of them."""


def mixed(work: Work, target: Target) -> tuple[Work, ...]:
    """The works that compute `work`, in order; none where it does not reduce all rows, and beside that either reduces
    along rows or gives something of every element.
    """
    plain = work.roots or work.outputs
    if not any(n.op in REDUCES for n in inside(plain, work.inputs)):
        return ()
    roots = _spelled(plain, work.inputs)
    both = find_both(inside(roots, work.inputs))
    if both is None or 0 in (both.domain.rows, both.domain.cols):
        return ()
    first = [n for n in both.over_rows if not any(m in both.over_rows for m in inside(n.inputs, work.inputs))]
    if any(n.op not in _NOTHING or not n.dtype.is_float for n in first):
        return ()
    parts = mixed_parts(both.domain, bytes_read(work.inputs, both.domain), target)
    partial = {n: _partial(n, both.domain, parts) for n in first}
    joins = {n: b.reduce(n.op, p, (0,), hint=n.hint) for n, p in partial.items()}
    given, joined = tuple(partial.values()), frozenset(joins.values())
    ends = replaced(roots, work.inputs, joins)
    needs = [joined.intersection(topological((end,), work.inputs | joined)) for end in ends]
    columns = [
        bool(n) and is_small(e, work.inputs | joined, both.domain.longest) for e, n in zip(ends, needs, strict=True)
    ]
    read = tuple(j for j in joins.values() if any(j in n for n, small in zip(needs, columns, strict=True) if not small))
    layouts = dict(work.layouts) | {n: contiguous(n.shape) for n in (*given, *read)}

    sizes = {e.size for e, n in zip(ends, needs, strict=True) if not n}
    whole = product((both.domain.rows, both.domain.cols))
    if not sizes <= {whole, both.domain.rows} or (not both.domain.reduces and whole not in sizes):
        return ()

    def those(nodes: tuple[Node, ...], *, joined: bool, small: bool) -> tuple[Node, ...]:
        return tuple(o for o, n, c in zip(nodes, needs, columns, strict=True) if (bool(n), c) == (joined, small))

    rows, last = ({"joined": is_left, "small": False} for is_left in (False, True))
    works = [
        Work((*those(work.outputs, **rows), *given), work.inputs, layouts, (*those(roots, **rows), *partial), parts),
        Work(
            (*read, *those(work.outputs, joined=True, small=True)),
            work.inputs | frozenset(given),
            layouts,
            (*read, *those(ends, joined=True, small=True)),
        ),
    ]
    if those(ends, **last):
        done, late = (inside(w, work.inputs | joined) for w in (works[0].roots, those(ends, **last)))
        if _compares(late, {n for n in late if n.op in REDUCES}.intersection(done), joined):
            return ()  # reduced over other lanes, a row need not give the bits that its columns were found from
        left = Work(those(work.outputs, **last), work.inputs | frozenset(read), layouts, those(ends, **last))
        works += mixed(left, target) or (left,)
    return tuple(works)


def _compares(nodes: list[Node], again: set[Node], joined: frozenset[Node]) -> bool:
    """True where one of `nodes` compares what comes of a reduction done `again` with what comes of `joined` columns."""
    ours, theirs = above(nodes, again), above(nodes, joined)
    both = (n for n in nodes if n.op in COMPARES and not ours.isdisjoint(n.inputs))
    return any(not theirs.isdisjoint(n.inputs) for n in both)


def _spelled(roots: tuple[Node, ...], inputs: frozenset[Node]) -> tuple[Node, ...]:
    """The roots with means over a fixed number of rows as sums."""
    both = find_both(inside(roots, inputs))
    if both is None or not isinstance(both.domain.rows, int):
        return roots
    means = {}
    for n in both.over_rows:
        if n.op == "mean":
            total = b.reduce("sum", n.inputs[0], n.attr("axes"), hint="total")
            means[n] = b.apply("div", total, b.like(both.domain.rows, total), hint=n.hint)
    return replaced(roots, inputs, means)


def _partial(node: Node, domain: Domain, parts: int) -> Node:
    """What each part of the rows gives for `node`, [parts, ...]; the last ones are filled with what changes nothing."""
    rows, kept = domain.rows, node.shape
    share = share_of(rows, parts)
    # What is missing is written so that it is seen not to be negative, and the filled rows are parts x share of them.
    missing = unwrap(mul(mod(rows + (parts - 1), parts), -1) + (parts - 1))
    flat = b.reshape(node.inputs[0], (rows, *kept))
    none = (0,) * len(kept)
    filled = b.pad(flat, (0, *none), (missing, *none), _NOTHING[node.op])
    cut = make("reshape", (filled,), node.dtype, (parts, share, *kept))
    return b.reduce(node.op, cut, (1,), hint=f"{node.hint or node.op}_parts")
