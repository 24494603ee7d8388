"""Totals of what rows give. In: a region that reduces rows, and then the results of all rows. Out: the works of kernels
that follow each other.

A loss of labels is one: each row of scores gives an error, and the errors a mean. The first kernel computes what the
totals are taken of, one element a row, beside all else that rows give; the second takes the totals, from these and from
the region's inputs. No second kernel reads the rows again.
"""

from __future__ import annotations

from interfuse.ir.index import product, unwrap
from interfuse.ir.node import Node
from interfuse.ir.ops import ELEMENTWISE, REDUCES, SCANS, TABLE
from interfuse.lower.domain import above, digits_of, domain_of, inside, reduced
from interfuse.lower.split import split
from interfuse.lower.target import Target
from interfuse.lower.work import Work

MANY, PART = 1 << 14, 1 << 9
"""Rows from which on a GPU takes their totals in parts of so many: one program alone reads what rows give for longer
than a launch more takes.
"""


def totals(work: Work, target: Target) -> tuple[Work, ...]:
    """The works that compute `work`, rows first; none where it is not made of reductions of rows and of totals over
    what they give.
    """
    roots = work.roots or work.outputs
    nodes = inside(roots, work.inputs)
    over = [n for n in nodes if n.op in REDUCES or n.op in SCANS]
    if any(domain_of(digits_of(n)).apart for n in over):
        return ()
    kinds = {n: reduced(n) for n in over}
    ends = [n for n, (rows, _, _) in kinds.items() if rows == 1]
    begins = {kind for n, kind in kinds.items() if n not in ends}
    if len(begins) != 1 or not ends or any(n.op in SCANS for n in ends):
        return ()
    rows, _, inner = begins.pop()
    count = unwrap(rows * inner)
    if any(kinds[n][1] != count or kinds[n][2] != 1 for n in ends):
        return ()
    late = above(nodes, set(ends))
    early = above(nodes, {n for n in kinds if n not in ends})
    taken = dict.fromkeys(_narrowest(n.inputs[0], work.inputs) for n in ends if n.inputs[0] not in late)
    given = tuple(n for n in taken if n in early or _narrows(n, work.inputs))
    if early.isdisjoint(given):
        return ()
    last = [k for k, r in enumerate(roots) if r in late]
    rest = inside([roots[k] for k in last], work.inputs | frozenset(given))
    if not given or any(n in kinds and n not in ends for n in rest) or any(product(g.shape) != count for g in given):
        return ()
    one = work.before(given, late)
    outputs, late_roots = (tuple(of[k] for k in last) for of in (work.outputs, roots))
    two = Work(outputs, work.inputs | frozenset(given), one.layouts, late_roots, sizes=work.sizes)
    many = target.backend == "triton" and isinstance(count, int) and count >= MANY and count % PART == 0
    return one, *(split(two, target, PART if many else 0) or (two,))


def _narrowest(node: Node, inputs: frozenset[Node]) -> Node:
    """The narrower value that alone tells `node`, element by element, as far down as there is one: one program reads
    what is given of all rows.
    """
    while node not in inputs and TABLE[node.op].band == ELEMENTWISE:
        told = {
            i for i in node.inputs if i in inputs or any(m in inputs for n in inside((i,), inputs) for m in n.inputs)
        }
        if len(told) != 1:
            break
        (below,) = told
        if below in inputs or below.size != node.size or below.dtype.bytes >= node.dtype.bytes:
            break
        node = below
    return node


def _narrows(node: Node, inputs: frozenset[Node]) -> bool:
    """True where a value is fewer bytes than what it is made of: the one program of the totals reads it sooner."""
    read = {i for n in inside((node,), inputs) for i in n.inputs if i in inputs and i.size == node.size}
    return node not in inputs and sum(i.dtype.bytes for i in read) > node.dtype.bytes
