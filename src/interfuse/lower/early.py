"""What a kernel reads before it waits. In: kernels that follow each other, and what those before write. Out: the same
with what can be read at once read first.

A GPU starts such a kernel before the one before it has ended (`Kernel.follows`). What lies in memory by then is on its
way while the kernel waits, and while it joins what the parts gave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from interfuse.ir.index import wrap
from interfuse.ir.node import Node
from interfuse.lower.kernel import PART, Kernel, Load, Loop, Role, Stmt, varies_over
from interfuse.lower.target import GPU, UNIT_WARPS
from interfuse.lower.work import Work


def awaiting(works: Iterable[Work], inputs: frozenset[Node]) -> tuple[Work, ...]:
    """The works of kernels that follow each other, each with what it awaits: all that is none of the `inputs`."""
    return tuple(replace(w, awaited=w.inputs - inputs) for w in works)


def early(kernel: Kernel, reads: tuple[Node, ...], work: Work) -> Kernel:
    """A GPU kernel of `work` that reads `reads`, with the loads first of what is as wide as its own lanes: but of what
    it awaits, of places that values tell, and of what a serial loop walks.

    It waits behind these loads where all its programs find room beside those that they wait for. Where a few do, these
    would only take what the others read first from memory: they wait first, and where they join no parts either, the
    kernel stays as it is.
    """
    awaits = tuple(p.name for n, p in zip(reads, kernel.params, strict=False) if n in work.awaited)
    room = _has_room(kernel)
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
    return replace(kernel, body=(*first, *rest), awaits=awaits if room else ())


def _has_room(kernel: Kernel) -> bool:
    """True where a GPU has room for all programs at once."""
    programs = math.prod(-(-wrap(a.extent).hi // a.block) for a in kernel.axes if a.role is Role.GRID)
    return programs * kernel.warps <= GPU.programs * UNIT_WARPS
