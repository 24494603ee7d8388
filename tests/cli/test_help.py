"""Help. In: --help of every command. Out: each option listed with a sentence, as docs/cli.md lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import interfuse
from interfuse.cli.main import app
from tests.cli.sample import invoke

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    root, found = typer.main.get_command(app), {}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found.update({f"{name} {k}": v for k, v in inner.items()} if inner else {name: command})
    return found


def options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]


def test_the_commands() -> None:
    assert list(commands()) == [
        *("run", "explain", "bench", "tune", "show", "whatif", "bisect", "doctor"),
        *(f"cache {name}" for name in ("list", "size", "clear", "verify")),
    ]


@pytest.mark.parametrize("name", commands())
def test_help_is_complete(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stdout).split())
    command = commands()[name]
    assert command.help
    assert " ".join(command.help.split()) in text
    for option in options(command):
        assert option.help, f"{option.opts} has no help"
        assert option.opts[0] in text
        assert option.help.split()[0] in text
    assert invoke(*name.split(), "-h").stdout == result.stdout


def test_help_of_the_whole_names_every_command() -> None:
    text = invoke("--help").stdout
    assert all(name.split()[0] in text for name in commands())
    assert invoke().exit_code == 2


def test_the_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"interfuse {interfuse.__version__}\n")


@pytest.mark.parametrize("name", commands())
def test_the_page_shows_every_command_and_option(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = next((s for s in page.split("\n## ")[1:] if s.startswith(f"interfuse {name.split()[0]}")), "")
    assert f"interfuse {name}" in section, f"docs/cli.md has no section on {name}"
    for option in options(commands()[name]):
        assert f"`{option.opts[0]}" in section, f"the section on {name} lacks {option.opts[0]}"
