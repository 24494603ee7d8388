"""The units of a program and the memory that they need. In: operations in order, lifetimes. Out: bytes, and pages.

A unit is what runs or fails as one: an operation, or a region with its captured calls behind it. Bytes are counted at
the example's sizes, storage by storage: a view holds no memory of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from interfuse.base.record import Record
from interfuse.ir.index import at_sizes
from interfuse.run.assemble import Op
from interfuse.run.guarded import Guarded, Ready
from interfuse.run.launch import Launch, Pages
from interfuse.run.pool import FROM_BYTES
from interfuse.run.views import Step

Parts = tuple[tuple[Op, tuple[int, ...]], ...]
"""Operations in order, each with the slots that it is the last to use."""


@dataclass(frozen=True)
class Unit:
    """What it does, `ends`: every slot whose life ends in it. A region with a backup has a name; `drops` are then the
    slots that end with the unit whichever way it runs, `clears` those that a failed try may leave filled."""

    parts: Parts
    ends: frozenset[int]
    name: str = ""
    backup: Parts = ()
    drops: tuple[int, ...] = ()
    clears: tuple[int, ...] = ()

    @property
    def launches(self) -> list[Launch]:
        """Its kernels; empty where it is anything else."""
        found = [op.run for op, _ in self.parts if isinstance(op.run, Launch)]
        return found if len(found) == len(self.parts) else []

    def ready(self, pages: Pages, record: Record) -> tuple[Step, tuple[int, ...]]:
        """The step, and the slots to empty after it."""
        if not self.name:
            ((op, drops),) = self.parts
            return op.step(pages), drops
        choice, backup = _ready(self.parts, pages), _ready(self.backup, pages)
        return Guarded(self.name, choice, backup, self.clears, self.drops, record), ()


def _ready(parts: Parts, pages: Pages) -> Ready:
    return tuple((op.step(pages), drops) for op, drops in parts)


class Meter:
    """Counts what live slots hold, by the storages that they lie in.

    `bytes` are held now, `peak` is the most so far. The storages `paged` lie on pages that are kept for good and handed
    out again to the next of the same size: `page_bytes` is what all pages need that were in use so far.
    """

    def __init__(
        self, roots_of: Mapping[int, frozenset[int]], storage_bytes: Sequence[int], paged: Iterable[int] = ()
    ) -> None:
        self._roots_of, self._storage_bytes = roots_of, storage_bytes
        self._paged = frozenset(root for slot in paged for root in roots_of[slot])
        self._live: set[int] = set()
        self._holders = [0] * len(storage_bytes)
        self._pages, self._most_pages = Counter[int](), Counter[int]()
        self.bytes = self.peak = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(size * count for size, count in self._most_pages.items())

    def add(self, slots: Iterable[int]) -> None:
        """The slots are filled."""
        for slot in set(slots) - self._live:
            self._live.add(slot)
            for root in self._roots_of.get(slot, ()):
                self._holders[root] += 1
                if self._holders[root] == 1:
                    self._count(root, 1)
        self.peak = max(self.peak, self.bytes)

    def drop(self, slots: Iterable[int]) -> None:
        """The slots are emptied."""
        for slot in set(slots) & self._live:
            self._live.remove(slot)
            for root in self._roots_of.get(slot, ()):
                self._holders[root] -= 1
                if self._holders[root] == 0:
                    self._count(root, -1)

    def _count(self, root: int, sign: int) -> None:
        size = self._storage_bytes[root]
        if root in self._paged:
            self._pages[size] += sign
            self._most_pages[size] = max(self._most_pages[size], self._pages[size])
        else:
            self.bytes += sign * size

    def run(self, units: Iterable[Unit]) -> Meter:
        """Count through the units, one by one; gives itself."""
        for unit in units:
            for op, drops in unit.parts:
                self.add(op.writes)
                self.drop(drops)
            self.drop(unit.ends)
        return self


def paged(units: Sequence[Unit], meter: Callable[[Iterable[int]], Meter], hints: Mapping[str, int]) -> frozenset[int]:
    """The slots that kernels fill and that had better lie on pages of the pool: large results of the graph, and other
    large values where the program then needs no more memory with all of its pages than with those of the results.

    `meter` gives one that holds what lives when the program begins, told which slots lie on pages.
    """
    made = [r for unit in units for op, _ in unit.parts for r in op.made]
    large = {r.slot: at_sizes(r.bytes, hints) for r in made if at_sizes(r.bytes, hints) >= FROM_BYTES}
    found = frozenset(r.slot for r in made if r.is_output and r.slot in large)
    others = sorted(large.keys() - found, key=lambda slot: -large[slot])
    if not others:
        return found

    def total(slots: Iterable[int]) -> int:
        counted = meter(slots).run(units)
        return counted.peak + counted.page_bytes

    limit = total(found)
    if total(found.union(others)) <= limit:
        return found.union(others)
    for slot in others:
        if total(found | {slot}) <= limit:
            found |= {slot}
    return found
