"""What a kernel reads before it waits. In: kernels that follow each other, and what those before write. Out: the same
with what can be read at once read first.

A GPU starts such a kernel before the one before it has ended (`Kernel.follows`). What lies in memory by then is on its
way while the kernel waits, and while it joins what the parts gave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from interfuse.ir.index import Expr, symbols, wrap
from interfuse.ir.node import Node
from interfuse.lower.kernel import (
    PART,
    Axis,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Role,
    Scope,
    Stmt,
    Value,
    varies_over,
    walk,
)
from interfuse.lower.target import GPU, UNIT_WARPS
from interfuse.lower.work import Work

AT_ONCE = 8
"""Parts that a thread joins at once."""

NOTHING = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
"""What changes no reduction."""


def awaiting(works: Iterable[Work], inputs: frozenset[Node]) -> tuple[Work, ...]:
    """The works of kernels that follow each other, each with what it awaits: all that is none of the `inputs`."""
    return tuple(replace(w, awaited=w.inputs - inputs) for w in works)


def in_a_row(kernel: Kernel, reads: tuple[Node, ...], work: Work, k: int, count: int) -> Kernel:
    """A GPU kernel as the `k`th of `count` that follow each other."""
    return replace(early(kernel, reads, work), follows=k > 0, leads=k < count - 1)


def early(kernel: Kernel, reads: tuple[Node, ...], work: Work) -> Kernel:
    """A GPU kernel of `work` that reads `reads`, with the loads first of what is as wide as its own lanes: but of what
    it awaits, of places that values tell, and of what a serial loop walks.

    It waits behind these loads where all its programs find room beside those that they wait for, or where a cache has
    what they read. Where a few find room, these would only take what the others read first from memory: they wait
    first, and where they join no parts either, the kernel stays as it is.
    """
    awaits = tuple(p.name for n, p in zip(reads, kernel.params, strict=False) if n in work.awaited)
    cached = {p.name for n, p in zip(reads, kernel.params, strict=False) if n in work.cached}
    room = _has_room(kernel) or bool(cached)
    if not awaits or not (room or work.ahead):
        return kernel
    lanes = {a.name for a in kernel.own_axes if a.block > 1}
    first, rest = list[Stmt](), list[Stmt]()

    def is_early(s: Stmt) -> bool:
        return isinstance(s, Load) and not s.picks and s.param not in awaits and lanes <= varies_over(s)

    for s in kernel.body:
        if isinstance(s, Loop) and s.axis != PART and kernel.axis(s.axis).role is not Role.SERIAL:
            loads = tuple(i for i in s.body if is_early(i))
            first += [Loop(s.axis, loads)] if loads else []
            rest.append(Loop(s.axis, tuple(i for i in s.body if i not in loads)))
        else:
            (first if is_early(s) else rest).append(s)
    kernel = replace(kernel, body=(*first, *rest), awaits=awaits if room else ())
    return _up_to_own(kernel, lanes)


def _up_to_own(kernel: Kernel, lanes: set[str]) -> Kernel:
    """The kernel with a loop over those parts alone that count, where each of its own lanes joins the ones before some
    part: a few at a time, so that threads need no registers for all, nor wait for the others.
    """
    joins = [s for s in kernel.body if isinstance(s, Loop) and s.axis == PART]
    if len(joins) != 1:
        return kernel
    part, lets = kernel.axis(PART), {s.out: s for s in walk(kernel.body) if isinstance(s, Let)}
    reduced = [s for s in joins[0].body if isinstance(s, Reduce)]
    ends = {_end(s, lets, part) for s in reduced}
    end = ends.pop() if len(ends) == 1 else None
    if end is None or wrap(part.extent).hi <= AT_ONCE or any(lanes.isdisjoint(s.out.axes) for s in reduced):
        return kernel
    axes = tuple(replace(a, role=Role.SERIAL, block=AT_ONCE) if a is part else a for a in kernel.axes)
    body = tuple(replace(s, scope=Scope.CARRY) if isinstance(s, Reduce) else s for s in joins[0].body)
    loop = Loop(PART, body, until=end)
    return replace(kernel, axes=axes, body=tuple(loop if s is joins[0] else s for s in kernel.body))


def _end(s: Reduce, lets: Mapping[Value, Let], part: Axis) -> Expr | None:
    """The part from which on others change nothing of a reduction of them; None where there is none."""
    chosen = lets.get(s.arg)
    if chosen is None or chosen.op != "where" or s.op not in NOTHING:
        return None
    test, _, other = (lets.get(a) for a in chosen.args)
    nothing = other is not None and other.op == "const" and dict(other.attrs)["value"] == NOTHING[s.op]
    if not nothing or test is None or test.op != "lt":
        return None
    place, end = (dict(let.attrs)["expr"] if (let := lets.get(a)) and let.op == "index" else None for a in test.args)
    return wrap(end) if place is part.symbol and end is not None and part.symbol not in symbols(wrap(end)) else None


def _has_room(kernel: Kernel) -> bool:
    """True where a GPU has room for all programs at once."""
    programs = math.prod(-(-wrap(a.extent).hi // a.block) for a in kernel.axes if a.role is Role.GRID)
    return programs * kernel.warps <= GPU.programs * UNIT_WARPS
