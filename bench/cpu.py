"""python -m bench.cpu [case ...]: CPU kernels beside eager, Inductor and a bare loop; bench/results/cpu.json.

In: case names, whole or in part ("softmax", "bf16/256x4096"); all that are not measured yet without any. Out: a data
file, written after each case, so that an interrupted run keeps what it measured. All contenders take turns in one
process, each after each other one equally often. Each case is measured in two modes of the allocator: "fresh", as the C
library is by default, where outputs of 32 MiB and more are mapped anew at each call (Interfuse's and the twin's lie in
its pool of pages), and "reused", where it is told to keep freed memory.

Beside the twin, a bare loop over the same bytes, runs the phase twin where there is one (bench/phases.py): Interfuse's
kernel without its arithmetic, into results that are there already. What passes over a row in the caches cost by
themselves is the difference between the two. `--phases` measures these three alone, on one thread in reused memory, and
keeps the quickest rounds: figures that a machine with other work on it gives, too.

Wall time is the median of the rounds with its 95% interval; `best` is the quickest round and `cpu_ms` the median of
the process's CPU time, for machines that others work on too: `load` tells how many did.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import interfuse
from bench.common import RESULTS, circumstances, commit, save
from bench.cpu_cases import CASES, DTYPES, SIZES, TWINS
from bench.phases import bare
from interfuse.base.knobs import current, override
from interfuse.base.record import Record
from interfuse.capture.torch_types import to_torch
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.ir.node import Node
from interfuse.plan.plan import KernelStep
from interfuse.run.pool import SHARED
from interfuse.tune.bench import summary

PATH = RESULTS / "cpu.json"
NAMES = tuple(f"{case}/{dtype}/{size}" for size in SIZES for dtype in DTYPES for case in CASES)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Numbers of mallopt(3)'s parameters."""

LEARNT = 32 << 20
"""Where glibc's threshold of mapping ends up by itself, after large blocks were freed: what is smaller is kept."""

NOTE = (
    "Milliseconds a call; `cores` is the number of threads of every contender. Other processes may run beside: `load` "
    "is the load average when a case began, and where it is above the cores best_ms and cpu_ms say more than median_ms."
)
"""What a reader of the data file must know."""

Work = Callable[[], Any]


def keep_freed_memory(keep: bool) -> bool:
    """Tell the C library to keep freed memory for the next call, or to hand it back as usual; False where it cannot."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    library.mallopt(M_MMAP_MAX, 0 if keep else 65536)
    library.mallopt(M_MMAP_THRESHOLD, LEARNT)
    library.mallopt(M_TRIM_THRESHOLD, 1 << 30 if keep else 2 * LEARNT)
    if not keep:
        library.malloc_trim(0)
    return True


def orders(labels: Sequence[str]) -> list[list[str]]:
    """Turns in which each contender follows each other one equally often: what the caches hold is nobody's advantage.

    A Williams square: rows 0, 1, n - 1, 2, n - 2, ... each shifted by one; with an odd number also backwards.
    """
    n = len(labels)
    zigzag = [0, *(k for pair in zip(range(1, n), range(n - 1, 0, -1), strict=True) for k in pair)][:n]
    square = [[labels[(k + shift) % n] for k in zigzag] for shift in range(n)]
    return square if n % 2 == 0 else [*square, *(row[::-1] for row in square)]


def rounds(contenders: Mapping[str, Work], count: int) -> dict[str, dict[str, float]]:
    """Figures of each contender from `count` interleaved rounds, after two that are not counted."""
    wall: dict[str, list[float]] = {label: [] for label in contenders}
    cpu: dict[str, list[float]] = {label: [] for label in contenders}
    labels = list(contenders)
    turns = orders(labels)
    for number in range(-2, count):
        for label in turns[number % len(turns)]:
            cpu_began, began = time.process_time(), time.perf_counter()
            contenders[label]()
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            if number >= 0:
                wall[label].append(seconds * 1e3)
                cpu[label].append(cpu_seconds * 1e3)
    found = {}
    for label in labels:
        t = summary(wall[label])
        found[label] = {
            "median_ms": t.median,
            "low_ms": t.low,
            "high_ms": t.high,
            "best_ms": min(wall[label]),
            "cpu_ms": statistics.median(cpu[label]),
        }
    return found


def contenders_of(name: str) -> tuple[dict[str, Work], int]:
    """Who runs in a case, ready to be called, and the bytes that have to cross memory at least."""
    case_name, dtype, size = name.split("/")
    case = CASES[case_name]
    torch.manual_seed(0)
    inputs = case.inputs(*SIZES[size], DTYPES[dtype])
    torch._dynamo.reset()
    twin = TWINS[case.twin]
    made: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "eager": (case.function, inputs),
        "interfuse": (interfuse.compile(case.function, dynamic=False), inputs),
        "inductor": (torch.compile(case.function, backend="inductor", dynamic=False), inputs),
        "twin": (interfuse.compile(twin.function, dynamic=False, race=False), inputs[: twin.reads]),
    }
    whole = inputs[0].numel() * inputs[0].element_size()
    works = {k: _bound(f, args) for k, (f, args) in made.items()}
    phases = phase_twin(case.function, inputs)
    return works | ({"phases": phases} if phases else {}), whole * (twin.reads + twin.writes)


def phase_twin(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Work | None:
    """The kernel that Interfuse makes of a function, without its arithmetic; None where it is not one kernel that has
    such a twin.
    """
    backend = Backend(read("no-race"))
    torch.compile(lambda *a: function(*a), backend=backend, dynamic=False)(*inputs)
    (made,) = backend.compiled
    regions, device = (made.plan.regions if made.plan else ()), made.stages.device
    steps = [s for r in regions for c in r.candidates if c.launches == 1 for s in c.steps if isinstance(s, KernelStep)]
    if len(regions) != 1 or not steps or device is None:
        return None
    step = steps[0]
    try:
        kernel = bare(step.kernel)
    except ValueError:
        return None
    launchers, failed = device.build((kernel,), current(), Record())
    if failed:
        return None
    given = _paired([i.node for i in made.stages.graphs["capture"].inputs], inputs)
    made_here = [p for p in kernel.params if p.mode == "out"]  # on pages of the pool, as the kernel's own results are
    outs = [SHARED.empty_strided(p.shape, p.strides, to_torch(p.dtype), current().pool_mib << 20) for p in made_here]
    return partial(launchers[kernel.name], [*(given[n] for n in step.inputs), *outs])


def _paired(nodes: Sequence[Node], inputs: Sequence[torch.Tensor]) -> dict[Node, torch.Tensor]:
    """An input of its type and shape for each node: a captured graph has inputs in the order in which they are used."""
    left, found = list(inputs), {}
    for node in nodes:
        k = next(k for k, t in enumerate(left) if (to_torch(node.dtype), node.shape) == (t.dtype, tuple(t.shape)))
        found[node] = left.pop(k)
    return found


def _bound(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Work:
    return lambda: function(*inputs)


def measure(name: str, count: int) -> dict[str, Any]:
    """One case in both modes of the allocator."""
    works, moved = contenders_of(name)
    result: dict[str, Any] = {"bytes": moved, "rounds": count, "load": os.getloadavg()[0]}
    for mode in ("fresh", "reused"):
        if keep_freed_memory(mode == "reused") or mode == "fresh":
            result[mode] = rounds(works, count)
    keep_freed_memory(False)
    return result


def measure_phases(name: str, count: int) -> dict[str, Any] | None:
    """The quickest rounds of one case, its twin and its phase twin; None where it has no phase twin."""
    case_name, dtype, size = name.split("/")
    case = CASES[case_name]
    torch.manual_seed(0)
    inputs = case.inputs(*SIZES[size], DTYPES[dtype])
    torch._dynamo.reset()
    twin, phases = TWINS[case.twin], phase_twin(case.function, inputs)
    if phases is None:
        return None
    works = {
        "interfuse": _bound(interfuse.compile(case.function, dynamic=False, race=False), inputs),
        "twin": _bound(interfuse.compile(twin.function, dynamic=False, race=False), inputs[: twin.reads]),
        "phases": phases,
    }
    keep_freed_memory(True)
    found = {who: {"best_ms": figures["best_ms"]} for who, figures in rounds(works, count).items()}
    keep_freed_memory(False)
    return {"rounds": count, "threads": torch.get_num_threads(), "load": os.getloadavg()[0], **found}


def phases_table(cases: Mapping[str, Any]) -> Table:
    """Milliseconds of the quickest rounds, and the share of both twins' speed."""
    out = Table("case", "interfuse ms", "twin ms", "phases ms", "of the twin", "of the phases", title="phases")
    for name, case in cases.items():
        ms = {who: case[who]["best_ms"] for who in ("interfuse", "twin", "phases")}
        shares = (f"{ms[who] / ms['interfuse']:.0%}" for who in ("twin", "phases"))
        out.add_row(name, *(f"{v:.3f}" for v in ms.values()), *shares)
    return out


def table(cases: Mapping[str, Any], mode: str) -> Table:
    """Milliseconds by the median, how many times faster than the others, and the share of the twin's speed."""
    out = Table(
        *("case", "eager ms", "inductor ms", "interfuse ms", "twin ms", "phases ms"),
        *("x eager", "x inductor", "of the twin", "of the phases"),
        title=mode,
    )
    for name in sorted(cases, key=lambda n: NAMES.index(n) if n in NAMES else len(NAMES)):
        found = cases[name].get(mode)
        if found is None:
            continue
        ms = {label: figures["median_ms"] for label, figures in found.items()}
        ours = ms["interfuse"]
        out.add_row(
            name,
            *(f"{ms[k]:.3f}" if k in ms else "" for k in ("eager", "inductor", "interfuse", "twin", "phases")),
            f"{ms['eager'] / ours:.2f}x",
            f"{ms['inductor'] / ours:.2f}x",
            f"{ms['twin'] / ours:.0%}",
            f"{ms['phases'] / ours:.0%}" if "phases" in ms else "",
        )
    return out


def geomeans(cases: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster than Inductor, as geometric means by mode and element type."""
    found: dict[str, list[float]] = {}
    for name, case in cases.items():
        for mode in ("fresh", "reused"):
            if mode in case:
                ratio = case[mode]["inductor"]["median_ms"] / case[mode]["interfuse"]["median_ms"]
                found.setdefault(f"{mode}/{name.split('/')[1]}", []).append(ratio)
    return {key: statistics.geometric_mean(ratios) for key, ratios in sorted(found.items())}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description="Measure CPU kernels.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="parts of names like gelu_erf/f32/2048x4096")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of every contender")
    parser.add_argument(
        "--phases", action="store_true", help="measure large cases beside their phase twins, one thread"
    )
    parser.add_argument("--again", action="store_true", help="measure what the data file has already, too")
    parser.add_argument("--out", type=Path, default=PATH)
    args = parser.parse_args()
    unknown = [part for part in args.cases if not any(part in name for name in NAMES)]
    if unknown:
        parser.error(f"no case has {', '.join(unknown)} in its name; the names are {', '.join(NAMES)}")
    data = json.loads(args.out.read_text()) if args.out.exists() else {"cases": {}}
    wanted = [n for n in NAMES if not args.cases or any(part in n for part in args.cases)]
    todo = wanted if args.again or args.cases else [n for n in wanted if n not in data["cases"]]
    torch.set_num_threads(1 if args.phases else args.threads)
    console, told = Console(), circumstances("cpu", commit())
    with tempfile.TemporaryDirectory() as folder, override(cache_dir=Path(folder)), torch.inference_mode():
        try:
            for name in track([n for n in wanted if "f32/2048" in n] if args.phases else [], "phases", transient=True):
                if (found := measure_phases(name, args.rounds)) is not None:
                    data.setdefault("phases", {})[name] = {**found, "circumstances": told}
                    save(args.out, data)
            for name in track([] if args.phases else todo, "measuring", console=Console(stderr=True), transient=True):
                data["cases"][name] = {**measure(name, args.rounds), "circumstances": told}
                data |= {"note": NOTE, "geomean_against_inductor": geomeans(data["cases"])}
                save(args.out, data)
        except KeyboardInterrupt:
            console.print("stopped; what was measured is kept")
    console.print(phases_table(data.get("phases", {})))
    for mode in () if args.phases else ("fresh", "reused"):
        console.print(table({n: c for n, c in data["cases"].items() if n in wanted}, mode))
    console.print({key: f"{ratio:.2f}x" for key, ratio in geomeans(data["cases"]).items()})
    console.print(f"written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
