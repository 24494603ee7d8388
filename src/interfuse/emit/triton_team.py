"""Teams of programs in Triton text. In: a Kernel with a TEAM axis, how its values are spelled. Out: lines.

The programs of a launch are there at once. A team has words of 64 bits in device memory, 0 before its first launch: the
tag of each program's last meeting, and two words for each number that a program gives. Such a word holds the number
beside the tag of the meeting that it belongs to, so that one read tells both whether it is there and what it is. Two
meetings in turn write words apart: who writes to a word has come past the meeting between, and so has who reads it.
Tags count on from launch to launch; no word is ever reset.

Rows are taken in turn. With more than one stage, what the next row begins with is fetched before others are waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from interfuse.base.text import Writer
from interfuse.lower.kernel import PART, Kernel, Load, Meet, Value, varies_over, walk

ARGUMENT = ("meeting_ptr", "*i64")
"""The argument behind the buffers: the words of all teams."""

AHEAD = "row_ahead"
"""The index of the row after this one."""

NAMES = ("tag", "own_ptr", "place_ptr", "mates", "program", AHEAD)
"""What the text of a team's kernel calls its own."""

AFTER = "tl.store(own_ptr + mate, tag.to(tl.int64))"
"""What a program leaves for the next launch."""


def words(kernel: Kernel) -> int:
    """The words of one team; 0 where programs meet nobody."""
    most = sum(isinstance(s, Meet) for s in walk(kernel.body))
    return kernel.team * (1 + 2 * most)


def fetched_ahead(kernel: Kernel, not_these: Collection[Load]) -> list[Load]:
    """What a program reads of its share of a row, where it is fetched while the row before is worked on."""
    col = kernel.axes[-1].name
    found = [s for s in walk(kernel.body) if isinstance(s, Load) and {"row", col} <= varies_over(s)]
    return [s for s in found if not (s.picks or s.within or s in not_these)] if _overlaps(kernel) else []


def _overlaps(kernel: Kernel) -> bool:
    return kernel.team > 0 and kernel.stages > 1


def before(kernel: Kernel, writer: Writer) -> None:
    """What a program knows before its first row: its place in the team, its words, the tag of its last meeting."""
    team, part = kernel.team, kernel.axis(PART)
    writer.line(f"mate = tl.program_id(0) % {team}")
    writer.line(f"own_ptr = meeting_ptr + tl.program_id(0) // {team} * {words(kernel)}")
    writer.line("tag = tl.load(own_ptr + mate).to(tl.int32)")
    writer.line(f"mates = tl.arange(0, {part.block})")


def ahead(kernel: Kernel, wide: bool, first: bool) -> str:
    """The line that names the first row of a team, or the next one."""
    team = kernel.team
    found = f"tl.program_id(0) // {team}" if first else f"program + tl.num_programs(0) // {team}"
    return f"{AHEAD} = {f'({found}).to(tl.int64)' if wide else found}"


def loop(kernel: Kernel, rows: str) -> str:
    """The header of the loop over the rows of a team."""
    return f"for program in range(tl.program_id(0) // {kernel.team}, {rows}, tl.num_programs(0) // {kernel.team}):"


def meeting(
    kernel: Kernel,
    meets: Sequence[Meet],
    name: Callable[[Value], str],
    own: Callable[[str], str],
    fetches: Sequence[str],
) -> list[str]:
    """The lines of one meeting: `name` spells values, `own` gives a free name like the one wished for; what is fetched
    for the next row is on its way before others are waited for.
    """
    team, part = kernel.team, kernel.axis(PART)
    some = f", mask=mates < {team}, other=tag.to(tl.int64) << 32" if part.block != team else ""
    lines = ["tag += 1", f"place_ptr = own_ptr + {team} + (tag & 1) * {len(meets) * team}"]
    reads, found = [], []
    for k, s in enumerate(meets):
        at = "place_ptr" if k == 0 else f"place_ptr + {k * team}"
        lines.append(f"give({at} + mate, {name(s.arg)}, tag)")
        word = own(f"{s.arg.name}_word")
        reads.append(f"{word} = tl.load({at} + mates{some}, volatile=True)")
        found.append((s, word))
    late = " | ".join(f"late({word}, tag)" for _, word in found)
    lines += [*fetches, *reads, f"while tl.max({late}, 0) != 0:  # until all have come", *(f"    {r}" for r in reads)]
    return lines + [f"{name(s.out)} = given({word})[:, None]" for s, word in found]
