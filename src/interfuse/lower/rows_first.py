"""Rows that a kernel computes before another one multiplies them. In: a region with products of a few rows. Out: the
works of two kernels that follow each other.

Every program of a product reads all rows, so what they are is computed once, by a kernel of its own: a norm, say, and
what else does not wait for the products. It gives them in the type in which they are multiplied, to which eager rounds
them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, with_inputs
from interfuse.lower.domain import inside
from interfuse.lower.skinny import KINDS, factors, sizes_of
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
    late = _above(nodes, sums)
    if not given or not late.isdisjoint(given) or not {*work.outputs, *roots}.isdisjoint({*given, *given.values()}):
        return ()
    rows = tuple(dict.fromkeys(given.values()))
    ahead = {row: b.cast(found, F32) for row, found in given.items()}
    first = [k for k, r in enumerate(roots) if r not in late]
    last = [k for k, r in enumerate(roots) if r in late]
    layouts = dict(work.layouts) | {n: contiguous(n.shape) for n in rows}
    one = Work(
        (*rows, *(work.outputs[k] for k in first)),
        work.inputs,
        layouts,
        (*rows, *(roots[k] for k in first)),
        sizes=work.sizes,
    )
    ends = _with(tuple(roots[k] for k in last), work.inputs, ahead)
    two = Work(tuple(work.outputs[k] for k in last), work.inputs | frozenset(rows), layouts, ends, sizes=work.sizes)
    return (one, two) if sizes_of(inside(ends, two.inputs), two.outputs) is not None else ()


def _above(nodes: Iterable[Node], some: Iterable[Node]) -> set[Node]:
    """`some` and what is computed from them."""
    found = set(some)
    for n in nodes:
        if not found.isdisjoint(n.inputs):
            found.add(n)
    return found


def _with(roots: tuple[Node, ...], inputs: frozenset[Node], other: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with other nodes in place of some."""
    made = dict(other)
    for n in inside(roots, inputs | frozenset(other)):
        made[n] = with_inputs(n, tuple(made.get(i, i) for i in n.inputs))
    return tuple(made.get(r, r) for r in roots)
