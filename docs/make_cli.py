"""The output in docs/cli.md, from the commands there. In: the page. Out: the page again; run this file to renew it.

python docs/make_cli.py

A ```console block holds one `$ interfuse ...` line; what the command prints follows it, cut after CUT lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
ROOT = PAGE.parent.parent
BLOCK = re.compile(r"^```console\n\$ (?P<command>interfuse .*)\n(?P<shown>(?:.*\n)*?)```$", re.MULTILINE)
CUT = 28


def commands(text: str) -> list[str]:
    """The command lines of a page, in order."""
    return [m["command"] for m in BLOCK.finditer(text)]


def _output(command: str, environment: dict[str, str]) -> str:
    line = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = (done.stderr if done.returncode else done.stdout).replace(
        environment["INTERFUSE_CACHE"], "~/.cache/interfuse"
    )
    lines = [kept.rstrip() for kept in said.rstrip().splitlines()]
    return "\n".join(lines if len(lines) <= CUT else [*lines[:CUT], "..."]) + "\n"


def page(text: str) -> str:
    """The page with what its commands print now, each run after the one before it in one cache folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "INTERFUSE_CACHE": f"{folder}/cache", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{_output(m['command'], environment)}```", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
