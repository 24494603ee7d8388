"""Whether what a launch writes over is nobody else's. In: the parts of a launch. Out: a check of their addresses.

Tensors that shared no memory when a graph was captured may share some later: PyTorch does not guard that. Captured
calls read all that they need before the last of them writes; a kernel that writes in place must not be what reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interfuse.base.errors import LaunchError

Addresses = Sequence[int]


def checker(written: Sequence[bool]) -> Callable[[Addresses, Addresses], None]:
    """A function of the addresses and lengths of what a launch touches; `written` tells which of them it writes over.

    LaunchError where something written over overlaps anything else. Addresses that were found good are not looked at
    again.
    """
    good: list[tuple[list[int], list[int]]] = []
    is_written = np.array(written, bool)

    def check(addresses: Addresses, lengths: Addresses) -> None:
        given = list(addresses), list(lengths)
        if good and good[-1] == given:
            return
        starts = np.array(addresses, np.int64)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], (starts + np.array(lengths, np.int64))[order]
        over = is_written[order]
        # The furthest end so far, of everything and of what is written over: a start below it overlaps.
        any_end = np.maximum.accumulate(ends)[:-1]
        over_end = np.maximum.accumulate(np.where(over, ends, 0))[:-1]
        if (starts[1:] < np.where(over[1:], any_end, over_end)).any():
            raise LaunchError("what is written in place overlaps what is read; the captured calls run.")
        good[:] = [given]

    return check
