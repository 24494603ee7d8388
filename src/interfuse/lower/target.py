"""What a schedule must know of a backend. In: nothing. Out: a Target for CPUs and one for GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What a schedule must know of the backend: "cpp" or "triton", vector lanes, and how much of a row fits on chip.

    `row_elements` is the widest row that a program may hold, `scratch_bytes` the most a CPU row may keep beside it:
    beyond either a row is streamed. Fewer `programs` than that are not made wider. `stages` steps of a loop are under
    way at once. Rows of up to `short_row` elements are read again for less than it costs to join moments of their
    lanes. Reductions of fewer than `enough` programs are cut into parts, on a CPU whatever its cores are, so that
    the same sizes give the same bits. A program keeps sums of `widest` columns at most, and
    holds a `share` of a row that a team of programs shares. Tensor cores take `dot` rows of what they multiply at once.
    Of `ring` bytes of shared memory a program fills some while it computes with others; 0 where it cannot. Where it
    `splits` f32 in two numbers, tensor cores multiply these.
    """

    backend: str = "cpp"
    lanes: int = 16
    row_elements: int = 1 << 16
    scratch_bytes: int = 1 << 18
    tile_elements: int = 1024
    programs: int = 16
    columns: int = 2048
    stages: int = 1
    enough: int = 16
    short_row: int = 1024
    widest: int = 1 << 13
    share: int = 1 << 13
    dot: int = 16
    ring: int = 0
    splits: bool = False

    @property
    def side(self) -> int:
        """Columns side by side in a program where there are parts of rows enough: a GPU reads long pieces best."""
        return 2 * self.lanes if self.backend == "triton" else self.lanes


PARTED = 1 << 17
"""Elements from which parts of reductions are worth a launch more."""

SCANNED = 256
"""Bytes of a column that a step of scans down columns takes: a thread has them to itself, in registers."""

SHORT = 128
"""The fewest columns that a program holds of rows whose length changes."""

STAGED_BYTES = 36 << 10
"""What a GPU program may fetch ahead of itself: several programs share the memory of one unit."""

FLIGHT_BYTES, MOST_STAGES = 64 << 10, 8
"""Bytes that a GPU's unit must have under way to keep memory busy, and steps under way at most."""

STEP = 4
"""Tiles that a step takes where threads reduce what they hold before they carry it."""

HELD_TILE = 1 << 13
"""Elements of a tile of columns that is held at once: it is read once, however many passes there are."""

HELD_TOTAL = 1 << 15
"""Elements that a program takes at once where there are a few of them and they only add up what they read."""

LONG_ROW, LONG_STEP = 1 << 16, 1 << 14
"""Elements from which a row that is read twice has a unit to itself, and what a step of it takes."""

MOST_MATES = 32
"""Programs of a team at most: a warp reads what each has given."""

SOON = 1 << 12
"""Elements of a row up to which threads have registers for all that is read beside it."""

ROWS_AT_ONCE = 1 << 12
"""Rows that a GPU has under way at once, or little more."""

LIGHT_ROW = 1 << 12
"""Elements of a row from which half the warps are enough where its elements are narrow."""

UNIT_WARPS = 64
"""Warps that a GPU's unit has room for."""

FEW = 16
"""Programs that leave a GPU so idle that the time of one is all that counts: each gets all the warps it can use."""

CPU = Target()
GPU = Target("triton", 32, 1 << 14, 0, 2048, programs=132, stages=3, enough=132)
