"""A region with its captured calls behind it. In: two ways to run it. Out: a step that takes the first while it works.

Where a step of the first way raises, the region runs the captured calls on its inputs, which are still whole, and stays
with them from then on.
"""

from __future__ import annotations

import threading
from typing import Any

from interfuse.base.errors import LaunchError
from interfuse.base.record import Record
from interfuse.run.views import Step

Ready = tuple[tuple[Step, tuple[int, ...]], ...]
"""Steps in order, each with the slots that it is the last to use."""


def walk(steps: Ready, slots: list[Any]) -> None:
    """Run the steps; each slot is emptied after its last use."""
    for run, drops in steps:
        run(slots)
        for i in drops:
            slots[i] = None


class Guarded:
    """A region with a backup. `clears`: slots that a failed try may leave filled; `drops`: those that end here."""

    def __init__(
        self, name: str, choice: Ready, backup: Ready, clears: tuple[int, ...], drops: tuple[int, ...], record: Record
    ) -> None:
        self.name, self.choice, self.backup, self.clears, self.drops = name, choice, backup, clears, drops
        self.failed = False
        self._record, self._lock = record, threading.Lock()

    def __call__(self, slots: list[Any]) -> None:
        """Run the choice, or the backup where the choice fails now or failed before."""
        reason = ""
        if not self.failed:
            try:
                walk(self.choice, slots)
            except (LaunchError, RuntimeError) as error:
                reason = f"{type(error).__name__}: {error}"
        if self.failed or reason:
            # Here the exception is gone, and with it the frames that keep half-made values alive.
            self._fall_back(slots, reason)
        for i in self.drops:
            slots[i] = None

    def _fall_back(self, slots: list[Any], reason: str) -> None:
        if reason:
            for i in self.clears:
                slots[i] = None
        with self._lock:
            if not self.failed:
                self.failed = True
                self._record.add("fallback", self.name, error=reason)
        walk(self.backup, slots)
