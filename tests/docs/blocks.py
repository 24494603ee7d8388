"""Fenced blocks of a page. In: Markdown text. Out: its Python blocks in order, each with the output shown below it.

A ```text block right below a ```python block is what the Python block prints, where `...` stands for anything. One
that is marked ```text example is shown for its form and not compared.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One Python block: its code, the line that it starts on, and the output block below it: span, text, compared."""

    code: str
    line: int
    shown: str | None
    span: tuple[int, int]
    compared: bool


def blocks(text: str) -> list[Block]:
    """Every Python block of a page."""
    found = list(_FENCE.finditer(text))
    out = []
    for k, fence in enumerate(found):
        if fence["kind"].split(" ")[0] != "python":
            continue
        after = found[k + 1] if k + 1 < len(found) else None
        near = after is not None and not text[fence.end() : after.start()].strip() and after["kind"].startswith("text")
        line = text.count("\n", 0, fence.start("body")) + 1
        shown, span = (after["body"], after.span("body")) if near and after else (None, (0, 0))
        out.append(Block(fence["body"], line, shown, span, near and after is not None and after["kind"] == "text"))
    return out


def run(block: Block, name: str, namespace: dict[str, Any]) -> str:
    """What the block prints when it runs in `namespace`; blank lines at the end are left out, trailing blanks too."""
    printed = io.StringIO()
    # Empty lines before the code make the line numbers of a traceback those of the page.
    with contextlib.redirect_stdout(printed):
        # `name` must be no file that exists: Dynamo reads the source of what it compiles, and a page is no Python.
        exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
    lines = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


def same(shown: str, printed: str) -> bool:
    """True where the printed text is the one shown, with `...` standing for anything."""
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
