"""8-bit codes of a row that is divided by its own largest element. In: a tidied Kernel. Out: an equal Kernel.

Where d is max |x| / 127, no x / d is far beyond 127: limits to both sides change no code, an addition that leaves no
digits behind the point rounds, and no division meets what is infinite. Only a row whose d is NaN, infinite, 0 or nearly
so needs all that is written; one test of d a row tells it from the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from interfuse.emit.triton_lanes import lanes_of
from interfuse.emit.triton_prelude import LARGEST
from interfuse.ir.dtypes import F32, I8
from interfuse.lower.kernel import Kernel, Let, Loop, Reduce, Role, Stmt, Store, Value, operands, walk

CODES = {I8: 127.0, **LARGEST}
"""The largest number of each type, with which the smallest one agrees but for its sign."""

ROUNDED = 1 + 2.0**-20
"""What a few roundings may add to a quotient at most."""


@dataclass(frozen=True)
class _Chain:
    """From a division to the value that is stored: what lies between is `dropped`."""

    division: Let
    last: Value
    dropped: tuple[Let, ...]
    limits: tuple[float, float]
    whole: bool


def coded(kernel: Kernel) -> Kernel:
    """The kernel with such divisions, limits and roundings as one operator, where a program has one row at a time."""
    lanes = [x.axis for x in lanes_of(kernel).values()]
    if [a.role for a in lanes] != [Role.TILE]:
        return kernel
    statements = walk(kernel.body)
    makers = {s.out: s for s in statements if isinstance(s, (Let, Reduce))}
    users: dict[Value, dict[Stmt, None]] = defaultdict(dict)
    for s in statements:
        for v in operands(s):
            users[v][s] = None
    found = (_chain(s, kernel, makers, users) for s in statements if isinstance(s, Let) and s.op == "div")
    chains = {c.division: c for c in found if c is not None}
    dropped = {s for c in chains.values() for s in c.dropped}
    return replace(kernel, body=_rewritten(kernel.body, chains, dropped)) if chains else kernel


def _rewritten(body: tuple[Stmt, ...], chains: Mapping[Let, _Chain], dropped: set[Let]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    renamed = {c.last: _code(c) for c in chains.values()}
    for s in body:
        if isinstance(s, Loop):
            out.append(replace(s, body=_rewritten(s.body, chains, dropped)))
        elif isinstance(s, Let) and s in chains:
            least, most = chains[s].limits
            out.append(replace(s, out=_code(chains[s]), attrs=(("least", least), ("most", most))))
        elif isinstance(s, Store) and s.arg in renamed:
            out.append(replace(s, arg=renamed[s.arg]))
        elif s not in dropped:
            out.append(s)
    return tuple(out)


def _code(chain: _Chain) -> Value:
    """The value that is stored: a whole number of eight bits, or a quotient that is yet to be rounded."""
    return replace(chain.last, dtype=I8) if chain.whole else chain.last


def _chain(
    division: Let, kernel: Kernel, makers: Mapping[Value, Let | Reduce], users: Mapping[Value, Mapping[Stmt, None]]
) -> _Chain | None:
    """What leads from a division to 8-bit codes, where its quotients cannot pass them; None where that is not so."""
    bound = _bound(division, makers)
    if bound is None:
        return None
    last, dropped, limits, whole = division.out, list[Let](), {"maximum": -math.inf, "minimum": math.inf}, False
    while len(users[last]) == 1:
        (user,) = users[last]
        if not isinstance(user, Let) or whole or user.op not in (*limits, "rint"):
            break
        if user.op == "rint":
            whole = True
        else:
            limits[user.op] = next((x for a in user.args if (x := _constant(a, makers)) is not None), math.nan)
        last = user.out
        dropped.append(user)
    least, most = limits["maximum"], limits["minimum"]
    stored = [kernel.param(s.param).dtype for s in users[last] if isinstance(s, Store)]
    if len(stored) != len(users[last]) or len(set(stored)) != 1 or stored[0] not in CODES:
        return None
    largest, clipped = CODES[stored[0]], -least >= bound <= most  # not so for NaN
    if whole is not (stored[0] is I8) or not clipped or bound > largest or least < -largest - 1 or most > largest:
        return None
    return _Chain(division, last, tuple(dropped), (least, most), whole)


def _bound(s: Let, makers: Mapping[Value, Let | Reduce]) -> float | None:
    """What the magnitude of x / d cannot pass but for rounding, where d is a part of the largest |x| of the row, or
    more.
    """
    x, d = s.args
    made = makers.get(d)
    if (
        s.out.dtype is not F32
        or not set(d.axes) < set(x.axes)
        or not isinstance(made, Let)
        or made.op not in ("div", "mul")
    ):
        return None
    part, top = _constant(made.args[1], makers), makers.get(made.args[0])
    if isinstance(top, Let) and top.op == "maximum":  # with a least divisor
        top = next((m for a in top.args if (m := makers.get(a)) is not None and _is_largest(m, x, makers)), None)
    if part is None or part <= 0 or not _is_largest(top, x, makers):
        return None
    return (part if made.op == "div" else 1 / part) / ROUNDED


def _is_largest(top: Let | Reduce | None, x: Value, makers: Mapping[Value, Let | Reduce]) -> bool:
    """True for the largest |x| of a row, or the largest |y| times an inverse root where x is y times the same one: a
    row that is scaled after its largest element is found.
    """
    if isinstance(top, Reduce):
        size = makers.get(top.arg) if top.op == "max" else None
        return isinstance(size, Let) and size.op == "abs" and size.args[0] == x
    scaled = makers.get(x)
    if top is None or top.op != "mul" or not isinstance(scaled, Let) or scaled.op != "mul":
        return False
    below, by = makers.get(top.args[0]), makers.get(top.args[1])
    inverse = isinstance(by, Let) and by.op == "rsqrt" and top.args[1] == scaled.args[1]
    return inverse and isinstance(below, Reduce) and _is_largest(below, scaled.args[0], makers)


def _constant(value: Value, makers: Mapping[Value, Let | Reduce]) -> float | None:
    """The number that a constant is; None for any other value."""
    made = makers.get(value)
    return float(dict(made.attrs)["value"]) if isinstance(made, Let) and made.op == "const" else None
