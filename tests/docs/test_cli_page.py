"""docs/cli.md against the command line. In: its console blocks. Out: a failure where a command there does not work."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.sample import invoke

ROOT = Path(__file__).resolve().parents[2]
MADE = runpy.run_path(str(ROOT / "docs" / "make_cli.py"))
COMMANDS = MADE["commands"]((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
WRONG = ("interfuse run docs/block.py:blok", "interfuse show docs/block.py:block --stage assembly")


def test_the_page_has_output_for_every_command() -> None:
    found = list(MADE["BLOCK"].finditer((ROOT / "docs" / "cli.md").read_text(encoding="utf-8")))
    assert len(found) >= 12
    assert all(m["shown"].strip() for m in found)
    assert set(WRONG) <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_ends_as_the_page_says(
    command: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cache = str(tmp_path_factory.getbasetemp() / "page")
    result = invoke(*shlex.split(command)[1:], INTERFUSE_CACHE=cache, INTERFUSE_RACE="0")
    assert result.exit_code == (2 if command in WRONG else 0), result.output
