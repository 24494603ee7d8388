"""A small writer of indented text, shared by the emitters and printers. In: lines. Out: one string."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Writer:
    """Collects lines at the current depth; `with w.block("for (...) {", "}"):` indents what is written inside."""

    def __init__(self, step: str = "    ") -> None:
        self._step, self._depth, self._lines = step, 0, list[str]()

    def line(self, text: str = "") -> None:
        """Add one line at the current depth; an empty one stays empty."""
        self._lines.append(self._step * self._depth + text if text else "")

    def gap(self) -> None:
        """Add an empty line after what is written; none where nothing is, or where there is one."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    @contextlib.contextmanager
    def block(self, head: str | None = None, tail: str | None = None) -> Iterator[None]:
        """Indent the lines written inside, between an optional head and tail line."""
        if head is not None:
            self.line(head)
        self._depth += 1
        yield
        self._depth -= 1
        if tail is not None:
            self.line(tail)

    def text(self) -> str:
        """All lines, each ended by a newline."""
        return "\n".join(self._lines) + "\n"
