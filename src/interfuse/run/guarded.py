"""A region with its captured calls behind it. In: two ways to run it. Out: a step that takes the first while it works.

Where a step of the first way raises, the region runs the captured calls on its inputs, which are still whole, and stays
with them from then on; but where memory ran out, or the data were at fault (DataError), for that call alone.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from interfuse.base.errors import DataError, LaunchError
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


def is_out_of_memory(error: BaseException) -> bool:
    """True for what PyTorch raises where memory cannot be had; on the CPU it has no type of its own."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


class Guarded:
    """A region with a backup. `clears`: slots that a failed try may leave filled; `drops`: those that end here."""

    def __init__(
        self, name: str, choice: Ready, backup: Ready, clears: tuple[int, ...], drops: tuple[int, ...], record: Record
    ) -> None:
        self.name, self.choice, self.backup, self.clears, self.drops = name, choice, backup, clears, drops
        self.failed = False
        self._record, self._lock, self._told = record, threading.Lock(), False
        # Most regions are one kernel, and for a small one another call in between counts.
        self._run = choice[0][0] if len(choice) == 1 and not choice[0][1] else functools.partial(walk, choice)

    def __call__(self, slots: list[Any]) -> None:
        """Run the choice, or the backup where the choice fails now or failed for good before."""
        done, reason, short = False, "", False
        if not self.failed:
            try:
                self._run(slots)
                done = True
            except DataError:
                pass  # the captured calls say what is wrong with the data; the next call may bring better
            except (LaunchError, RuntimeError, MemoryError) as error:
                reason, short = f"{type(error).__name__}: {error}", is_out_of_memory(error)
            if not done:
                # Here the exception is gone, and with it the frames that keep half-made values alive.
                for i in self.clears:
                    slots[i] = None
        if reason:
            with self._lock:
                self._note(reason, short)
        if not done:
            self._fall_back(slots, short)
        for i in self.drops:
            slots[i] = None

    def _fall_back(self, slots: list[Any], short: bool) -> None:
        """Run the backup; `short` tells that the choice has just failed for want of memory."""
        try:
            walk(self.backup, slots)
        except (RuntimeError, MemoryError) as error:
            if short and is_out_of_memory(error):
                error.add_note(
                    f"Interfuse: region {self.name} has no memory for its kernels, nor for its library calls; give the "
                    "model less at once, or free what else holds memory."
                )
            raise

    def _note(self, reason: str, short: bool) -> None:
        """Record the failure once. It is marked last, so that an interrupt in between leaves nothing marked untold."""
        if short and not self._told:
            self._record.add("warning", self.name, error=f"{reason.splitlines()[0]} (the call ran through the library)")
            self._told = True
        if not short and not self.failed:
            self._record.add("fallback", self.name, error=reason)
            self.failed = True
