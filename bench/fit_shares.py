"""Processes that measure shares of the cases. In: their commands. Out: the lines that they print, and which failed.

They end with the block that they serve, and where the process that began them is killed.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path


class ShareError(Exception):
    """A process that measures a share of the cases has failed."""


class Share:
    """A process that runs `command` inside a block. What it says of errors goes into the file `errors`."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        self._command, self._errors = command, errors

    def __enter__(self) -> Share:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def lines(self) -> Iterator[str]:
        """What it prints, as it comes."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def failed(self) -> str:
        """Waits for its end. Where it failed, the last of what it said, else nothing."""
        if self._process.wait() == 0:
            return ""
        return (self._errors.read_text().strip().splitlines() or [f"exit status {self._process.returncode}"])[-1]


def lines(shares: Sequence[Share]) -> Iterator[str]:
    """What all of them print, line by line as it comes."""
    said: queue.Queue[str | None] = queue.Queue()

    def read(share: Share) -> None:
        for line in share.lines():
            said.put(line)
        said.put(None)

    for share in shares:
        threading.Thread(target=read, args=(share,), daemon=True).start()
    for _ in shares:
        yield from iter(said.get, None)  # type: ignore[arg-type]


def end_with_input() -> None:
    """End this process at once when its input does: nobody is left then who could read what it prints."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
