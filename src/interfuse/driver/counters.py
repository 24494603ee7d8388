"""Bytes that really cross device memory. In: a compiled model, how the command line names it. Out: events for a ledger.

The model is compiled again, with the choices that were made here, in a process that Nsight Compute watches
(driver/counted.py); there each region runs once, between two marks, with a second-level cache that holds other data.
What is still to be written back when a kernel ends is the kernel's: it is counted while the cache fills again.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from interfuse.base.errors import CounterError
from interfuse.base.knobs import Knobs
from interfuse.device.ncu import REMEDY, find_ncu
from interfuse.driver.compiler import Compiled
from interfuse.tune.choice import Choice, chosen_so, lock_text

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SECONDS = 900
"""Longest that the watched process may take."""

MARK = re.compile(r"interfuse (region|after) (\d+)")
"""What the watched process calls what it runs: a region's kernels, and what reads other data into the cache after."""

RANGE = "interfuse"
"""The range around every mark, which tells ncu what to watch."""

CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from interfuse.driver.counted import main; "
    "sys.exit(main(sys.argv[2:]))"
)
"""The watched process: it can import what this one can."""

UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9}

NOT_PERMITTED = (
    "the driver keeps hardware counters from users (ERR_NVGPUCTRPERM): run as root, or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


def count(compiled: Sequence[Compiled], target: str, knobs: Knobs) -> None:
    """Add to the record of each graph what its regions read from and wrote to memory, as chosen and by the library.

    CounterError where nothing can be counted: no GPU, no ncu, no permission, or the watched process fails.
    """
    devices = [c.stages.device for c in compiled if c.stages.device is not None]
    device = next((d for d in devices if d.torch_device.type == "cuda"), None)
    if device is None:
        raise CounterError("only a model on an NVIDIA GPU has memory counters: bytes stay as counted from the plan.")
    if torch.version.cuda is None:
        raise CounterError("memory counters are read by Nsight Compute, from NVIDIA GPUs alone.")
    tried, log = _watched(compiled, target, knobs, _ncu(knobs))
    found = parse(log)
    if not found:
        raise CounterError(f"no memory counters were read: {_complaint(log)}.")
    for number, (graph, subject, label) in enumerate(tried):
        if number not in found:
            continue
        read, written = found[number]
        seconds = device.profile.replay + device.profile.seconds("copy", read + written)
        record = compiled[graph].record
        record.add("counters", subject, label=label, dram_read=read, dram_written=written, dram_us=seconds * 1e6)


def parse(text: str) -> dict[int, tuple[int, int]]:
    """Bytes read and written under each mark's number, from what `ncu --csv` says."""
    lines = text.splitlines()
    begins = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    read, written, seen = defaultdict[int, float](float), defaultdict[int, float](float), set[int]()
    for row in csv.DictReader(lines[begins:]):
        marks = MARK.findall(" ".join(v for k, v in row.items() if k and isinstance(v, str) and "Push/Pop" in k))
        try:
            size = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        except (KeyError, ValueError, AttributeError, TypeError):
            continue  # not a metric in bytes, or not available
        for kind, number in marks[-1:]:
            seen.add(int(number))
            if row["Metric Name"] == WRITTEN:
                written[int(number)] += size
            elif row["Metric Name"] == READ and kind == "region":
                read[int(number)] += size
    return {n: (round(read[n]), round(written[n])) for n in sorted(seen)}


def _ncu(knobs: Knobs) -> str:
    """The program that reads counters. CounterError where there is none."""
    found = find_ncu(knobs)
    if found is None:
        raise CounterError(f"there is no {knobs.ncu} to read memory counters with: {REMEDY}.")
    return found


def _watched(
    compiled: Sequence[Compiled], target: str, knobs: Knobs, ncu: str
) -> tuple[list[tuple[int, str, str]], str]:
    """What the watched process tried, as (graph, region, candidate), and what ncu wrote."""
    with tempfile.TemporaryDirectory(prefix="interfuse-") as folder:
        log, tried, lock = (Path(folder) / name for name in ("counters.csv", "tried.json", "choices.json"))
        choices: dict[str, Choice] = {}
        for made in compiled:
            planned, device = made.stages.plans.get("plan"), made.stages.device
            if planned is not None and made.plan is not None and device is not None:
                choices |= chosen_so(planned, made.plan, device.key(), knobs)
        lock.write_text(lock_text(choices), encoding="utf-8")
        command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
        command += ["--target-processes", "application-only", "--metrics", f"{READ},{WRITTEN}"]
        command += ["--nvtx", "--nvtx-include", f"{RANGE}/", "--log-file", str(log)]
        options = {"race": False, "lock": str(lock), "off": knobs.off, "fuse": knobs.fuse}
        command += [sys.executable, "-c", CHILD, json.dumps(sys.path), str(tried), target, json.dumps(options)]
        try:
            out, err = _run(command)
        except subprocess.TimeoutExpired:
            raise CounterError(f"reading memory counters took more than {SECONDS} s: give a smaller model.") from None
        except OSError as error:
            raise CounterError(f"{ncu} cannot be run ({error.strerror}): name another in INTERFUSE_NCU.") from None
        logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if "ERR_NVGPUCTRPERM" in logged + out + err:
            raise CounterError(f"no memory counters were read: {NOT_PERMITTED}.")
        if not tried.exists():
            raise CounterError(f"no memory counters were read: {_complaint(err or logged or out)}.")
        return [tuple(row) for row in json.loads(tried.read_text(encoding="utf-8"))], logged  # type: ignore[misc]


def _run(command: Sequence[str]) -> tuple[str, str]:
    """What the command writes. Whatever ends the waiting ends the process that it watches, too."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as ncu:
        try:
            return ncu.communicate(timeout=SECONDS)
        except BaseException:
            os.killpg(ncu.pid, signal.SIGKILL)
            raise


def _complaint(text: str) -> str:
    """The line that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if "==ERROR==" in line]
    return (errors or lines[-1:] or ["ncu said nothing"])[0].rstrip(".")
