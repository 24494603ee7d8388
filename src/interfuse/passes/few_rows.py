"""few_rows: a product of few rows with a matrix is a reduction. In: a graph. Out: a graph with such products as sums.

On a GPU it takes as long as the matrix takes to be read, which a generated kernel does as fast as any, with what stands
before and behind the product on the way: that of one row by adding up, that of a few narrow ones on tensor cores. A
small product of f32 is added up too. The captured call stays what the kernel is raced against. On a CPU the library
reads at that speed already.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, DType
from interfuse.ir.graph import Graph
from interfuse.ir.index import Dim
from interfuse.ir.node import Node
from interfuse.passes.rewrite import rewrite

FEW = 16
"""Rows, features and elements in common that tensor cores take at once at least: fewer cost as much."""

SMALL, RESULTS, SHALLOW = 1 << 20, 1 << 12, 64
"""Products of f32 numbers at most that are added up one by one, sooner than a library has begun and joined its parts;
results at least, for fewer do not keep a GPU busy, but where so few products make a result that it has no need to be.
"""


def few_rows(graph: Graph) -> Graph:
    """The graph with sums in place of products of few rows, on a GPU."""
    return rewrite(graph, spelled) if graph.device.startswith("cuda") else graph


def spelled(old: Node, new: Node) -> Node | None:
    """The sum that `linear` of few rows is, in f32 or wider and rounded once. None for more work of wide types and for
    unknown sizes, which the library multiplies.
    """
    if new.op != "linear":
        return None
    rows, _ = new.inputs[0].shape
    return summed(new) if rows == 1 or _few((rows, *new.inputs[1].shape), new.dtype) else None


def summed(linear: Node) -> Node:
    """The sum that a `linear` of rows [m, k] and a matrix [n, k] is: [m, n] of its type."""
    dtype, (rows, deep) = linear.dtype, linear.inputs[0].shape
    x, weight, *bias = (b.cast(n, F32) if n.dtype.is_narrow else n for n in linear.inputs)
    features = weight.shape[0]
    whole = (rows, features, deep)
    along = b.expand(b.reshape(x, (rows, 1, deep)), whole)
    terms = b.apply("mul", along, b.expand(b.reshape(weight, (1, features, deep)), whole))
    total = b.reduce("sum", terms, (2,), hint=linear.hint)
    total = b.apply("add", total, b.broadcast(bias[0], linear.shape), hint=linear.hint) if bias else total
    return b.cast(b.rounded(total, dtype), dtype) if dtype.is_narrow else total


def _few(sizes: tuple[Dim, ...], dtype: DType) -> bool:
    """True for few enough rows, or for little enough work, of fixed `sizes`: rows, features and what they share."""
    rows, features, deep = sizes
    if not (isinstance(rows, int) and isinstance(features, int) and isinstance(deep, int)):
        return False
    if dtype.is_narrow:
        return rows <= FEW
    return dtype is F32 and (rows * features >= RESULTS or deep <= SHALLOW) and rows * features * deep <= SMALL
