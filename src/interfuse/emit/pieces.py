"""Pieces of an axis between the ends of joined parts. In: statements with bounds. Out: the same for one piece, without
them.

Inside a piece every bound of its index is decided: loads need no test, the choice between parts is one of them, and
what only the others needed goes. Code for a piece is what it would be if nothing had been joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from interfuse.ir.index import Dim, Expr, unwrap
from interfuse.lower.bounds import at_least, holds
from interfuse.lower.kernel import Bound, Let, Load, Loop, Stmt, Store, Value, bounds_of, operands, walk

MOST_PIECES = 9
"""Pieces of one index that are written out; with more, each access tests its bounds."""


def pieces_of(body: Sequence[Stmt], expr: Expr, first: Dim | None, last: Dim | None) -> tuple[Bound, ...]:
    """What `expr`, which lies from `first` up to `last`, is split into by the bounds of `body`, in order.

    One piece where nothing splits it, or where the order of the ends depends on sizes.
    """
    whole = (Bound(expr, first, last),)
    ends = {unwrap(e) for s in walk(body) for b in bounds_of(s) if b.expr is expr for e in b.ends}
    ends -= {first, last}
    inside = [e for e in ends if (first is None or at_least(e, first)) and (last is None or at_least(last, e))]
    known = all(at_least(a, b) or at_least(b, a) for a in inside for b in inside)
    if not known or len(inside) < len(ends) or len(inside) >= MOST_PIECES:
        return whole
    ordered = sorted(inside, key=lambda e: sum(at_least(e, other) for other in inside))
    starts, stops = (first, *ordered), (*ordered, last)
    return tuple(Bound(expr, lo, hi) for lo, hi in zip(starts, stops, strict=True))


def span(piece: Bound) -> tuple[Dim, Dim]:
    """Where a piece of an axis starts and where it stops."""
    assert piece.hi is not None, "a piece of an axis has an end"
    return piece.lo or 0, piece.hi


def inside(body: Sequence[Stmt], piece: Bound) -> tuple[Stmt, ...]:
    """`body` for the indices in `piece`."""
    return tuple(_needed(_Decided(piece).body(body), set()))


class _Decided:
    """Rewrites statements with one more thing known."""

    def __init__(self, piece: Bound) -> None:
        self._known = (piece,)
        self._tests: dict[Value, bool] = {}
        self._to: dict[Value, Value] = {}
        self._nowhere: set[Value] = set()  # values that no index of the piece has

    def body(self, body: Sequence[Stmt]) -> list[Stmt]:
        """The statements that are left, in order."""
        return [new for s in body for new in self._statement(s)]

    def _left(self, bounds: Sequence[Bound]) -> tuple[Bound, ...] | None:
        """The bounds that are not decided; None where one never holds."""
        found = {b: holds(b, self._known) for b in bounds}
        return None if False in found.values() else tuple(b for b in bounds if found[b] is None)

    def _statement(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Loop):
            return [replace(s, body=tuple(self.body(s.body)))]
        if isinstance(s, Load):
            left, picks = self._left(s.within), tuple(replace(p, value=self._to.get(p.value, p.value)) for p in s.picks)
            if left is None or any(p.value in self._nowhere for p in picks):
                self._nowhere.add(s.out)
                return []
            return [replace(s, within=left, picks=picks)]
        if isinstance(s, Let):
            return self._let(s)
        to = self._to.get(s.arg, s.arg)
        if to.axes == s.arg.axes or isinstance(s, Store):
            return [replace(s, arg=to)]
        return [Let(s.arg, "copy", (to,)), s]  # a running total takes its parts one a lane

    def _let(self, s: Let) -> list[Stmt]:
        if s.op == "within":
            left = self._left(bounds_of(s))
            if not left:
                self._tests[s.out] = left is not None
            return [replace(s, attrs=(("bounds", left),))] if left else []
        args = tuple(self._to.get(a, a) for a in s.args)
        if s.op == "where" and (args[0] in self._tests or self._nowhere & {*args[1:]}):
            taken = self._tests.get(args[0], args[2] in self._nowhere)
            self._to[s.out] = args[1 if taken else 2]
            if self._to[s.out] in self._nowhere:
                self._nowhere.add(s.out)
            return []
        if self._nowhere & {*args}:
            self._nowhere.add(s.out)
            return []
        return [replace(s, args=args)]


def _needed(body: Sequence[Stmt], used: set[Value]) -> list[Stmt]:
    """The statements that stores, reductions and scans need; `used` gathers what they read."""
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Loop):
            s = replace(s, body=tuple(_needed(s.body, used)))
        elif isinstance(s, (Load, Let)) and s.out not in used:
            continue
        used.update(operands(s))
        kept.append(s)
    return kept[::-1]
