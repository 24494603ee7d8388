"""Device profiles. In: the table, and made-up /proc and /sys files. Out: sound figures, names found, fallbacks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from interfuse.base.errors import DeviceError
from interfuse.device import cpu
from interfuse.device.table import TABLE, find


@pytest.mark.parametrize("name", sorted(TABLE))
def test_figures_are_sound(name: str) -> None:
    p = TABLE[name]
    assert find(p.name) is p and not p.measured
    assert 1e10 < p.bandwidth < 1e13 and 0 < p.launch < 1e-4 and p.units > 0 and p.cache >= 1 << 20
    assert p.flops_of("f32") > p.flops_of("f64") and p.flops_of("no such type") == p.flops_of("f32")
    if p.kind != "cpu":
        assert 0 < p.shared_block <= p.shared_unit and p.registers >= 65536 and p.threads % p.lanes == 0
        assert p.target == {"cuda": f"cuda:{p.arch[3:]}", "hip": f"hip:{p.arch}"}[p.kind]
    text = str(p)
    assert p.name in text and p.arch in text and "not measured" in text


def test_profiles_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        find("H100").units = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "known"),
    (
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h200", "H200"),
    ),
)
def test_names_as_drivers_give_them(given: str, known: str) -> None:
    assert find(given).name == known


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=r"no device 'Voodoo 2'.*A100.*RTX 4090"):
        find("Voodoo 2")


def made_up(tmp_path: Path, flags: str) -> tuple[Path, Path]:
    info, caches = tmp_path / "cpuinfo", tmp_path / "cache"
    info.write_text(f"processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    for k, (level, kind, size) in enumerate(
        ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "96M"))
    ):
        folder = caches / f"index{k}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    return info, caches


@pytest.mark.parametrize(
    ("flags", "arch", "lanes"),
    (
        ("avx2 fma avx512f avx512bw avx512dq avx512vl", "avx512", 16),
        ("avx2 fma avx512f", "avx2", 8),
        ("sse2", "portable", 4),
    ),
)
def test_a_described_cpu(tmp_path: Path, flags: str, arch: str, lanes: int) -> None:
    p = cpu.profile(*made_up(tmp_path, flags))
    assert (p.name, p.kind, p.arch, p.lanes, p.cache, p.unit_cache) == (
        "Example 9000",
        "cpu",
        arch,
        lanes,
        96 << 20,
        2 << 20,
    )


@pytest.mark.parametrize(
    ("flags", "bf16", "splits"),
    [
        ("avx2 fma avx512f avx512bw avx512dq avx512vl", 1, False),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16", 2, False),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16", 8, True),
        ("avx2 fma amx_tile amx_bf16", 1, False),
    ],
)
def test_products_of_a_described_cpu(tmp_path: Path, flags: str, bf16: int, splits: bool) -> None:
    p = cpu.profile(*made_up(tmp_path, flags))
    assert p.flops_of("bf16") == bf16 * p.flops_of("f32")
    assert p.splits == splits
    assert not p.without("split").splits
    assert p.flops_of("split") > p.flops_of("f32") or not splits


def test_a_cpu_that_says_nothing_keeps_the_tables_figures(tmp_path: Path) -> None:
    p = cpu.profile(tmp_path / "none", tmp_path / "none")
    assert p.arch == "portable" and p.cache == TABLE["CPU portable"].cache and p.units >= 1


def test_this_cpu_without_torch() -> None:
    code = "import sys; from interfuse.device import cpu; assert cpu.profile().units; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cpu.__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_bandwidth_by_size() -> None:
    p = dataclasses.replace(find("H200"), curves=(("copy", ((1e5, 1e11), (1e6, 8e11), (1e9, 4e12))),))
    assert p.rate("copy", 1e6) == 8e11 and p.rate("copy", 1e12) == 4e12
    assert 1e11 < p.rate("copy", 3e5) < 8e11 < p.rate("copy", 1e7) < 4e12
    # Below the first size a kernel takes as long as there: what it waits for is not the bytes.
    assert p.seconds("copy", 1) == pytest.approx(1e5 / 1e11) == p.seconds("copy", 5e4)
    assert p.seconds("copy", 0) == 0
    assert dataclasses.replace(p, curves=()).rate("read", 1e6) == p.bandwidth
    text = str(p)
    assert "copy, GB/s: 97.66 KiB 100, 976.6 KiB 800, 953.7 MiB 4000" in text
