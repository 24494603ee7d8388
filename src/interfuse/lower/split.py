"""Reductions in parts. In: a region with long reductions and few results. Out: the works of kernels that follow each
other.

Where a program a result would leave most of the device idle, each reduction is cut into parts: a first kernel reduces
every part, a second joins the parts, and what needs the results beside whole rows is a third. The parts are a matter of
sizes alone, never of how many threads there are, and are joined in order: bits repeat.

A part is a dimension of its own: reduce(x[.., n, ..]) = join(reduce(x[.., k, n / k, ..])). Where n has no fitting
divisor, the elements past the last whole part are a kernel's work of their own. Of reduced dimensions apart from each
other the first kernel takes the longest, cut or whole, and the one that joins takes the others too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from interfuse.ir import build as b
from interfuse.ir.index import Dim, product, wrap
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, with_inputs
from interfuse.ir.ops import REDUCES, SCANS
from interfuse.lower.domain import Digits, Domain, by_step, find, inside
from interfuse.lower.families import walked
from interfuse.lower.kernel import MOMENTS, PLACES
from interfuse.lower.scan_parts import split_scans
from interfuse.lower.statistics import expand_statistics, join_statistics
from interfuse.lower.target import FEW, PARTED, Target
from interfuse.lower.work import Work

PART = 1 << 12
"""Elements of a part at least, twice as many of rows on a GPU: what its result takes is then nothing beside what it
reads."""

ALIGNED = 16
"""Parts start at multiples of so many elements where they can: vectors then do, too."""

FEW_PARTS = 64
"""Parts of a row that every program reads what they give of, beside what it has of the row itself."""

_BINARY = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
"""What joins two results of a reduction."""


@dataclass(frozen=True)
class Parts:
    """`count` parts of `width` elements each, and `rest` elements after them."""

    count: int
    width: int
    rest: int


def split(work: Work, target: Target, width: int = 0) -> tuple[Work, ...]:
    """The works that compute `work` in parts, in order, of about a `width` where one is given; none where one kernel
    has programs enough, or must do it all.

    What a work gives and a later one reads is among its outputs, contiguous.
    """
    plain = work.roots or work.outputs
    nodes = inside(plain, work.inputs)
    if any(n.op in SCANS for n in nodes):
        return split_scans(work, plain, target)
    if not any(n.op in REDUCES for n in nodes):
        return ()
    roots = join_statistics(plain, work.inputs)
    nodes = inside(roots, work.inputs)
    first = [n for n in nodes if n.op in REDUCES and not any(m.op in REDUCES for m in inside(n.inputs, work.inputs))]
    if not first or not find(roots, work.inputs).reduces:
        return ()
    layouts = dict(work.layouts) | {n: contiguous(n.shape) for n in first}
    domain = walked(Work(tuple(first), work.inputs, layouts, tuple(first)), target)
    parts = parts_of(domain, target, any(n.op in MOMENTS for n in first), width)
    if parts is None:
        return ()
    if parts.rest and any(n.op in PLACES for n in first):
        return ()
    cuts = [Cut(n, domain.digits, parts) for n in first]
    joined = {c.node: c.joined() for c in cuts}
    return _works(work, roots, cuts, joined, domain, target)


def parts_of(domain: Domain, target: Target, moments: bool = False, width: int = 0) -> Parts | None:
    """How the columns of a domain are cut: into four parts a program that the device could run, or fewer large ones,
    of a `width` at least if it is given; rows whose `moments` are wanted into as many as a GPU program holds at once,
    if every program can join those.

    Of columns apart, the longest dimension is.
    """
    rows, cols, inner = domain.rows, domain.cols, domain.inner
    if not isinstance(rows, int) or not isinstance(inner, int) or not isinstance(cols, int):
        return None
    if domain.apart:
        if rows * cols * inner < PARTED:
            return None
        longest, sizes = _longest(domain.digits), tuple(d.size for d in domain.digits)
        found = parts_of(Domain(product(sizes[:longest]), sizes[longest], True, product(sizes[longest + 1 :])), target)
        return Parts(1, wrap(sizes[longest]).hi, 0) if found is None or found.rest else found
    lanes = min(inner, target.side)
    programs = rows * math.ceil(inner / lanes)
    least = width or (2 * PART if inner == 1 and target.backend == "triton" else PART)
    wanted = min(math.ceil(4 * target.enough / programs), cols * lanes // least)
    held = cols // target.share if moments and inner == 1 and target.backend == "triton" else 0
    wanted = max(wanted, held if held <= FEW_PARTS else 0)
    if programs >= target.enough or (not width and rows * cols * inner < PARTED) or wanted < 2:
        return None
    whole = [k for k in range(wanted // 2 + 1, 2 * wanted) if cols % k == 0]
    if whole:
        steps = target.tile_elements // lanes if inner != 1 and target.backend == "triton" else ALIGNED
        count = min(whole, key=lambda k: ((cols // k) % steps != 0, abs(k - wanted)))
        return Parts(count, cols // count, 0) if count > 1 else None
    width = cols // wanted
    width -= width % ALIGNED if width > ALIGNED else 0
    return Parts(cols // width, width, cols % width)


def _longest(digits: Digits) -> int:
    """Which of the reduced dimensions has the most elements."""
    return max((k for k, d in enumerate(digits) if d.kind == "col"), key=lambda k: wrap(digits[k].size).hi)


class Cut:
    """One reduction of a domain in parts: what each part gives (`of_parts`, with a dimension for the parts), and what
    the elements after them give (`of_rest`; nothing where there are none). `head` is what is reduced with a dimension
    for the parts, `axis`; `axes` are those that are reduced where parts are joined.
    """

    def __init__(self, node: Node, digits: Digits, parts: Parts) -> None:
        self.node, self.parts, self.digits = node, parts, digits
        order = by_step(digits)  # of the node's dimensions; the kernel walks the digits in their own
        x = b.reshape(node.inputs[0], tuple(digits[k].size for k in order))
        x = b.permute(x, tuple(order.index(k) for k in range(len(digits))))
        self.axis = _longest(digits)
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        self.axes = tuple(k for k, d in enumerate(digits) if d.kind == "col")
        whole = parts.count * parts.width
        flat = b.reshape(x, (*before, whole + parts.rest, *after))
        self.head = b.reshape(_piece(flat, self.axis, 0, whole), (*before, parts.count, parts.width, *after))
        self._tail = _piece(flat, self.axis, whole, parts.rest) if parts.rest else None

    def of_parts(self, op: str) -> Node:
        """The reduction `op` of each part."""
        return b.reduce(op, self.head, (self.axis + 1,), hint=f"{self.node.hint or op}_parts")

    def of_rest(self, op: str) -> Node | None:
        """The reduction `op` of what comes after the parts."""
        return (
            None if self._tail is None else b.reduce(op, self._tail, (self.axis,), hint=f"{self.node.hint or op}_rest")
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The reductions of parts from which the result is joined."""
        op = self.node.op
        more = {"expsum": "max", "argmax": "max", "argmin": "min", "spread": "mean", "mean": "spread"}
        return (op, more[op]) if op in more else (op,)

    def joined(self) -> Node:
        """The result of all elements, from the results of parts and rest."""
        op = self.node.op
        if op in _BINARY:
            found = self._both(op, b.reduce(op, self.of_parts(op), self.axes))
        else:
            found = {"expsum": self._expsum, "mean": self._mean, "spread": self._spread}.get(op, self._place)()
        return b.reshape(b.permute(found, tuple(by_step([d for d in self.digits if d.kind != "col"]))), self.node.shape)

    def _both(self, op: str, found: Node) -> Node:
        rest = self.of_rest(op)
        return found if rest is None else b.apply(_BINARY[op], found, rest)

    def _everywhere(self, kept: Node) -> Node:
        """A joined value beside every part."""
        return b.spread_over(kept, self.of_parts(self.node.op), self.axes)

    def _expsum(self) -> Node:
        top = self._both("max", b.reduce("max", self.of_parts("max"), self.axes))
        weight = b.apply("exp", b.apply("sub", self.of_parts("max"), self._everywhere(top)))
        total = b.reduce("sum", b.apply("mul", self.of_parts("expsum"), weight), self.axes)
        rest, rest_top = self.of_rest("expsum"), self.of_rest("max")
        if rest is None or rest_top is None:
            return total
        return b.apply("add", total, b.apply("mul", rest, b.apply("exp", b.apply("sub", rest_top, top))))

    def _head_mean(self) -> Node:
        """The mean of all parts, which are equally long."""
        return b.reduce("mean", self.of_parts("mean"), self.axes)

    def _mean(self) -> Node:
        head, rest = self._head_mean(), self.of_rest("mean")
        if rest is None:
            return head
        whole = self.parts.count * self.parts.width
        share = b.apply("mul", b.apply("sub", rest, head), b.like(self.parts.rest / (whole + self.parts.rest), head))
        return _finite_or(b.apply("add", head, share), b.apply("add", head, rest))

    def _spread(self) -> Node:
        between = b.apply(
            "mul", b.reduce("spread", self.of_parts("mean"), self.axes), b.like(self.parts.width, self._head_mean())
        )
        head = b.apply("add", b.reduce("sum", self.of_parts("spread"), self.axes), between)
        rest, mean = self.of_rest("spread"), self.of_rest("mean")
        if rest is None or mean is None:
            return head
        gap, whole = b.apply("sub", mean, self._head_mean()), self.parts.count * self.parts.width
        share = b.like(whole * self.parts.rest / (whole + self.parts.rest), head)
        return b.apply("add", b.apply("add", head, rest), b.apply("mul", b.apply("mul", gap, gap), share))

    def _place(self) -> Node:
        """argmax and argmin: the place within the part that has the first of the best."""
        op, places = self.node.op, self.of_parts(self.node.op)
        best = b.reduce(op, self.of_parts("max" if op == "argmax" else "min"), (self.axis,))
        along = tuple(d if k == self.axis else 1 for k, d in enumerate(places.shape))
        part = b.expand(b.reshape(b.iota(self.parts.count), along), places.shape)
        at = b.apply("add", places, b.apply("mul", part, b.like(self.parts.width, part)))
        mine = b.apply("where", b.apply("eq", part, self._everywhere(best)), at, b.like(0, at))
        return b.reduce("sum", mine, (self.axis,))


def _finite_or(x: Node, other: Node) -> Node:
    """x where it is a finite number."""
    return b.apply("where", b.apply("eq", b.apply("sub", x, x), b.like(0, x)), x, other)


def _piece(x: Node, axis: int, start: int, size: int) -> Node:
    shape = tuple(size if k == axis else d for k, d in enumerate(x.shape))
    return b.take_slice(x, tuple(start if k == axis else 0 for k in range(len(shape))), shape)


def _works(
    work: Work, roots: tuple[Node, ...], cuts: list[Cut], joined: dict[Node, Node], domain: Domain, target: Target
) -> tuple[Work, ...]:
    """The kernels' works: parts, the rest's where there is one, what joins them, and what is left."""
    partial = tuple(dict.fromkeys(c.of_parts(op) for c in cuts for op in c.needs))
    rest = tuple(dict.fromkeys(r for c in cuts for op in c.needs if (r := c.of_rest(op)) is not None))
    held = frozenset((*partial, *rest))
    ends = replaced(roots, work.inputs, joined)
    made = frozenset(joined.values())
    small = [k for k, r in enumerate(ends) if is_small(r, work.inputs | made, domain.kept)]
    left = [k for k in range(len(ends)) if k not in small]
    needed = inside([ends[k] for k in left], work.inputs | made)
    read = dict.fromkeys(i for n in needed for i in n.inputs if i in made)
    layouts = dict(work.layouts) | {n: contiguous(n.shape) for n in (*partial, *rest, *read)}
    few = wrap(domain.kept).hi <= FEW or cuts[0].parts.count <= FEW_PARTS
    rows = few and domain.inner == 1 and not domain.apart
    if target.backend == "triton" and rows and not small and not rest and _joined_anywhere(cuts, needed):
        roots = expand_statistics(tuple(ends[k] for k in left), work.inputs | held)
        ahead = frozenset(n for n in inside(roots, work.inputs | held) if n.op in REDUCES)
        return Work(partial, work.inputs, layouts), Work(work.outputs, work.inputs | held, layouts, roots, ahead=ahead)
    works = [Work(partial, work.inputs, layouts)] + ([Work(rest, work.inputs, layouts)] if rest else [])
    outputs = (*read, *(work.outputs[k] for k in small))
    works.append(Work(outputs, work.inputs | held, layouts, (*read, *(ends[k] for k in small))))
    if left:
        last = Work(
            tuple(work.outputs[k] for k in left), work.inputs | frozenset(read), layouts, tuple(ends[k] for k in left)
        )
        works += split(last, target) or (last,)
    return tuple(works)


def _joined_anywhere(cuts: list[Cut], needed: list[Node]) -> bool:
    """True where every program may as well join all parts of a row for itself: a number or two each, and nothing else
    to reduce.
    """
    joins = (*_BINARY, "expsum", "mean", "spread")
    return all(c.node.op in joins for c in cuts) and not any(n.op in REDUCES for n in needed)


def is_small(root: Node, inputs: frozenset[Node], size: Dim) -> bool:
    """True where `root` is computed from `inputs` without reductions, nothing having more elements than `size`."""
    nodes = inside((root,), inputs)
    most = wrap(size).hi
    return all(wrap(n.size).hi <= most for n in (root, *nodes)) and not any(n.op in REDUCES for n in nodes)


def replaced(roots: tuple[Node, ...], inputs: frozenset[Node], by: dict[Node, Node]) -> tuple[Node, ...]:
    """The roots with what `by` replaces."""
    memo: dict[Node, Node] = {i: i for i in inputs}
    for node in inside(roots, inputs):
        memo[node] = by.get(node) or with_inputs(node, tuple(memo[i] for i in node.inputs))
    return tuple(memo[r] for r in roots)
