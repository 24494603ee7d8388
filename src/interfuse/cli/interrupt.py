"""Ctrl-C while packages are imported. In: an import. Out: the same, or a sentence and status 130 at once.

Packages that are interrupted while they are imported may raise anything, or hang; nothing of ours is at work then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with one sentence, where it would raise KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def importing() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once."""
    end_at_once()
    try:
        yield
    finally:
        raise_again()


def _end(*_: Any) -> None:
    with suppress(OSError):
        os.write(2, b"interfuse: interrupted before anything was begun.\n")
    os._exit(130)
