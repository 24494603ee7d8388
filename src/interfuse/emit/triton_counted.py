"""Serial loops in Triton text. In: the axis that is walked. Out: the head of the loop, and the lines that begin a step.

Where a length may be anything its steps are counted, and a lane is compared with what is left of it: no number then
passes the length, so that 32 bits, which Triton takes for a length that fits them, never overflow.
"""

from __future__ import annotations

from interfuse.emit.triton_lanes import Lane
from interfuse.ir.index import Expr
from interfuse.lower.kernel import Axis, Role


def is_counted(axis: Axis) -> bool:
    """True where the steps along the axis are counted."""
    return axis.role is Role.SERIAL and isinstance(axis.extent, Expr) and not axis.among


def head(axis: Axis, lane: Lane, walked: tuple[str, str, str], stages: int) -> str:
    """The line that a loop over the axis begins with: from an index to one by so many, `walked`, with `stages` under
    way.
    """
    ends = ", ".join(walked)
    if is_counted(axis):
        ends = f"{_less_one(lane)} // {lane.block} + 1"
    steps = f"tl.range({ends}, num_stages={stages})" if stages > 1 else f"range({ends})"
    return f"for {axis.name}_{'step' if is_counted(axis) else 'start'} in {steps}:"


def first_lines(axis: Axis, lane: Lane, backwards: bool, wide: bool, masked: bool) -> list[str]:
    """The indices of one step, `wide` in 64 bits, and where asked its mask."""
    start, numbers = f"{axis.name}_start", lane.numbers()
    lines = []
    if is_counted(axis):
        step = f"{axis.name}_step"
        step = f"({_less_one(lane)} // {lane.block} - {step})" if backwards else step
        lines.append(f"{start} = {step} * {lane.block}")
    elif backwards:  # a range that counts down would hide from Triton how its numbers are aligned
        start = first_index(lane, True)[1:-1]
    lines.append(f"{axis.name} = {start} + {numbers}{'.to(tl.int64)' if wide else ''}")
    if masked and is_counted(axis):
        lines.append(f"{lane.mask} = {numbers} < {lane.extent} - {start}")
    elif masked:
        lines.append(f"{lane.mask} = {axis.name} < {lane.extent}")
    return lines


def first_index(lane: Lane, backwards: bool) -> str:
    """The first index of a step of an axis that is not counted, in brackets where it is more than a name."""
    start = f"{lane.axis.name}_start"
    return f"({_less_one(lane)} // {lane.block} * {lane.block} - {start})" if backwards else start


def _less_one(lane: Lane) -> str:
    return f"({lane.extent} - 1)"
