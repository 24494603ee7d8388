"""Figures as people read them. In: numbers. Out: short text, and tables without lines.

Every table of the report is made of these.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table

WIDTH = 120


def to_text(parts: Iterator[RenderableType], width: int = WIDTH) -> str:
    """`parts` as plain text of at most `width` columns, without colours or trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, highlight=False)
    for part in parts:
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def figure(value: float) -> str:
    """A count (int) in full; a quantity (float, not negative) to two or three digits: 612, 18.0, 4.11, 0.012."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    if value >= 0.1:
        return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{value:.2g}" if value >= 0.001 or value == 0 else "<0.001"


def percent(share: float | None) -> str:
    """A share of one in whole percent; nothing where it is not known."""
    return "" if share is None else f"{100 * share:.0f} %"


def plain_table(*columns: tuple[str, str], header: bool = True) -> Table:
    """A table without lines; each column is (heading, justification)."""
    table = Table(box=None, show_header=header, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in columns:
        wraps = name in ("decision", "note", "region", "plan")
        table.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold")  # type: ignore[arg-type]
    return table


def counted(number: int, noun: str) -> str:
    """1 graph, 2 graphs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
