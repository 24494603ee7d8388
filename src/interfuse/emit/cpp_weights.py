"""Exponentials along a row in one pass less. In: a Kernel that takes a row's maximum, then exponentials of distances
from it and their sum, then writes. Out: the same in two passes, in terms of the prelude's `Weights`.

The exponentials of a block of vectors are those of distances from the largest element of the block, so that they need
no pass before theirs; what waits in the scratch row is multiplied by one factor a block when it is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interfuse.ir.dtypes import F32
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Reduce, Stmt, Store, Value, operands, walk

AT_ONCE = 8
"""Vectors of a block."""

WEIGHED_FROM = 1 << 10
"""Elements of a row beyond which a factor a block costs less than a pass."""


@dataclass(frozen=True)
class Weighed:
    """A kernel in two passes: the first makes `arg`, whose exponentials go to the scratch `row`, the second multiplies
    by `scale` what it reads there. `total` is their sum; with `shared` the scale has it in it.
    """

    kernel: Kernel
    arg: Value
    row: str
    total: Value
    scale: Value
    shared: bool


def weighed(kernel: Kernel, lane: Axis) -> Weighed | None:
    """The kernel in two passes, where its first two give the sum of exp(x - maximum of x) and keep these exponentials
    for the third; nothing else may need the maximum. What widens and narrows its elements as well gains nothing.
    """
    if any(p.dtype.is_narrow for p in kernel.params):
        return None
    loops = [k for k, s in enumerate(kernel.body) if isinstance(s, Loop)]
    if len(loops) != 3 or loops[1] != loops[0] + 1 or not isinstance(lane.extent, int) or lane.extent <= WEIGHED_FROM:
        return None
    first, second, third = (kernel.body[k] for k in loops)
    assert isinstance(first, Loop) and isinstance(second, Loop) and isinstance(third, Loop)
    tops, totals = ([s for s in loop.body if isinstance(s, Reduce)] for loop in (first, second))
    if len(tops) != 1 or len(totals) != 1 or tops[0].op != "max" or totals[0].op != "sum":
        return None
    (top,), (total,) = tops, totals
    made = {s.out: s for s in second.body if isinstance(s, Let)}
    weight = made.get(total.arg)
    apart = made.get(weight.args[0]) if weight is not None and weight.op == "exp" else None
    if apart is None or apart.op != "sub" or apart.args != (top.arg, top.out) or top.arg.dtype is not F32:
        return None
    if lane.name not in top.arg.axes:
        return None
    again = {s.out for s in first.body if isinstance(s, (Load, Let))}
    kept = [s for s in second.body if isinstance(s, Store)]
    known = (weight, apart, total, *kept)
    rest = [s for s in second.body if s not in known and not (isinstance(s, (Load, Let)) and s.out in again)]
    users = [s for s in walk(kernel.body) if top.out in operands(s) or apart.out in operands(s)]
    if rest or len(kept) != 1 or kept[0].arg != total.arg or kept[0].index != lane.symbol or users != [apart, weight]:
        return None
    write, scale, shared = _scaled(third, kept[0], total.out)
    later = {s.param for s in write.body if isinstance(s, Load)}
    stores = [s for s in first.body if isinstance(s, Store)]
    idle = [s for s in stores if kernel.param(s.param).mode == "scratch" and s.param not in later]
    read = replace(first, body=tuple(s for s in first.body if s is not top and s not in idle))
    params = tuple(p for p in kernel.params if p.name not in {s.param for s in idle})
    body = (*kernel.body[: loops[0]], read, *kernel.body[loops[1] + 1 : loops[2]], write, *kernel.body[loops[2] + 1 :])
    return Weighed(replace(kernel, params=params, body=body), top.arg, kept[0].param, total.out, scale, shared)


def _scaled(write: Loop, kept: Store, total: Value) -> tuple[Loop, Value, bool]:
    """The last pass with what it reads of the row `kept` multiplied by a scale; the scale; and whether that makes it
    shares of the total, which are all that the pass takes of these weights then.
    """
    weight = kept.arg
    users = [s for s in write.body if weight in operands(s)]
    shared = bool(users) and all(isinstance(s, Let) and s.op == "div" and s.args == (weight, total) for s in users)
    apart, scale = (Value(f"{weight.name} {what}", F32, weight.axes) for what in ("apart", "scale"))
    body: list[Stmt] = []
    for s in write.body:
        if isinstance(s, Load) and s.param == kept.param:
            body.append(replace(s, out=apart))
            body += [] if shared else [Let(s.out, "mul", (apart, scale))]
        else:
            body.append(
                replace(s, op="mul", args=(apart, scale)) if shared and isinstance(s, Let) and s in users else s
            )
    return replace(write, body=tuple(body)), scale, shared
