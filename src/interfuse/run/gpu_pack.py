"""Launching packed Triton kernels. In: the launcher of the kernel. Out: a callable on the tensors of all members.

The kernel reads where its members lie from a table in device memory. The table is written in pinned memory and copied
on the current stream, ahead of the launch and without waiting for either; where nothing has moved since the last launch
on that stream, its table serves again. While a CUDA graph is being captured pinned memory cannot be had, and a replay
copies from it again: captures take from memory pinned before, a table for each set of addresses, which then stays as it
is.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from interfuse.base.errors import LaunchError
from interfuse.emit.triton import ALIGN
from interfuse.ir.index import evaluate
from interfuse.lower.pack import ALIGNED
from interfuse.run.gpu import Launcher

SPARE = 32
"""Tables that are kept pinned for captures to come: a graph may hold several calls, and a model several graphs."""

_CAPTURED: list[torch.Tensor] = []
"""The memory that captured graphs copy from: such a graph may outlive every program."""


class PackLauncher:
    """One loaded packed kernel. Calling it launches once for all members, on the current stream of their device.

    Any number of threads may call it.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, kernel = launcher, launcher.kernel
        self._buffers, self._symbols = len(kernel.params), kernel.symbols
        self._last: tuple[Any, torch.Tensor] | None = None
        self._lock = threading.Lock()
        self._spare: list[torch.Tensor] = []
        self._captured: dict[tuple[int, ...], torch.Tensor] = {}
        self._starts = functools.lru_cache(maxsize=64)(self._started)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Launch on the first member's tensors in parameter order, then the second's, ...; `sizes` likewise.

        LaunchError for counts that make no whole members, and where Triton cannot compile or launch the kernel or a
        capture finds no pinned memory: no output has been touched then.
        """
        members = len(tensors) // self._buffers
        if len(tensors) != members * self._buffers or len(sizes) != members * len(self._symbols):
            raise LaunchError(
                f"{self._launcher.kernel.name} takes {self._buffers} buffers and {len(self._symbols)} sizes a member, "
                f"not {len(tensors)} and {len(sizes)} in all: pass them as its parameters stand, member by member."
            )
        starts, grid = self._starts(members, tuple(sizes))
        if grid == 0:
            return
        addresses = [t.data_ptr() for t in tensors]
        columns = itertools.chain(
            starts,
            *(addresses[k :: self._buffers] for k in range(self._buffers)),
            *(sizes[k :: len(self._symbols)] for k in range(len(self._symbols))),
        )
        aligned = functools.reduce(int.__or__, addresses) % ALIGNED == 0
        table = self._table(tuple(columns), tensors[0].device)
        self._launcher.launch(grid, (table, members), {ALIGN: ALIGNED if aligned else 1}, tensors[0].device)

    def _started(self, members: int, sizes: tuple[int, ...]) -> tuple[list[int], int]:
        """The first program of each member, and how many there are in all."""
        count, rows = self._launcher.source.grid, len(self._symbols)
        starts, total = [], 0
        for k in range(members):
            starts.append(total)
            known = dict(zip(self._symbols, sizes[k * rows : (k + 1) * rows], strict=True))
            total += evaluate(count, known)
        if self._launcher.kernel.level and starts != [k * (total // members) for k in range(members)]:
            raise LaunchError(f"{self._launcher.kernel.name} takes members of as many programs each; pack these apart.")
        return starts, total

    def _table(self, entries: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """The entries in memory of the device, there for whatever is launched next on the current stream."""
        if device.type != "cuda":
            return torch.tensor(entries, dtype=torch.int64)
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                return _copied(self._for_capture(entries), entries, device)
            key, last = (entries, torch.cuda.current_stream().cuda_stream), self._last
            if last is not None and last[0] == key:
                return last[1]
            with self._lock:
                missing = SPARE - sum(len(host) >= len(entries) for host in self._spare)
                if 2 * missing >= SPARE:
                    self._spare += _pinned(missing * len(entries)).split(len(entries))
            table = _copied(_pinned(len(entries)), entries, device)
            self._last = (key, table)
            return table

    def _for_capture(self, entries: tuple[int, ...]) -> torch.Tensor:
        """Pinned memory that holds these entries alone, for good."""
        with self._lock:
            known = self._captured.get(entries)
            fitting = [k for k, host in enumerate(self._spare) if len(host) >= len(entries)]
            if known is None and fitting:
                host = self._spare.pop(fitting[0])
                _CAPTURED.append(host)
                known = self._captured[entries] = host[: len(entries)]
        if known is not None:
            return known
        raise LaunchError(
            f"{self._launcher.kernel.name}: no pinned memory left for a CUDA graph; call the model once more before "
            "capturing it again."
        )


def _pinned(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, pin_memory=True)


def _copied(host: torch.Tensor, entries: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The entries on the device, by way of pinned memory, without waiting."""
    host.numpy()[:] = entries
    return torch.empty(len(entries), dtype=torch.int64, device=device).copy_(host, non_blocking=True)
