"""The steps of a serial loop over rows that begin at any element. In: an axis with an origin. Out: the pieces in which
its loop is written; of a row that is held, the one piece.

A GPU reads 16 bytes at once where it can prove that they begin at a multiple of 16 and share a mask. A row of an odd
width begins anywhere; so its walk begins at the last multiple at or before it, and lanes count from there. The first
and the last step, of which a part belongs to other rows, are written by themselves, and those between need no mask. A
step reads whole vectors only, each with an element of the row in it, and writes vectors that are the row's throughout;
the few elements at its ends are computed once more and written one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from interfuse.emit.triton_lanes import Lane

NAMES = ("skip", "lane", "near", "whole", "edge")
"""What the text of such a loop calls its own."""


@dataclass(frozen=True)
class Piece:
    """Steps that are written alike: the `loop` around them ("" for one step), their first lines, and the masks, by what
    each is for: elements that are `inside` the row, vectors `near` it, which are read, and `whole` ones, which are
    written. "" where all are.
    """

    axis: str
    head: tuple[str, ...]
    inside: str = ""
    near: str = ""
    whole: str = ""
    loop: str = ""


def pieces(lane: Lane, origin: str, stages: int, backwards: bool, stores: bool) -> tuple[tuple[str, ...], list[Piece]]:
    """The lines before the loop, and its pieces in order; `origin` is the text of where the row begins."""
    axis, v = lane.axis, lane.axis.vector
    name, end, numbers = axis.name, f"(skip + {lane.extent})", lane.numbers()
    full = f"{lane.extent} // {lane.block} * {lane.block}"
    col, inside = f"{name} = lane - skip", lane.mask
    counted = f"{full} - {name}_start" if backwards else f"{name}_start"
    steps = f"range({lane.block}, {full}, {lane.block}{f', num_stages={stages}' if stages > 1 else ''})"
    whole = "whole" if stores else ""
    first = [f"lane = {numbers}", col, f"{inside} = {name} >= 0"]
    last = [f"lane = {full} + {numbers}", col, f"{inside} = {name} < {lane.extent}", f"near = lane < {_up(end, v)}"]
    if stores:
        first.append(f"whole = lane >= {_up('skip', v)}")
        last.append(f"whole = lane < {end} // {v} * {v}")
    found = [
        Piece(name, tuple(first), inside, "", whole),
        Piece(
            name,
            (f"lane = {counted} + {numbers}", col),
            loop=f"for {name}_start in {'tl.' if stages > 1 else ''}{steps}:",
        ),
        Piece(name, tuple(last), inside, "near", whole),
    ]
    if backwards:
        found.reverse()
    if stores:
        ends = (
            f"edge = tl.arange(0, {2 * v})",
            f"lane = tl.where(edge < {v}, edge, {end} // {v} * {v} + edge - {v})",
            col,
            f"{inside} = tl.where(edge < {v}, ({name} >= 0) & (skip > 0), {name} < {lane.extent})",
        )
        found.append(Piece(name, ends, inside, inside, inside))
    return (f"skip = {origin} % {v}",), found


def apart(lane: Lane, stages: int, backwards: bool, wide: bool) -> list[Piece]:
    """The pieces of a loop whose last step passes the end: all whole steps, which need no mask, and the last one."""
    name, numbers = lane.axis.name, lane.numbers() + (".to(tl.int64)" if wide else "")
    full = f"{lane.extent} // {lane.block} * {lane.block}"
    start = f"{full} - {lane.block} - {name}_start" if backwards else f"{name}_start"
    steps = f"range(0, {full}, {lane.block}{f', num_stages={stages}' if stages > 1 else ''})"
    found = [
        Piece(
            name, (f"{name} = {start} + {numbers}",), loop=f"for {name}_start in {'tl.' if stages > 1 else ''}{steps}:"
        ),
        Piece(name, (f"{name} = {full} + {numbers}", f"{lane.mask} = {name} < {lane.extent}"), *[lane.mask] * 3),
    ]
    return found[::-1] if backwards else found


def held(lane: Lane, origin: str) -> Piece:
    """A row that is held: the lines in its head are those of the kernel's."""
    v, numbers, end = lane.axis.vector, lane.numbers(), f"(skip + {lane.extent})"
    head = (
        f"skip = {origin} % {v}",
        f"lane = {numbers}",
        f"{lane.axis.name} = lane - skip",
        f"{lane.mask} = ({lane.axis.name} >= 0) & ({lane.axis.name} < {lane.extent})",
        f"near = lane < {_up(end, v)}",
        f"whole = (lane >= {_up('skip', v)}) & (lane < {end} // {v} * {v})",
    )
    return Piece(lane.axis.name, head, lane.mask, "near", "whole")


def ended(lane: Lane) -> Piece:
    """A map that ends at any element: the lines in its head follow the index."""
    v, name, end = lane.axis.vector, lane.axis.name, lane.extent if lane.extent.isidentifier() else f"({lane.extent})"
    head = (f"near = {name} < {_up(end, v)}", f"whole = {name} < {end} // {v} * {v}")
    return Piece(name, head, lane.mask, "near", "whole")


def _up(text: str, v: int) -> str:
    """The next multiple of v."""
    return f"({text.removeprefix('(').removesuffix(')')} + {v - 1}) // {v} * {v}"
