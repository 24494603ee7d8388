"""Iteration domains. In: the outputs of a region and the nodes it reads. Out: the rows and columns that its kernel
walks.

A kernel walks `rows` by `cols`. Where the region reduces, every reduction must run over neighbouring dimensions of one
common size (the columns), with `inner` elements after them; every output has rows x cols x inner elements, or rows x
inner where the columns are reduced. Where it does not, the domain is the outputs' common element count, split so that
as many elements as possible lie on one axis along which each access has one stride. All sizes may be expressions over
size symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Dim, Expr, delinearize, linear, product, unwrap, wrap
from interfuse.ir.index import contiguous_strides as dense
from interfuse.ir.node import Node
from interfuse.ir.ops import JOINS, MOVES, POINTWISE, REDUCES, SCANS, TABLE


@dataclass(frozen=True)
class Domain:
    """rows x cols x inner; `reduces` tells whether the columns are the axis of reductions or scans, `backwards` whether
    they are walked from their end.
    """

    rows: Dim
    cols: Dim
    reduces: bool
    inner: Dim = 1
    backwards: bool = False

    @property
    def kept(self) -> Dim:
        """How many elements a reduction leaves."""
        return unwrap(self.rows * self.inner)

    @property
    def longest(self) -> int:
        """The most elements that a reduction meets."""
        return wrap(self.cols).hi


def inside(outputs: Iterable[Node], inputs: frozenset[Node]) -> list[Node]:
    """The nodes that compute `outputs` from `inputs`, operands first, inputs left out."""
    done: set[Node] = set(inputs)
    order: list[Node] = []
    for root in outputs:
        stack = [(root, 0)]
        while stack:
            node, k = stack.pop()
            if node in done:
                continue
            if k < len(node.inputs):
                stack += [(node, k + 1), (node.inputs[k], 0)]
            else:
                done.add(node)
                order.append(node)
    return order


def width(shape: tuple[Dim, ...], axes: Iterable[int]) -> Dim:
    """The elements that a reduction over `axes` meets."""
    return product(tuple(shape[a] for a in axes))


def check_operators(nodes: Iterable[Node], backend: str) -> None:
    """UnsupportedError for the first operator that `backend` ("triton" or "cpp") cannot write, with the table's
    reason.
    """
    for node in nodes:
        row = TABLE[node.op]
        spelled = row.triton if backend == "triton" else row.cpp
        if node.op in REDUCES or node.op in SCANS:
            continue
        if node.op in POINTWISE and not spelled.startswith("none: runs"):
            if spelled.startswith("none:") and node.op not in ("cast", "round"):
                raise UnsupportedError(f"{node.op}: {spelled[6:]}")
            continue
        if node.op in MOVES or node.op in JOINS or node.op in ("const", "iota", "gather"):
            continue
        raise UnsupportedError(
            f"{node.op}: {spelled[6:] if spelled.startswith('none: ') else 'cannot stand inside a kernel'}"
        )


def reduced(node: Node) -> tuple[Dim, Dim, Dim]:
    """(rows, cols, inner) of one reduction or scan; UnsupportedError where its axes are not neighbours."""
    shape = node.inputs[0].shape
    over = (node.attr("axis"),) if node.op in SCANS else node.attr("axes")
    axes = [a for a in over if shape[a] != 1]
    kept = [k for k, d in enumerate(shape) if d != 1 and k not in over]
    if any(min(axes) < k < max(axes) for k in kept if axes):
        raise UnsupportedError(f"{node.op} over axes {tuple(over)} of {list(shape)}: axes apart have no family yet")
    after = [k for k in kept if axes and k > max(axes)]
    rows, inner = (product(tuple(shape[k] for k in kept if (k in after) == later)) for later in (False, True))
    return rows, width(shape, axes), inner


@dataclass(frozen=True)
class Both:
    """What is reduced over all rows, and may be along rows as well: `domain` has the rows and columns, and `reduces`
    where rows are reduced; the reductions `over_rows` leave one element a column.
    """

    domain: Domain
    over_rows: tuple[Node, ...]


def find_both(nodes: Iterable[Node]) -> Both | None:
    """Rows and columns, where some reductions leave the columns and all others the rows; None where that is not so."""
    nodes = list(nodes)
    found = {n: reduced(n) for n in nodes if n.op in REDUCES or n.op in SCANS}
    along = {kind for kind in found.values() if kind[2] == 1 and kind[0] != 1}
    down = {kind for kind in found.values() if kind not in along}
    if len(along) > 1 or len(down) != 1:
        return None
    one, rows, cols = down.pop()
    over_rows = tuple(n for n, kind in found.items() if kind not in along and n.op in REDUCES)
    if one != 1 or not isinstance(cols, int) or cols == 1 or not over_rows or not along <= {(rows, cols, 1)}:
        return None
    return Both(Domain(rows, cols, bool(along), backwards=_backwards(nodes)), over_rows)


def _backwards(nodes: list[Node]) -> bool:
    """Whether the scans of a region run in reverse; UnsupportedError where one walk cannot serve all of them."""
    ways = {n.attr("reverse") for n in nodes if n.op in SCANS}
    if len(ways) > 1:
        raise UnsupportedError("scans forward and in reverse: one kernel walks one way")
    if True in ways and any(n.op in ("argmax", "argmin") for n in nodes):
        raise UnsupportedError("a scan in reverse and an arg-reduction: one kernel walks one way")
    return True in ways


def find(outputs: tuple[Node, ...], inputs: frozenset[Node]) -> Domain:
    """The domain of a region; UnsupportedError with the reason where one kernel cannot hold it.

    Sizes that are expressions count as equal where they are the same expression.
    """
    nodes = inside(outputs, inputs)
    sizes = {product(o.shape) for o in outputs}
    # Operands count too: a reduction of nothing has a result, which is no work for a kernel.
    if 0 in sizes or any(0 in m.shape for n in nodes for m in (n, *n.inputs)):
        raise UnsupportedError("empty tensor: nothing to launch")
    reductions = {reduced(n) for n in nodes if n.op in REDUCES or n.op in SCANS}
    if len(reductions) > 1:
        raise UnsupportedError(f"reductions of different shapes: {_listed(reductions)} (rows, columns, inner)")
    if not reductions:
        if len(sizes) > 1:
            raise UnsupportedError(f"outputs of different sizes: {_listed(sizes)}")
        return Domain(1, sizes.pop(), False)
    rows, cols, inner = reductions.pop()
    domain = Domain(rows, cols, True, inner, _backwards(nodes))
    if not sizes <= {domain.kept, unwrap(domain.kept * cols)}:
        raise UnsupportedError(f"outputs of {_listed(sizes)} elements do not fit {domain.kept} reductions of {cols}")
    return domain


def _listed(sizes: Iterable[object]) -> str:
    """Sizes as text, integers in order, expressions after them."""
    return f"[{', '.join(map(str, sorted(sizes, key=lambda d: (isinstance(d, Expr), str(d).rjust(40)))))}]"


def push(output: Node, core_index: tuple[Expr, ...], chain: list[Node]) -> tuple[Expr, ...]:
    """The index in `output` of the element that its core value has at `core_index`; `chain` leads from core to
    output.
    """
    index = core_index
    for node in chain:
        if node.op == "permute":
            index = tuple(index[p] for p in node.attr("order"))
        elif node.op == "slice":
            starts, steps = node.attr("starts"), node.attr("steps")
            index = tuple((i - a) * s for i, a, s in zip(index, starts, steps, strict=True))
        else:
            index = delinearize(linear(index, dense(node.inputs[0].shape)), node.shape)
    return index


def core_of(output: Node, inputs: frozenset[Node]) -> tuple[Node, list[Node]]:
    """The value behind reshapes, permutes, flips and copies at the end of `output`, and those movements, innermost
    first.
    """
    chain: list[Node] = []
    node = output
    while node not in inputs and (node.op in ("reshape", "permute", "copy") or _flips(node)):
        if node.op != "copy":
            chain.append(node)
        node = node.inputs[0]
    return node, chain[::-1]


def _flips(node: Node) -> bool:
    """True for a slice that keeps every element: along each dimension the same order, or the other way round."""
    whole = node.op == "slice" and node.shape == node.inputs[0].shape
    return whole and all(abs(s) == 1 for s in node.attr("steps"))


def pull(node: Node, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index in the operand of the movement `node` that its element at `index` comes from."""
    source = node.inputs[0]
    if node.op == "reshape":
        return delinearize(linear(index, dense(node.shape)), source.shape)
    if node.op == "permute":
        back = dict(zip(node.attr("order"), index, strict=True))
        return tuple(back[k] for k in range(len(index)))
    if node.op == "expand":
        return tuple(wrap(0) if a == 1 else i for a, i in zip(source.shape, index, strict=True))
    starts, steps = node.attr("starts"), node.attr("steps")
    return tuple(wrap(a) + s * i for a, s, i in zip(starts, steps, index, strict=True))
