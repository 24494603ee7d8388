"""Golden text. In: a test's request (or a name) and a text. Out: nothing, or a failure that shows how the text differs
from the kept one.

The kept text lies at tests/golden/<row>/<test file>/<test name>.txt, found from the test's name, or at
tests/golden/<name>.txt where a name is given. `pytest --renew-golden` writes it; a missing file is a failure, so new
texts are looked at once.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE / "golden"


@dataclass
class Settings:
    """What the command line asked for; tests/conftest.py fills it in."""

    renew: bool = False


SETTINGS = Settings()


def path_of(request_or_name: pytest.FixtureRequest | str) -> Path:
    """The file in which the golden text of this test, or of this name, is kept."""
    if isinstance(request_or_name, str):
        return FOLDER / f"{request_or_name}.txt"
    module = Path(request_or_name.path).relative_to(HERE).with_suffix("")
    return FOLDER / module / (re.sub(r"[^\w.-]+", "-", request_or_name.node.name).strip("-") + ".txt")


def check(request_or_name: pytest.FixtureRequest | str, text: str) -> None:
    """Fail unless `text` is the kept one; with --renew-golden, keep it."""
    path = path_of(request_or_name)
    if SETTINGS.renew:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    where = path.relative_to(HERE.parent)
    if not path.exists():
        pytest.fail(
            f"{where} is missing: run pytest --renew-golden on this test, and read what it writes.", pytrace=False
        )
    kept = path.read_text(encoding="utf-8")
    if kept != text:
        diff = "\n".join(difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm=""))
        pytest.fail(f"{where} differs; run pytest --renew-golden if the change is meant.\n{diff}", pytrace=False)
