"""The parts of joined values. In: a concat or pad at an index, what is known of it. Out: the parts that may hold it.

Each part comes with where it is read and with the bounds within which it may be read; all but the last also with the
bounds by which it is chosen before those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build
from interfuse.ir.index import Dim, Expr, add, combine, mul, substitute, symbols, wrap
from interfuse.ir.node import Node
from interfuse.ir.ops import JOINS
from interfuse.lower.bounds import both, bound, holds
from interfuse.lower.kernel import Bound

MOST_PARTS = 8
"""Parts of one joined value in a kernel: each is a test and a read of its own for every element."""

MOST_JOINED = 16
"""Parts of all joined values of a kernel."""

Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Space:
    """What indices are made of: the extents of the axes by their symbols, and `plain` for what stands for an axis.

    `by_index` tells whether parts of one value shall be read at one index where that can be.
    """

    axes: Mapping[Expr, Dim]
    plain: Mapping[Expr, Dim]
    by_index: bool = False


@dataclass(frozen=True)
class Part:
    """`node` at `index`, read `within` bounds; `chosen` where these hold, always where there are none."""

    node: Node
    index: Index
    within: tuple[Bound, ...]
    chosen: tuple[Bound, ...] = ()


def check_parts(nodes: Iterable[Node]) -> None:
    """UnsupportedError where a kernel would join more parts than pay."""
    counts = [len(n.inputs) if n.op == "concat" else 2 for n in nodes if n.op in JOINS]
    if max(counts, default=0) > MOST_PARTS:
        raise UnsupportedError(f"joins {max(counts)} parts: one kernel takes {MOST_PARTS} at most")
    if sum(counts) > MOST_JOINED:
        raise UnsupportedError(f"joins {sum(counts)} parts in all: one kernel takes {MOST_JOINED} at most")


def parts_of(node: Node, index: Index, within: tuple[Bound, ...], space: Space) -> list[Part]:
    """The parts of `node` that its element at `index` may come from, where `within` holds."""
    found = _concat(node, index, within, space) if node.op == "concat" else _pad(node, index, within, space)
    if len(found) > 1 and space.by_index and (folded := _folded(node)):
        return [_at_one_index(folded, node, index, within)]
    # Where no part can hold the index, nobody sees the value.
    return found or [Part(build.constant(0, node.dtype), (), within)]


def _tested(index: Dim, lo: Dim | None, hi: Dim | None, within: tuple[Bound, ...], space: Space) -> Bound | bool:
    """The bound lo <= index < hi, or whether it holds where that is known. UnsupportedError where the index is worked
    out anew for every element, by dividing by a size that changes.
    """
    b = bound(substitute(index, space.plain), lo, hi, space.axes)
    if isinstance(b, bool):
        return b
    known = holds(b, within)
    if known is None and _turns(b.expr, space):
        raise UnsupportedError("joined parts are needed in another order than they are made, and sizes change")
    return b if known is None else known


def _turns(index: Expr, space: Space) -> bool:
    """True where what several axes tell is divided by a size that changes: the order of the value is not the axes'."""
    divides = index.op in ("floordiv", "mod") and index.args[1].op != "const"
    mixed = divides and len(symbols(index.args[0]) & space.axes.keys()) > 1
    return mixed or any(_turns(a, space) for a in index.args)


def _concat(node: Node, index: Index, within: tuple[Bound, ...], space: Space) -> list[Part]:
    axis, found, start = node.attr("axis"), list[Part](), wrap(0)
    at = index[axis]
    for part in node.inputs:
        end = add(start, part.shape[axis])
        here = _tested(at, start, end, within, space)
        before = _tested(at, None, end, within, space)
        if here is not False:
            moved = (*index[:axis], add(at, mul(start, -1)), *index[axis + 1 :])
            chosen = (before,) if isinstance(before, Bound) else ()
            found.append(Part(part, moved, both(within, here) if isinstance(here, Bound) else within, chosen))
        if before is True:
            break
        start = end
    if found:
        last = found.pop()
        found.append(Part(last.node, last.index, last.within))
    return found


def _pad(node: Node, index: Index, within: tuple[Bound, ...], space: Space) -> list[Part]:
    (x,) = node.inputs
    chosen, inside = within, list[Expr]()
    tests = list[Bound]()
    outside = Part(build.constant(node.attr("value"), node.dtype), (), ())
    for at, lo, size in zip(index, node.attr("lo"), x.shape, strict=True):
        inside.append(add(at, mul(lo, -1)))
        test = _tested(at, lo, add(lo, size), within, space)
        if test is False:
            return [outside]
        if isinstance(test, Bound):
            tests.append(test)
            chosen = both(chosen, test)
    here = Part(x, tuple(inside), chosen, tuple(tests))
    return [here, outside] if tests else [here]


@dataclass(frozen=True)
class _Way:
    """A part of a value: its element k is the value's element first + step * k. `op` joins it to those before it."""

    start: int
    first: int
    step: int
    op: str = ""


LONGEST = 1 << 14
"""Elements of an axis up to which its parts are tried as one index."""


@lru_cache(maxsize=256)
def _folded(node: Node) -> tuple[Node, tuple[_Way, ...]] | None:
    """The value that all parts of a concat are parts of, where the smaller or larger of their indices is always the
    right one: what a padding reflects or repeats at an end. None for any other.
    """
    axis, ways, places, start = node.attr("axis", -1), list[_Way](), list[int](), 0
    size = node.shape[axis] if node.op == "concat" else None
    if not isinstance(size, int) or size > LONGEST:
        return None
    bases = set()
    for part in node.inputs:
        base, first, step = _within_base(part, axis)
        bases.add(base)
        mine = [first + step * (i - start) for i in range(size)]
        wanted = [*places[:start], *mine[start:]]
        op = "" if not ways else next((op for op, f in _JOINT.items() if list(map(f, places, mine)) == wanted), None)
        if op is None or not isinstance(first, int):
            return None
        ways.append(_Way(start, first, step, op))
        start, places = start + part.shape[axis], wanted
    return (bases.pop(), tuple(ways)) if len(bases) == 1 else None


_JOINT: Mapping[str, Callable[[int, int], int]] = {"max": max, "min": min}


def _within_base(part: Node, axis: int) -> tuple[Node, int, int]:
    """(value, first, step): the part as elements of a value along one axis; itself where it is nothing less."""
    step = 0 if part.op == "expand" and part.inputs[0].shape == _one_along(part.shape, axis) else 1
    inner = part.inputs[0] if step == 0 else part
    if inner.op == "slice":
        (x,), starts, steps = inner.inputs, inner.attr("starts"), inner.attr("steps")
        others = [k for k in range(len(x.shape)) if k != axis]
        if all(starts[k] == 0 and steps[k] == 1 and inner.shape[k] == x.shape[k] for k in others):
            return x, starts[axis], step * steps[axis]
    return part, 0, 1


def _one_along(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _at_one_index(folded: tuple[Node, tuple[_Way, ...]], node: Node, index: Index, within: tuple[Bound, ...]) -> Part:
    """The value behind the parts, at the index that is right for all of them."""
    base, ways = folded
    axis = node.attr("axis")
    at = wrap(0)
    for way in ways:
        mine = add(way.first - way.step * way.start, mul(index[axis], way.step))
        at = combine(way.op, (at, mine)) if way.op else mine
    return Part(base, (*index[:axis], at, *index[axis + 1 :]), within)
