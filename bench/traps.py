"""python -m bench.traps [part of a case's name ...]: the known traps of tests/cases.py at the size of real work.

In: parts of case names (all without any). Out: bench/results/traps_cuda.json (traps_cpu.json without a GPU): for each
case the verdict of the numerics contract, the seconds of the first compiled call by stage, what the race of each region
found, and for eager, Interfuse and Inductor microseconds (on a GPU under graph replay), launches, peak bytes and error,
interleaved. Each case runs in a process of its own, whose first call finds empty caches on disk and has the GPU to
itself; others start meanwhile. With `--prepare` Inductor's kernels are compiled before, all cases side by side: the
seconds of its first call are then left out. Results are written after each case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.common import RESULTS, circumstances, commit, save
from bench.memory import alone, load
from interfuse.base.record import Record
from interfuse.driver.backend import Backend
from interfuse.driver.measure import PEERS, launches, measure_model
from interfuse.tune.bench import compare
from tests.cases import CASES, Case
from tests.judge import judge

READY = 6
"""Processes at a time on a GPU: one measures while others start or compile."""

CONTENDERS = ("eager", "interfuse", "inductor")
CHANGING = ("wide_concatenation",)
"""Cases that are measured with sizes that may change between calls too."""

Hold = Callable[[], AbstractContextManager[None]]

CASE_SECONDS = 240


def measure(name: str, case: Case, rounds: int, hold: Hold, peers: str = "", kernels: bool = False) -> dict[str, Any]:
    """What one case's run says. `hold` keeps the GPU from others while something is measured, `peers` is the folder
    with the kernels that `prepare` made.
    """
    with hold():
        function, arguments = case.build(large=True)
        backend = Backend()
        fast = torch.compile(function, backend=backend, dynamic=False)
        row: dict[str, Any] = {"first_s": _first(fast, arguments), "stages_s": _stages(backend.records)}
    row["regions"] = _regions(backend.records)
    if peers:
        os.environ["TRITON_CACHE_DIR"] = peers
    peer = torch.compile(function, **PEERS["inductor"])
    seconds = _first(peer, arguments)
    if not peers:
        row["inductor_first_s"] = seconds
    with hold():
        verdict = judge(function, arguments, fast, case.rule)
        row |= {"ok": verdict.ok, "share_of_allowed": verdict.share, "note": verdict.note}
        record = measure_model(function, fast, arguments, {}, ("inductor",), rounds, name)
        for label, f in (("interfuse", fast), ("inductor", peer)) if kernels and torch.cuda.is_available() else ():
            row[f"{label}_kernels"] = _kernels(f, arguments)
        if name in CHANGING:
            row["interfuse_dynamic"] = _changing(function, arguments, rounds)
    for event in record.of("measure"):
        facts = event.facts
        row[event.subject] = {
            "us": [round(facts[k] * 1e3, 2) for k in ("median_ms", "low_ms", "high_ms")],
            "launches": facts["launches"],
            "peak_mib": round(facts["peak_bytes"] / 2**20, 1),
            "error_rms": facts["error_rms"],
        }
    return row


def _changing(function: Callable[..., Any], arguments: tuple, rounds: int) -> dict[str, Any]:
    """Microseconds, launches and seconds of the first call where all sizes may change between calls."""
    torch._dynamo.reset()
    fast = torch.compile(function, backend=Backend(), dynamic=True)
    seconds = _first(fast, arguments)
    device = arguments[0].device
    timing = compare({"dynamic": lambda: fast(*arguments)}, device, rounds)["dynamic"]
    us = [round(t * 1e6, 2) for t in (timing.median, timing.low, timing.high)]
    return {"us": us, "launches": launches(lambda: fast(*arguments), device), "first_s": seconds}


def prepare(case: Case) -> None:
    """Have Inductor compile a case, so that the caches on disk have its kernels."""
    import torch._inductor.config

    torch._inductor.config.autotune_local_cache = False  # what it would choose beside other work
    function, arguments = case.build(large=True)
    torch.compile(function, **PEERS["inductor"])(*arguments)


def _first(f: Callable[..., Any], arguments: tuple) -> float:
    began = time.perf_counter()
    f(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - began, 2)


def _stages(records: Iterable[Record]) -> dict[str, float]:
    """Seconds of each stage over all graphs."""
    found: dict[str, float] = {}
    for event in (e for r in records for e in r.of("stage")):
        found[event.subject] = round(found.get(event.subject, 0.0) + event.facts["seconds"], 3)
    return found


def _regions(records: Iterable[Record]) -> list[dict[str, Any]]:
    """For each region that was raced, like ones once: how many, what was chosen, and the microseconds of each."""
    found: dict[str, dict[str, Any]] = {}
    for facts in (e.facts for r in records for e in r.of("race")):
        us = {label: round(t["median_us"], 2) for label, t in facts["times"].items()}
        row = found.setdefault(f"{us} {facts['reason']}", {"count": 0, "chosen": facts["chosen"], "us": us})
        row["count"] += 1
        row["why"] = facts["reason"]
    return list(found.values())


def _kernels(f: Callable[..., Any], arguments: tuple) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel of one call, warm."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        f(*arguments)
        torch.cuda.synchronize()
    events = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
    return [(e.name[:60], round(e.device_time, 1)) for e in events[:40]]


def table(rows: Mapping[str, Any]) -> Table:
    """Microseconds, launches, peak MiB and the verdict."""
    out = Table("case", "contract", *(f"{c} us" for c in CONTENDERS), "launches", "peak MiB", "first call s")
    for name, row in rows.items():
        if "fails" in row:
            out.add_row(name, row["fails"])
            continue
        each = [row[c] for c in CONTENDERS]
        firsts = " / ".join(str(row[k]) for k in ("first_s", "inductor_first_s") if k in row)
        cells = [" / ".join(str(c[k]) for c in each) for k in ("launches", "peak_mib")]
        held = f"{row['share_of_allowed']:.0%}" if row["ok"] else row["note"]
        out.add_row(name, held, *(f"{c['us'][0]:.1f}" for c in each), *cells, firsts)
    return out


def in_a_process(name: str, peers: str, *options: str) -> dict[str, Any]:
    """What a fresh process with empty caches prints of a case; what kept it from that under "fails". `peers` is the
    folder of Inductor's caches, "" for an empty one.
    """
    with tempfile.TemporaryDirectory() as own:
        caches = {
            "INTERFUSE_CACHE": f"{own}/ours",
            "TRITON_CACHE_DIR": f"{own}/triton",
            "TORCHINDUCTOR_CACHE_DIR": peers or f"{own}/inductor",
        }
        if "--prepare" in options:
            caches["TRITON_CACHE_DIR"] = f"{peers}/triton"
        if peers:
            caches["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool of compilers a process would be many
        command = [sys.executable, "-m", "bench.traps", "--case", name, "--peers", peers, *options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CASE_SECONDS, check=False, env=os.environ | caches
            )
            return json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            return {"fails": f"took more than {CASE_SECONDS} s"}
        except (json.JSONDecodeError, IndexError):
            return {"fails": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def _one(args: argparse.Namespace) -> None:
    """What a process of one case does: print its row."""
    here = torch.cuda.is_available()
    with torch.no_grad():
        if args.prepare:
            prepare(CASES[args.case])
            print("{}")
            return
        if here:
            load()
            launches(lambda: None, torch.device("cuda"))  # the profiler's start takes a second
        hold = partial(alone, args.lock) if here else nullcontext
        peers = args.peers and f"{args.peers}/triton"
        row = measure(args.case, CASES[args.case], args.rounds, hold, peers, args.kernels)
    print(json.dumps(row))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.traps", description="Measure the known traps.")
    parser.add_argument("parts", nargs="*", help="measure cases whose name holds one of these, in this order")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prepare", action="store_true", help="compile Inductor's kernels first, side by side")
    parser.add_argument("--kernels", action="store_true", help="write down the time of each kernel too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    for hidden in ("--case", "--peers"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help="a file that other processes hold while they measure on this GPU")
    return parser


def main() -> int:
    """Run the command line."""
    args = _parser().parse_args()
    if args.case:
        _one(args)
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = args.out or RESULTS / f"traps_{device}.json"
    data = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    data["circumstances"] = circumstances(device, args.commit)
    chosen = list(dict.fromkeys(n for p in args.parts or [""] for n in CASES if p in n))
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        peers = f"{folder}/peers" if args.prepare else ""
        if args.prepare:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda n: in_a_process(n, peers, "--prepare"), chosen))
        lock = args.lock or f"{folder}/gpu"
        own = ["--rounds", str(args.rounds), "--lock", str(lock), *(["--kernels"] if args.kernels else [])]
        with ThreadPoolExecutor(READY if device == "cuda" else 1) as pool:
            jobs = {pool.submit(in_a_process, name, peers, *own): name for name in chosen}
            for job in track(as_completed(jobs), "measuring", total=len(jobs), console=console):
                data["cases"][jobs[job]] = {**job.result(), "commit": args.commit}
                save(path, data)
                if not console.is_terminal:
                    console.print(jobs[job])
    console.print(table(data["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
