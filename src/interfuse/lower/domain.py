"""Iteration domains. In: the outputs of a region and the nodes it reads. Out: the rows and columns that its kernel
walks.

A kernel walks `rows` by `cols`. Where the region reduces, every reduction must run over dimensions of one common size
(the columns) that lie alike in its operand, with `inner` elements after them; every output has rows x cols x inner
elements, or rows x inner where the columns are reduced. Where it does not, the domain is the outputs' common element
count, split so that as many elements as possible lie on one axis along which each access has one stride. All sizes may
be expressions over size symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import INF, Dim, Expr, delinearize, linear, product, unwrap, wrap
from interfuse.ir.index import contiguous_strides as dense
from interfuse.ir.node import Node
from interfuse.ir.ops import JOINS, MOVES, POINTWISE, REDUCES, SCANS, TABLE


class Digit(NamedTuple):
    """A part of the domain: `size` indices of what is kept ("row" before the last that is reduced, "inner" after it) or
    reduced ("col"), `step` elements apart in the order of the nodes' dimensions.
    """

    kind: str
    size: Dim
    step: Dim


Digits = tuple[Digit, ...]
"""How kept and reduced dimensions alternate, outermost first."""


@dataclass(frozen=True)
class Domain:
    """rows x cols x inner; `reduces` tells whether the columns are the axis of reductions or scans, `backwards`
    whether they are walked from their end. There are `most` columns at most, where that is known.

    Where rows, columns and inner are not neighbours in the order of the nodes' dimensions, `parts` says what they are
    made of, in the order in which they are walked; else it is empty.
    """

    rows: Dim
    cols: Dim
    reduces: bool
    inner: Dim = 1
    backwards: bool = False
    parts: Digits = ()
    most: int = INF

    @property
    def digits(self) -> Digits:
        """What the domain is made of."""
        plain = (("row", self.rows, self.cols * self.inner), ("col", self.cols, self.inner), ("inner", self.inner, 1))
        return self.parts or tuple(Digit(k, d, unwrap(wrap(step))) for k, d, step in plain if d != 1)

    @property
    def apart(self) -> bool:
        """True where the columns are dimensions apart."""
        return sum(d.kind == "col" for d in self.parts) > 1

    @property
    def kept(self) -> Dim:
        """How many elements a reduction leaves."""
        return unwrap(self.rows * self.inner)

    @property
    def longest(self) -> int:
        """The most elements that a reduction meets."""
        return min(wrap(self.cols).hi, self.most)

    def place(self, row: Expr, col: Expr, inner: Expr) -> Expr:
        """The place of an element among all rows x cols x inner."""
        if not self.parts:
            return (row * self.cols + col) * self.inner + inner
        return linear(self._spread({"row": row, "col": col, "inner": inner}), tuple(d.step for d in self.parts))

    def kept_place(self, row: Expr, inner: Expr) -> Expr:
        """The place of what a reduction leaves among all of its kind."""
        return self._place_among({"row": row, "inner": inner}) if self.parts else row * self.inner + inner

    def reduced_place(self, col: Expr) -> Expr:
        """The place of a column among the elements of a reduction."""
        return self._place_among({"col": col}) if self.parts else col

    def _spread(self, axes: dict[str, Expr]) -> tuple[Expr, ...]:
        """The index along each digit of these axes, in the order of the digits."""
        own = {k: iter(delinearize(i, tuple(d.size for d in self.parts if d.kind == k))) for k, i in axes.items()}
        return tuple(next(own[d.kind]) for d in self.parts if d.kind in axes)

    def _place_among(self, axes: dict[str, Expr]) -> Expr:
        """The place among the elements along these axes alone, in the order of the nodes' dimensions."""
        digits = [d for d in self.parts if d.kind in axes]
        order = by_step(digits)
        index = self._spread(axes)
        return linear(tuple(index[k] for k in order), dense(tuple(digits[k].size for k in order)))


def by_step(digits: Sequence[Digit]) -> list[int]:
    """The digits, by number, in the order of the nodes' dimensions."""
    return sorted(range(len(digits)), key=lambda k: -wrap(digits[k].step).hi)


def domain_of(digits: Digits, backwards: bool = False) -> Domain:
    """The domain of reductions that is made of these digits. Neighbours of a kind become one."""
    parts = merged(digits)
    rows, cols, inner = (product(tuple(d.size for d in parts if d.kind == k)) for k in ("row", "col", "inner"))
    plain = Domain(rows, cols, True, inner, backwards)
    return plain if plain.digits == parts else replace(plain, parts=parts)


def merged(digits: Digits) -> Digits:
    """The digits with neighbours of a kind as one where each step of the one is a whole round of the other."""
    found: list[Digit] = []
    for d in digits:
        last = found[-1] if found else None
        if last is not None and last.kind == d.kind and last.step == unwrap(wrap(d.step) * d.size):
            found[-1] = Digit(d.kind, unwrap(wrap(last.size) * d.size), d.step)
        else:
            found.append(d)
    return tuple(found)


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


def above(nodes: Iterable[Node], some: Iterable[Node]) -> set[Node]:
    """`some` and those of `nodes`, which come operands first, that are computed from them."""
    found = set(some)
    for n in nodes:
        if not found.isdisjoint(n.inputs):
            found.add(n)
    return found


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


def digits_of(node: Node) -> Digits:
    """How kept and reduced dimensions alternate in the operand of a reduction or scan."""
    shape = node.inputs[0].shape
    over = (node.attr("axis"),) if node.op in SCANS else node.attr("axes")
    last = max((a for a in over if shape[a] != 1), default=len(shape))
    kinds = ("col" if k in over else "row" if k < last else "inner" for k in range(len(shape)))
    return tuple(Digit(k, d, step) for k, d, step in zip(kinds, shape, dense(shape), strict=True) if d != 1)


def reduced(node: Node) -> tuple[Dim, Dim, Dim]:
    """(rows, cols, inner) of one reduction or scan; UnsupportedError where its axes are not neighbours."""
    domain = domain_of(digits_of(node))
    if domain.apart:
        raise UnsupportedError(f"{node.op} over axes {tuple(node.attr('axes'))} of {list(node.inputs[0].shape)}: apart")
    return domain.rows, domain.cols, domain.inner


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
    over = [n for n in nodes if n.op in REDUCES or n.op in SCANS]
    if any(domain_of(digits_of(n)).apart for n in over):
        return None
    found = {n: reduced(n) for n in over}
    along = {kind for kind in found.values() if kind[2] == 1 and kind[0] != 1}
    down = {kind for kind in found.values() if kind not in along}
    if len(along) > 1 or len(down) != 1:
        return None
    one, rows, cols = down.pop()
    over_rows = tuple(n for n, kind in found.items() if kind not in along and n.op in REDUCES)
    if one != 1 or not isinstance(cols, int) or cols == 1 or not over_rows or not along <= {(rows, cols, 1)}:
        return None
    return Both(Domain(rows, cols, bool(along), backwards=_backwards(nodes)), over_rows)


def bytes_read(inputs: Iterable[Node], domain: Domain) -> int:
    """Bytes of the inputs for each element of rows x columns; what is not so large is left out."""
    whole = product((domain.rows, domain.cols))
    return max(1, sum(n.dtype.bytes for n in inputs if n.size is whole or n.size == whole))


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
    ways = {domain_of(digits_of(n)) for n in nodes if n.op in REDUCES or n.op in SCANS}
    if len(ways) > 1:
        shapes = _listed([(d.rows, d.cols, d.inner) for d in ways])
        raise UnsupportedError(f"reductions of different shapes: {shapes} (rows, columns, inner)")
    if not ways:
        if len(sizes) > 1:
            raise UnsupportedError(f"outputs of different sizes: {_listed(sizes)}")
        return Domain(1, sizes.pop(), False)
    domain = replace(ways.pop(), backwards=_backwards(nodes))
    if not sizes <= {domain.kept, unwrap(domain.kept * domain.cols)}:
        found = f"{domain.kept} reductions of {domain.cols}"
        raise UnsupportedError(f"outputs of {_listed(sizes)} elements do not fit {found}")
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
