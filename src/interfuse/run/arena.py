"""Memory of values that only kernels see. In: their sizes and lifetimes. Out: which of them share a block of memory.

The blocks of one burst of launches lie one behind the other in one allocation. A result of the burst that is not
written yet is a block, too: a value whose life ends before may lie there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from interfuse.ir.index import INF, Dim, at_sizes

ALIGN = 64
"""Every block begins at a multiple of so many bytes, as PyTorch's own allocations do."""


@dataclass(frozen=True)
class Value:
    """Bytes that live from the launch that writes them (its position) to the last one that reads them."""

    bytes: Dim
    born: int
    dies: float = INF


@dataclass(frozen=True)
class Arena:
    """`block_of[k]` is the block of value k. Blocks 0, 1, ... are the results in order; `own` has the bytes of those
    after them, which are the arena's."""

    block_of: tuple[int, ...]
    own: tuple[Dim, ...]

    def offsets(self, own: Iterable[int]) -> tuple[list[int], int]:
        """Where the arena's own blocks begin, given their bytes, and how many bytes the arena has."""
        starts, end = [], 0
        for size in own:
            starts.append(end := -(-end // ALIGN) * ALIGN)
            end += size
        return starts, end


def plan(values: Sequence[Value], results: Sequence[Value], sizes: Mapping[str, int]) -> Arena:
    """Greedy best fit: the largest value first, into the smallest block that holds it and is free while it lives.

    Of equal ones the last goes first, for it is the one that finds the block of a result taken: of a chain every other
    value then lies in the result. A block holds what is known to be no larger: sizes that change between calls fit
    where they are equal expressions. `sizes` are the example's values of the symbols.
    """
    blocks: list[tuple[Dim, list[Value]]] = [(r.bytes, [r]) for r in results]
    block_of = [0] * len(values)
    for k in sorted(range(len(values)), key=lambda k: (-at_sizes(values[k].bytes, sizes), -values[k].born)):
        value = values[k]
        free = [b for b, (size, taken) in enumerate(blocks) if _holds(size, value.bytes) and not _meets(value, taken)]
        if not free:
            blocks.append((value.bytes, []))
        block_of[k] = min(free, key=lambda b: at_sizes(blocks[b][0], sizes), default=len(blocks) - 1)
        blocks[block_of[k]][1].append(value)
    return Arena(tuple(block_of), tuple(size for size, _ in blocks[len(results) :]))


def _holds(block: Dim, value: Dim) -> bool:
    return block == value or (isinstance(block, int) and isinstance(value, int) and block >= value)


def _meets(value: Value, taken: Iterable[Value]) -> bool:
    """True where one of `taken` lives at a launch at which `value` does."""
    return any(value.born <= other.dies and other.born <= value.dies for other in taken)
