"""`interfuse doctor`. In: this machine. Out: a line for each thing that Interfuse uses; what to do if it is missing;
what is known of each device, measured anew where that is asked for.

Each package is tried in a process of its own, so that a broken installation is a finding here and not a crash.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import interfuse
from interfuse.base.errors import CacheError
from interfuse.base.knobs import Knobs, current
from interfuse.build.contents import contents
from interfuse.cli.common import command, output, progress
from interfuse.device import cpu
from interfuse.device.ncu import REMEDY, find_ncu
from interfuse.report.figures import counted

TORCH = "import torch; print(torch.__version__)"
TRITON = "import triton; print(triton.__version__)"
GPU = """
import torch
count = torch.cuda.device_count()
built = torch.version.cuda or torch.version.hip
print(", ".join(torch.cuda.get_device_name(i) for i in range(count)) if built else "cpu build")
"""
PROFILES = """
import json
from interfuse.base.knobs import current
from interfuse.driver.device import device_of, names_here
profiles = [(name, device_of(name, current()).profile) for name in names_here()]
print(json.dumps([[name, str(p), p.measured] for name, p in profiles]))
"""
SAMPLE = (
    'extern "C" int sum(const int* x, int n) { int s = 0;\n#pragma omp parallel for reduction(+:s)\n'
    "for (int i = 0; i < n; ++i) s += x[i]; return s; }\n"
)


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, `state` ok, missing or note, what was found, and what to do ("" for ok)."""

    subject: str
    state: str
    found: str
    remedy: str = ""


@command
def doctor(
    probe: Annotated[
        bool, typer.Option("--probe", help="measure the devices first, a few seconds each, and keep what is found")
    ] = False,
) -> None:
    """Say what is installed, what to do about what is missing, and what is known of each device. Status 1 where
    something needed is missing.
    """
    if probe:
        with progress() as watch:
            interfuse.probe(watch)
    findings = examine(current())
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for f in findings:
        style = {"ok": "green", "missing": "bold red", "note": "yellow"}[f.state]
        table.add_row(Text(f.state, style=style), f.subject, Text(": ".join(filter(None, (f.found, f.remedy)))))
    output().print(table)
    raise typer.Exit(1 if any(f.state == "missing" for f in findings) else 0)


def examine(knobs: Knobs) -> list[Finding]:
    """Every finding about this machine, under these knobs."""
    python = Finding("Python", "ok", platform.python_version())
    version = Finding("Interfuse", "ok", interfuse.__version__)
    gpu = _gpu()
    counters = [_counters(knobs)] if gpu.state == "ok" else []
    tiles = [_tiles(knobs)] if cpu.profile().splits else []
    needed = [version, python, _torch(), _compiler(knobs), _triton(), gpu]
    return [*needed, *counters, *tiles, _cache(knobs), *_profiles()]


def _run(*command: str) -> tuple[bool, str]:
    """Whether `command` ends well, and the last line that it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return False, f"there is no {command[0]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    silent = "" if done.returncode == 0 else f"{command[0]} ends with status {done.returncode} and says nothing"
    return done.returncode == 0, lines[-1] if lines else silent


def _torch() -> Finding:
    ok, said = _run(sys.executable, "-c", TORCH)
    if not ok:
        return Finding("PyTorch", "missing", said, "install torch 2.11 or newer")
    numbers = tuple(int(n) for n in said.split("+")[0].split(".")[:2])
    return (
        Finding("PyTorch", "ok", said)
        if numbers >= (2, 11)
        else Finding("PyTorch", "missing", said, "upgrade torch to 2.11 or newer")
    )


def _compiler(knobs: Knobs) -> Finding:
    remedy = (
        "install g++ (Debian: apt-get install g++) or name a compiler in INTERFUSE_CXX; "
        "without one, CPU models run unfused"
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sample.cpp"
        source.write_text(SAMPLE, encoding="utf-8")
        output = str(source.with_suffix(".so"))
        ok, said = _run(knobs.cxx, "-O2", "-fPIC", "-shared", "-fopenmp", str(source), "-o", output)
    if not ok:
        return Finding("C++ compiler", "missing", said, remedy)
    return Finding("C++ compiler", "ok", f"{knobs.cxx} {_run(knobs.cxx, '-dumpfullversion')[1]}, with OpenMP")


def _tiles(knobs: Knobs) -> Finding:
    """Of a CPU that has them."""
    if knobs.tiles:
        return Finding("tile registers", "ok", "products of f32 race on them")
    remedy = "INTERFUSE_TILES=1 lets them, which is faster where the cores are this process's own"
    return Finding("tile registers", "note", "products of f32 do not race on them", remedy)


def _triton() -> Finding:
    ok, said = _run(sys.executable, "-c", TRITON)
    return (
        Finding("Triton", "ok", said)
        if ok
        else Finding(
            "Triton", "note", "not installed", "needed for GPUs only: install the one that fits your torch (3.6 or 3.7)"
        )
    )


def _gpu() -> Finding:
    ok, said = _run(sys.executable, "-c", GPU)
    if ok and said == "cpu build":
        return Finding("GPU", "note", "this PyTorch is a CPU build", "a CUDA or ROCm build can use a GPU")
    if ok and said:
        return Finding("GPU", "ok", said)
    return Finding("GPU", "note", "none that PyTorch sees", "models run on the CPU; check the driver if one is there")


def _counters(knobs: Knobs) -> Finding:
    found = find_ncu(knobs)
    if found is None:
        return Finding("memory counters", "note", f"there is no {knobs.ncu}", f"for NVIDIA GPUs, {REMEDY}")
    return Finding("memory counters", "ok", found)


def _profiles() -> list[Finding]:
    """What is known of each device that PyTorch sees; nothing where PyTorch is missing."""
    ok, said = _run(sys.executable, "-c", PROFILES)
    if not ok:
        return []
    return [
        Finding(name, "ok", text) if measured else Finding(name, "note", text, "interfuse doctor --probe measures it")
        for name, text, measured in json.loads(said)
    ]


def _cache(knobs: Knobs) -> Finding:
    if not knobs.cache:
        return Finding("cache", "note", "switched off", "unset INTERFUSE_USE_CACHE to keep built kernels")
    try:
        kept = contents(knobs)
        held = f"{counted(len(kept.kernels()), 'kernel')}, {counted(kept.results(), 'race result')}"
    except CacheError as error:
        return Finding("cache", "missing", str(error))
    return Finding("cache", "ok", f"{knobs.cache_dir}, {held}")
