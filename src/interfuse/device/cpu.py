"""The CPU that this process runs on. In: /proc and /sys, as far as they exist. Out: its DeviceProfile, not measured."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from interfuse.device import table
from interfuse.device.profile import DeviceProfile

AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
AVX2 = ("avx2", "fma")
TILES = frozenset(("amx_tile", "amx_bf16"))
"""What /proc/cpuinfo calls registers that multiply tiles of bf16."""


def profile(
    proc: Path = Path("/proc/cpuinfo"), caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")
) -> DeviceProfile:
    """The profile of this CPU: vector extension, usable cores, caches. What cannot be read keeps the table's figure."""
    info = _text(proc)
    flags = set(_field(info, "flags").split())
    arch, lanes = ("avx2", 8) if flags.issuperset(AVX2) else ("portable", 4)
    if flags.issuperset(AVX512):
        arch, lanes = "avx512", 16
    tiles = arch == "avx512" and flags.issuperset(TILES)
    known = table.cpu(arch, lanes, _cores(), 8 if tiles else 2 if "avx512_bf16" in flags else 1, tiles)
    sizes = _cache_sizes(caches)
    return replace(
        known,
        name=_field(info, "model name") or known.name,
        cache=sizes.get(max(sizes, default=0), known.cache),
        unit_cache=sizes.get(2, known.unit_cache),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(info: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", info, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes of each level of data cache."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        level, size = _text(index / "level").strip(), re.fullmatch(r"(\d+)([KMG]?)", _text(index / "size").strip())
        if level.isdigit() and size and _text(index / "type").strip() != "Instruction":
            sizes[int(level)] = int(size.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[size.group(2)]
    return sizes
