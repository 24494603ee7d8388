"""The phase twin: a kernel without its arithmetic.

In: a kernel of a CPU. Out: one with the same loops, loads and stores in the same order, scratch rows included, in which
all that a loop has read is added up and stored. A kernel that takes longer than a bare loop over its bytes, but no
longer than this, is as fast as passes over a row in the caches let it be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from interfuse.ir.dtypes import F32
from interfuse.lower.kernel import Kernel, Let, Load, Loop, Reduce, Scan, Stmt, Store, Value


def bare(kernel: Kernel) -> Kernel:
    """The kernel's twin, under a name of its own. ValueError for one with loads that values tell the place of."""
    if kernel.picks or kernel.packed:
        raise ValueError(f"{kernel.name} reads where values tell: it has no phase twin.")
    names = (f"seen_{k}" for k in itertools.count(1))
    body: list[Stmt] = []
    given: Value | None = None
    for s in kernel.body:
        if isinstance(s, Loop):
            inner, given = _phase(s.body, names, given)
            body.append(replace(s, body=tuple(inner)))
        elif isinstance(s, Store):
            if given is None:
                raise ValueError(f"{kernel.name} stores what no loop gives: it has no phase twin.")
            body.append(replace(s, arg=given))
    return replace(kernel, name=f"{kernel.name}_phases", body=tuple(body), doc=(), reduction_order="")


def _phase(body: tuple[Stmt, ...], names: Iterator[str], given: Value | None) -> tuple[list[Stmt], Value | None]:
    """The statements of one loop, and what it reduces to; `given` is what an earlier one did."""
    made: list[Stmt] = []
    seen: Value | None = None

    def add(op: str, *args: Value) -> Value:
        axes = tuple(dict.fromkeys(a for v in args for a in v.axes))
        made.append(Let(Value(next(names), F32, axes), op, args))
        return made[-1].out  # type: ignore[union-attr]

    for s in body:
        if isinstance(s, Load):
            made.append(s)
            value = s.out if s.out.dtype is F32 else add("cast", s.out)
            seen = value if seen is None else add("add", seen, value)
        elif isinstance(s, Store) and seen is not None:
            made.append(replace(s, arg=seen))
    reduced = next((s for s in body if isinstance(s, Reduce)), None)
    if reduced is not None and seen is not None:
        out = Value(next(names), F32, tuple(a for a in seen.axes if a != reduced.axis))
        made.append(Reduce(out, "sum", seen, reduced.axis, reduced.scope))
        given = out
    if any(isinstance(s, Scan) for s in body):
        raise ValueError("a scan has no phase twin: what it carries is part of its passes.")
    return made, given
