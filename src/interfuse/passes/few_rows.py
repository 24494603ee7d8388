"""few_rows: a product of few rows with a matrix is a reduction. In: a graph. Out: a graph with such products as sums.

On a GPU it takes as long as the matrix takes to be read, which a generated kernel does as fast as any, with what stands
before and behind the product on the way: that of one row by adding up, that of a few narrow ones on tensor cores. The
captured call stays what the kernel is raced against. On a CPU the library reads at that speed already.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Graph
from interfuse.ir.node import Node
from interfuse.passes.rewrite import rewrite

FEW = 16
"""Rows that tensor cores take at once: fewer cost as much."""


def few_rows(graph: Graph) -> Graph:
    """The graph with sums in place of products of few rows, on a GPU."""
    return rewrite(graph, spelled) if graph.device.startswith("cuda") else graph


def spelled(old: Node, new: Node) -> Node | None:
    """The sum that `linear` of few rows is, in f32 or wider and rounded once. None for more rows than one of wide types
    or unknown sizes, which the library multiplies.
    """
    if new.op != "linear":
        return None
    rows, deep = new.inputs[0].shape
    fixed = all(isinstance(d, int) for d in (rows, *new.inputs[1].shape))
    if rows != 1 and not (isinstance(rows, int) and rows <= FEW and fixed and new.dtype.is_narrow):
        return None
    x, weight, *bias = (b.cast(n, F32) if n.dtype.is_narrow else n for n in new.inputs)
    features = weight.shape[0]
    whole = (rows, features, deep)
    along = b.expand(b.reshape(x, (rows, 1, deep)), whole)
    terms = b.apply("mul", along, b.expand(b.reshape(weight, (1, features, deep)), whole))
    total = b.reduce("sum", terms, (2,), hint=new.hint)
    total = b.apply("add", total, b.broadcast(bias[0], new.shape), hint=new.hint) if bias else total
    return b.cast(b.rounded(total, new.dtype), new.dtype) if new.dtype.is_narrow else total
