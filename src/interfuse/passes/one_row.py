"""one_row: a product of one row with a matrix is a reduction. In: a graph. Out: a graph with such products spelled out.

On a GPU it takes as long as the matrix takes to be read, which a generated kernel does as fast as any, with what stands
before and behind the product on the way. The captured call stays what the kernel is raced against. On a CPU the library
reads at that speed already.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Graph
from interfuse.ir.node import Node
from interfuse.passes.rewrite import rewrite


def one_row(graph: Graph) -> Graph:
    """The graph with sums in place of products of one row, on a GPU."""
    return rewrite(graph, spelled) if graph.device.startswith("cuda") else graph


def spelled(old: Node, new: Node) -> Node | None:
    """The sum that `linear` of one row is, in f32 or wider and rounded once."""
    if new.op != "linear" or new.inputs[0].shape[0] != 1:
        return None
    row, weight, *bias = (b.cast(n, F32) if n.dtype.is_narrow else n for n in new.inputs)
    whole = (1, *weight.shape)
    terms = b.apply("mul", b.expand(b.reshape(row, (1, *row.shape)), whole), b.reshape(weight, whole))
    total = b.reduce("sum", terms, (2,), hint=new.hint)
    total = b.apply("add", total, b.broadcast(bias[0], new.shape), hint=new.hint) if bias else total
    return b.cast(b.rounded(total, new.dtype), new.dtype) if new.dtype.is_narrow else total
