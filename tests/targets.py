"""Targets for tests. In: nothing. Out: both backends as they are, and with so little room that short rows are streamed.

`CPUS` and `GPUS` hold them by name, `ALL` both.
"""

from __future__ import annotations

from dataclasses import replace

from interfuse.lower.target import CPU, GPU, Target

CPUS: dict[str, Target] = {"cpu": CPU, "cpu-streamed": replace(CPU, row_elements=4, scratch_bytes=0, programs=0)}
GPUS: dict[str, Target] = {"gpu": GPU, "gpu-streamed": replace(GPU, row_elements=4, tile_elements=16, lanes=4)}
ALL: dict[str, Target] = {**CPUS, **GPUS}
