"""Bounds of indices. In: an index, the ends between which a part holds it, what is known. Out: the plainest test of it.

A part of a joined value holds the indices from `lo` up to `hi`. Written of the index alone, the test follows what the
index is made of; here it is turned into one of as few axes as possible, with everything that is fixed in its ends:
0 <= (col // 64) - s0 < 5 is 64*s0 <= col < 64*s0 + 320, which holds for one piece of the axis `col`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from interfuse.ir.index import (
    Dim,
    Expr,
    add,
    at_sizes,
    const,
    floordiv,
    linear_terms,
    maximum,
    minimum,
    mod,
    mul,
    substitute,
    sym,
    symbols,
    unwrap,
    wrap,
)
from interfuse.lower.kernel import Bound


def at_least(a: Dim, b: Dim) -> bool:
    """True where a >= b whatever the symbols are."""
    return add(a, mul(b, -1)).lo >= 0


def bound(index: Dim, lo: Dim | None, hi: Dim | None, axes: Mapping[Expr, Dim]) -> Bound | bool:
    """The test lo <= index < hi in its plainest form; True or False where it is decided.

    `axes` gives the extent of each axis by its symbol; every other symbol is a size.
    """
    e, ends = wrap(index), [None if end is None else wrap(end) for end in (lo, hi)]
    while True:
        found = _plainer(e, ends, axes)
        if found is None:
            break
        e, ends = found
    return _trimmed(e, ends[0], ends[1], axes)


def _plainer(e: Expr, ends: list[Expr | None], axes: Mapping[Expr, Dim]) -> tuple[Expr, list[Expr | None]] | None:
    """An equal test of a plainer index, or None."""
    parts = linear_terms(e)
    fixed = [mul(factor, k) for factor, k in parts.items() if not symbols(factor) & axes.keys()]
    if fixed and len(fixed) < len(parts):
        away = mul(functools.reduce(add, fixed), -1)
        return add(e, away), [end if end is None else add(end, away) for end in ends]
    if len(parts) == 1:
        ((factor, k),) = parts.items()
        if k < 0:  # lo <= -x < hi is 1 - hi <= x < 1 - lo
            return mul(e, -1), [None if end is None else add(mul(end, -1), 1) for end in reversed(ends)]
        if k > 1:
            return factor, [None if end is None else floordiv(add(end, k - 1), k) for end in ends]
        if factor.op == "floordiv":
            whole, n = factor.args
            return whole, [None if end is None else mul(end, n) for end in ends]
    # With both ends multiples of k, lo <= e < hi is lo / k <= e // k < hi / k.
    for k in sorted({abs(k) for k in parts.values()} - {1}, reverse=True):
        quotient = floordiv(e, k)
        if quotient.op != "floordiv" and all(end is None or mod(end, k) is wrap(0) for end in ends):
            return quotient, [None if end is None else floordiv(end, k) for end in ends]
    return None


def limit(e: Expr, axes: Mapping[Expr, Dim]) -> Dim:
    """What `e` stays below."""
    if e in axes:
        return axes[e]
    return e.args[1] if e.op == "mod" else add(e.hi, 1)


def _trimmed(e: Expr, lo: Expr | None, hi: Expr | None, axes: Mapping[Expr, Dim]) -> Bound | bool:
    """The bound without ends that hold anyhow."""
    if lo is not None and at_least(e.lo, lo):
        lo = None
    if hi is not None and at_least(hi, limit(e, axes)):
        hi = None
    if lo is None and hi is None:
        return True
    never = (lo is not None and at_least(lo, limit(e, axes))) or (hi is not None and at_least(e.lo, hi))
    return False if never else Bound(e, lo and unwrap(lo), hi and unwrap(hi))


def holds(b: Bound, known: Collection[Bound]) -> bool | None:
    """Whether `b` holds where all of `known` do; None where they do not decide it."""
    for k in known:
        if k.expr is not b.expr:
            continue
        low = b.lo is None or (k.lo is not None and at_least(k.lo, b.lo))
        high = b.hi is None or (k.hi is not None and at_least(b.hi, k.hi))
        if low and high:
            return True
        if (k.hi is not None and b.lo is not None and at_least(b.lo, k.hi)) or (
            k.lo is not None and b.hi is not None and at_least(k.lo, b.hi)
        ):
            return False
    return None


def both(known: tuple[Bound, ...], more: Bound) -> tuple[Bound, ...]:
    """`known` and one more; two bounds of one expression become one."""
    for k, b in enumerate(known):
        if b.expr is more.expr:
            lo = b.lo if more.lo is None else more.lo if b.lo is None else unwrap(maximum(b.lo, more.lo))
            hi = b.hi if more.hi is None else more.hi if b.hi is None else unwrap(minimum(b.hi, more.hi))
            return (*known[:k], Bound(b.expr, lo, hi), *known[k + 1 :])
    return (*known, more)


def narrowed(e: Expr, known: Collection[Bound]) -> Expr:
    """`e` with the interval that `known` leaves to each axis: to tell what `e` may be, not which axes are in it."""
    inside: dict[Expr, Dim] = {}
    for b in known:
        if b.expr.op == "sym":
            lo, hi = (None if end is None else wrap(end) for end in (b.lo, b.hi))
            low = b.expr.lo if lo is None else max(b.expr.lo, lo.lo)
            high = b.expr.hi if hi is None else min(b.expr.hi, hi.hi - 1)
            if low <= high:
                inside[b.expr] = sym(b.expr.name, low, high)
    return substitute(e, inside) if inside else e


def share(b: Bound, extents: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """The share of the indices that `b` lets through; `extents` gives the axes' by name, `sizes` the size symbols."""
    at = {s: sym(s.name, 0, max(extents[s.name] - 1, 0)) for s in symbols(b.expr) if s.name in extents}
    at |= {s: const(at_sizes(s, sizes)) for s in symbols(b.expr) - at.keys()}
    e = substitute(b.expr, at)
    lo = e.lo if b.lo is None else max(e.lo, at_sizes(b.lo, sizes))
    hi = e.hi + 1 if b.hi is None else min(e.hi + 1, at_sizes(b.hi, sizes))
    return max(0, hi - lo) / max(e.hi + 1 - e.lo, 1)
