"""Sizes that a Triton kernel had better know to be multiples of 16. In: a kernel. Out: the names of such symbols.

Triton reads 16 bytes at a time where it can prove that a mask is the same for all of them and that rows begin at their
multiples. A size that changes between calls proves nothing; so a kernel whose vectors hang on one is compiled twice,
for multiples of 16 and for any size, and each launch takes the one that its sizes allow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from interfuse.emit.triton_lanes import Lane
from interfuse.ir.index import Expr, coefficient, symbols, wrap
from interfuse.lower.kernel import Kernel, Load, Store, walk

EVEN = "EVEN"
"""The constexpr that is 1 where the symbols are multiples of `MULTIPLE`, else 0."""

MULTIPLE = 16


def even_symbols(kernel: Kernel, lanes: Mapping[str, Lane]) -> tuple[str, ...]:
    """The symbols, in order, that must be multiples of 16 for accesses to be vectors that otherwise would not.

    They are factors of the extent of a lane axis along which elements follow each other, or of a distance in elements
    between rows. None for a packed kernel, whose members differ.
    """
    chosen: set[str] = set()
    if kernel.packed:
        return ()
    for s in walk(kernel.body):
        if isinstance(s, (Load, Store)):
            needs = _needs(s.index, lanes)
            found = [_factor(e, kernel.symbols, chosen) for e in needs]
            if None not in found:
                chosen |= {name for name in found if name}
    return tuple(name for name in kernel.symbols if name in chosen)


def _needs(index: Expr, lanes: Mapping[str, Lane]) -> list[Expr]:
    """What must be a multiple of 16 so that this access is in vectors; empty where it is in one lane or scattered."""
    present = {s.name for s in symbols(index)}
    along = [x for x in lanes.values() if coefficient(index, x.axis.symbol) == 1]
    if len(along) != 1 or any(x.axis.extent != 1 and x.axis.name not in present for x in lanes.values()):
        return []
    (lane,) = along
    rest = index - lane.axis.symbol
    ends = [wrap(lane.axis.extent)] if lane.passes_end and lane.axis.vector == 1 else []
    return [*ends, *(rest.args if rest.op == "add" else (rest,))]


def _factor(e: Expr, sizes: Collection[str], chosen: Collection[str]) -> str | None:
    """The size to know more of so that `e` is a multiple of 16: "" where it is one already, None where none helps."""
    if _divisor(e, chosen) % MULTIPLE == 0:
        return ""
    factors = e.args if e.op == "mul" else (e,)
    names = [f.name for f in factors if f.op == "sym" and f.name in sizes]
    return max(names, key=list(sizes).index, default=None)


def _divisor(e: Expr, even: Collection[str]) -> int:
    """A number that divides `e` where the symbols `even` are multiples of 16; 0 is divided by all."""
    if e.op == "const":
        return abs(e.value)
    if e.op == "sym":
        return MULTIPLE if e.name in even else 1
    parts = [_divisor(a, even) for a in e.args]
    return math.prod(parts) if e.op == "mul" else math.gcd(*parts) if e.op == "add" else 1
