"""The tour runs and prints what it shows. In: docs/tour.md. Out: each block run in order, its output compared.

`pytest --renew-golden` writes the outputs that hold no `...`; the others are edited by hand.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import golden
from tests.docs.blocks import Block, blocks, run, same

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tour.md"


def test_the_tour_prints_what_it_shows() -> None:
    torch._dynamo.reset()
    text, namespace = PAGE.read_text(encoding="utf-8"), {"__name__": "tour"}
    printed = [(block, run(block, "<tour.md>", namespace)) for block in blocks(text)]
    if golden.SETTINGS.renew:
        PAGE.write_text(renewed(text, printed), encoding="utf-8")
        return
    for block, got in printed:
        problem = complaint(block, got)
        if problem:
            pytest.fail(f"docs/tour.md:{block.line} {problem}", pytrace=False)


def complaint(block: Block, got: str) -> str:
    """What is wrong with the output shown for a block, or an empty text."""
    if block.shown is None:
        return f"prints, and the page does not show it:\n{got}" if got else ""
    if not block.compared or (got and same(block.shown, got)):
        return ""
    diff = "\n".join(difflib.unified_diff(block.shown.splitlines(), got.splitlines(), "page", "now", lineterm=""))
    return f"prints something else; run pytest --renew-golden if the change is meant.\n{diff}"


def renewed(text: str, printed: list[tuple[Block, str]]) -> str:
    """The page with the outputs that are compared whole as they are now."""
    for block, got in reversed(printed):
        if block.compared and "..." not in (block.shown or ""):
            text = text[: block.span[0]] + got + text[block.span[1] :]
    return text


SAMPLE = "Text.\n\n```python\nprint({0})\n```\n\n```text\n1\n```\n\n```python\nx = 1\n```\n"


@pytest.mark.parametrize(
    ("code", "wrong"), [("1", False), ("2", True), ("'1\\n2'", True)], ids=["same", "other", "longer"]
)
def test_a_difference_is_seen(code: str, wrong: bool) -> None:
    namespace: dict[str, Any] = {}
    page = SAMPLE.format(code)
    first, second = blocks(page)
    got = run(first, "page", namespace)
    assert bool(complaint(first, got)) is wrong and first.line == 4
    assert not complaint(second, run(second, "page", namespace)) and namespace["x"] == 1
    assert complaint(second, "unshown\n")
    assert not complaint(blocks(renewed(page, [(first, got)]))[0], got)
