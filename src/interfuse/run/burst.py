"""Consecutive kernel launches as one C call. In: the units of a program. Out: its steps, bursts among them.

A burst allocates its results and one arena, in which values live that only its own kernels read (run/arena.py), and
hands addresses to the trampoline: no tensor is made for such a value. Where anything fails, nothing has been written
but fresh memory: the units run one by one, each with its own backup.

Within a burst results exist and operands live somewhat longer than unit by unit. So units are joined only where the
program, as counted at the example's sizes, never holds more bytes than it would at its peak without.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from interfuse.base.errors import DataError, LaunchError
from interfuse.base.record import Record
from interfuse.emit.trampoline import MOST_ARGUMENTS
from interfuse.ir.index import at_sizes
from interfuse.run import arena
from interfuse.run.allocate import empty_strided_cpu
from interfuse.run.arena import Arena, Value
from interfuse.run.cpu import Launcher
from interfuse.run.guarded import Guarded, Ready, walk
from interfuse.run.launch import Launch, Operand, Pages, Result, on_addresses
from interfuse.run.units import Meter, Unit
from interfuse.run.views import Sizes, Step, sized, static

LONGEST = 256
"""Units that one burst joins at most."""


def join(
    units: Sequence[Unit],
    pages: Pages,
    meter: Callable[[Iterable[int]], Meter],
    hints: Mapping[str, int],
    record: Record,
) -> Ready:
    """The steps of the program. `meter` gives one that holds what lives when it begins, told what lies on pages."""
    alone = [unit.ready(pages, record) for unit in units]
    able = [_is_able(unit, pages) for unit in units]
    if not any(a and b for a, b in itertools.pairwise(able)):
        return tuple(alone)
    limit, live = meter(pages.slots).run(units).peak, meter(pages.slots)
    steps, k = [], 0
    while k < len(units):
        count = _run_from(units, able, k)
        while count > 1 and live.bytes + _Layout(units[k : k + count], hints).bytes > limit:
            count = count * 3 // 4
        end = k + max(count, 1)
        steps.append(alone[k] if count < 2 else (Burst(units[k:end], alone[k:end], pages, hints), ()))
        live.run(units[k:end])
        k = end
    return tuple(steps)


def _is_able(unit: Unit, pages: Pages) -> bool:
    """True where the unit can be part of a burst: kernels on the CPU. Next to large values a call costs nothing."""
    slots = {s for op, _ in unit.parts for s in (*op.reads, *op.writes)}
    return bool(unit.launches) and not slots & pages.slots and all(map(_is_callable, unit.launches))


def _is_callable(launch: Launch) -> bool:
    most = max(len(launch.reads) + len(launch.outs), len(launch.kernel.symbols))
    here = isinstance(launch.launcher, Launcher) and launch.launcher.trampoline is not None
    return here and most <= MOST_ARGUMENTS and not launch.is_empty


def _run_from(units: Sequence[Unit], able: Sequence[bool], start: int) -> int:
    """How many units from `start` can be joined: their kernels find each other's results as they expect them."""
    made: dict[int, Result] = {}
    for count, unit in enumerate(units[start : start + LONGEST]):
        if not able[start + count]:
            return count
        for launch in unit.launches:
            if any(o.slot in made and not _as_made(o, made[o.slot]) for o in launch.reads):
                return count
            made |= {r.slot: r for r in launch.outs}
    return len(units[start : start + LONGEST])


def _as_made(operand: Operand, result: Result) -> bool:
    alike = operand.strides == result.strides and operand.dtype is result.dtype
    return alike and isinstance(operand.start, int)


def _base(operand: Operand) -> Operand:
    """What an address is looked up for: the tensor's own where the table says how far behind that a kernel begins."""
    return replace(operand, start=0, length=0) if isinstance(operand.start, int) else operand


def _ahead(operand: Operand) -> int:
    """How many bytes behind its base a kernel begins to read."""
    return operand.start * operand.dtype.itemsize if isinstance(operand.start, int) else 0


class _Layout:
    """Where the values of a burst lie: its launches, the results that outlive it, the arena of the others.

    `block_of` gives the block of each slot that a launch fills, `bytes` all blocks at the example's sizes.
    """

    def __init__(self, units: Sequence[Unit], hints: Mapping[str, int]) -> None:
        self.launches = [launch for unit in units for launch in unit.launches]
        self.launchers = [launch.launcher for launch in self.launches if isinstance(launch.launcher, Launcher)]
        self.ends = frozenset().union(*(u.ends for u in units))
        made = {r.slot: (r, k) for k, launch in enumerate(self.launches) for r in launch.outs}
        last = {o.slot: k for k, launch in enumerate(self.launches) for o in launch.reads}
        self.results = [r for slot, (r, _) in made.items() if slot not in self.ends]
        inside = [slot for slot in made if slot in self.ends]
        values = [Value(made[s][0].bytes, made[s][1], last.get(s, made[s][1])) for s in inside]
        kept = [Value(r.bytes, made[r.slot][1]) for r in self.results]
        self.arena: Arena = arena.plan(values, kept, hints)
        self.block_of = {r.slot: k for k, r in enumerate(self.results)}
        self.block_of |= dict(zip(inside, self.arena.block_of, strict=True))
        _, total = self.arena.offsets(at_sizes(size, hints) for size in self.arena.own)
        self.bytes = total + sum(at_sizes(r.bytes, hints) for r in self.results)


class Burst:
    """Units joined; `alone` are their steps. It keeps to those once one of them has fallen back."""

    def __init__(self, units: Sequence[Unit], alone: Sequence[Any], pages: Pages, hints: Mapping[str, int]) -> None:
        layout = _Layout(units, hints)
        self.count = len(layout.launches)
        self._alone: Ready = tuple(alone)
        self._guards = [step for step, _ in alone if isinstance(step, Guarded)]
        self._results = tuple(r.slot for r in layout.results)
        self._drops = tuple(sorted(layout.ends - layout.block_of.keys()))
        self._launch = _launch(layout, pages)
        self._whole = True

    def __call__(self, slots: list[Any]) -> None:
        """Run every kernel in one call, or the units one by one where that fails now or a unit failed before."""
        if self._whole:
            try:
                self._launch(slots)
            except (DataError, LaunchError, RuntimeError, MemoryError):
                done = False
            else:
                done = True
            for i in self._drops if done else self._results:
                slots[i] = None
            if done:
                return
        walk(self._alone, slots)
        self._whole = not any(g.failed for g in self._guards)


def _launch(layout: _Layout, pages: Pages) -> Step:
    """The step that allocates and launches."""
    read: dict[Operand, int] = {}
    for launch in layout.launches:
        for operand in launch.reads:
            if operand.slot not in layout.block_of:
                read.setdefault(_base(operand), len(read))
    blocks = {slot: len(read) + block for slot, block in layout.block_of.items()}
    symbols = tuple(dict.fromkeys(s for launch in layout.launches for s in launch.kernel.symbols))
    table = [len(layout.launches)]
    for launch, launcher in zip(layout.launches, layout.launchers, strict=True):
        given = [(blocks[o.slot] if o.slot in blocks else read[_base(o)], _ahead(o)) for o in launch.reads]
        taken = [(blocks[r.slot], 0) for r in launch.outs]
        numbers = [symbols.index(s) for s in launch.kernel.symbols]
        table += [
            launcher.address,
            int(launcher.is_checked),
            len(given + taken),
            *itertools.chain(*given, *taken),
            len(numbers),
            *numbers,
        ]
    bases = len(read) + len(layout.results) + len(layout.arena.own)
    trampoline = layout.launchers[0].trampoline
    assert trampoline is not None
    run = trampoline(table, bases, len(symbols))
    fresh = tuple((r.slot, r.maker(pages)) for r in layout.results)
    return on_addresses(tuple(read), fresh, symbols, run, _addresses(layout.arena))


def _addresses(found: Arena) -> Callable[[Sizes, list[int]], torch.Tensor] | None:
    """A function that allocates the arena, adds the address of each of its blocks to a list, and gives the arena to
    hold; None where there is none."""
    if not found.own:
        return None
    own, own_at = static(found.own), sized(found.own)
    known = None if own is None else found.offsets(own)

    def add(sizes: Sizes, bases: list[int]) -> torch.Tensor:
        starts, total = found.offsets(own_at(sizes)) if known is None else known
        memory: torch.Tensor = empty_strided_cpu((total,), (1,), torch.uint8)
        base = memory.data_ptr()
        bases += [base + start for start in starts]
        return memory

    return add
