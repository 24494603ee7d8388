"""How accesses lie. In: a kernel. Out: the share of its accesses whose lanes do not lie side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from interfuse.ir.index import Expr, at_sizes, combine, symbols
from interfuse.lower.bounds import share
from interfuse.lower.kernel import Kernel, Load, Store, bounds_of, first_step, walk


def strided_share(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """The share of accesses whose neighbours do not lie side by side along any axis of lanes. What is read within
    bounds counts as often as it is read.
    """
    extents = {a.name: at_sizes(a.extent, sizes) for a in kernel.axes}
    accesses = [
        (replace(s, index=_straight(s.index)), math.prod(share(b, extents, sizes) for b in bounds_of(s)))
        for s in walk(kernel.body)
        if isinstance(s, (Load, Store))
    ]
    lanes = [a.symbol for a in kernel.axes if a.block > 1] or [kernel.axes[-1].symbol]
    places = [a.symbol for a in kernel.axes]
    bad = sum(w for s, w in accesses if all(first_step(s, lane, places) not in (0, 1, -1) for lane in lanes))
    return bad / max(sum(w for _, w in accesses), 1)


def _straight(index: Expr) -> Expr:
    """The index as it is where nothing is at its least or most: past the ends that a padding reflects or repeats."""
    if not index.args:
        return index
    if index.op in ("min", "max"):
        return max((_straight(a) for a in index.args), key=lambda a: len(symbols(a)))
    return combine(index.op, [_straight(a) for a in index.args])
