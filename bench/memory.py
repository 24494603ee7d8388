"""python -m bench.memory [part of a case's name ...]: 81 memory-bound kernels on this GPU.

In: parts of case names (all without any). Out: bench/results/memory_cuda.json: for each case microseconds of eager,
Interfuse, Inductor (default and max-autotune) and, where it is installed and has the operator, Liger, under graph
replay and as plain calls, beside the ceiling twin (bench/twin.py) and a graph of a null kernel. Both null times stand
there once more, measured by themselves: a null graph takes half a microsecond longer between others than alone. Each
case runs in a process of its own, all contenders interleaved in it, the second-level cache flushed by reading. Before
that, processes side by side compile every contender's kernels into the caches on disk; whatever is measured, autotuning
included, has the GPU to itself. Results are written after each case; a case that the file has at this commit is not run
again.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils._pytree import tree_flatten

import interfuse
from bench.common import RESULTS, circumstances, commit, save
from bench.liger import liger_form
from bench.memory_cases import CASES, FIRST
from bench.twin import twins
from interfuse.tune.bench import Timing, compare

CASE_SECONDS = 240
READY = 4
"""Processes at a time when measuring: one measures while the others start."""

MODES = {"inductor": None, "inductor_max": "max-autotune-no-cudagraphs"}
PEERS = ("inductor", "inductor_max", "inductor_plain", "inductor_max_plain")
"""Inductor's four: default and max-autotune, under graph replay and as plain calls."""


def moved(values: Iterable[Any]) -> list[torch.Tensor]:
    """Each tensor's memory once, whichever of its views is there, on the GPU and dense."""
    found: dict[int, torch.Tensor] = {}
    for t in tree_flatten(list(values))[0]:
        if isinstance(t, torch.Tensor) and t.is_cuda:
            found.setdefault(t.data_ptr(), t)
    return list(found.values())


def size(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def contenders(name: str, peers: bool, **options: Any) -> dict[str, Callable[..., Any]]:
    """Eager and the compiled forms of a case's function, by name; `options` go to Interfuse."""
    case = CASES[name]
    found = {"eager": case.function, "interfuse": interfuse.compile(case.function, dynamic=case.dynamic, **options)}
    if peers and (liger := liger_form(name)) is not None:
        found["liger"] = liger
    for peer, mode in MODES.items() if peers else ():
        found[peer] = torch.compile(case.function, dynamic=case.dynamic, mode=mode)
    return found


def prepare(name: str) -> None:
    """Compile every contender, so that the caches on disk have its kernels. What autotuning chooses beside other work
    is not kept.
    """
    import torch._inductor.config

    torch._inductor.config.autotune_local_cache = False
    inputs = CASES[name].inputs()
    with torch.no_grad():
        for f in contenders(name, True, race=False).values():
            try:
                f(*inputs)
            except Exception:  # told when it is measured
                continue


def load() -> None:
    """Import what compiling imports and wake the GPU: other processes may measure meanwhile."""
    for module in ("torch._inductor.compile_fx", "torch._inductor.codegen.triton", "torch._inductor.select_algorithm"):
        importlib.import_module(module)
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))
    torch._dynamo.reset()
    torch.cuda.synchronize()


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Holds the GPU against other processes with the same lock."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def measure(name: str, rounds: int, peers: bool = True) -> dict[str, Any]:
    """One case's microseconds, and the bytes that its tensors hold."""
    case = CASES[name]
    inputs = case.inputs()
    calls, out = {}, {}
    with torch.no_grad():
        reads, writes = moved(inputs), moved([case.function(*inputs)])
        for contender, f in contenders(name, peers).items():
            try:
                f(*inputs)
            except Exception as error:  # a peer that fails on a case is left out, and says why
                out[f"{contender}_fails"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            calls[contender] = lambda f=f: f(*inputs)  # type: ignore[misc]
        replayed = compare({**calls, **twins(reads, writes), "null": null()}, "cuda", rounds)
        plain = compare(calls, "cuda", rounds, replay=False)
    ceiling = min((t for n, t in replayed.items() if n.startswith("twin")), key=lambda t: t.median)
    out |= {n: _us(t) for n, t in replayed.items() if not n.startswith("twin")}
    out |= {f"{n}_plain": _us(t) for n, t in plain.items()}
    return {**out, "twin": _us(ceiling), "bytes": size(reads) + size(writes)}


def _us(t: Timing) -> list[float]:
    return [round(v * 1e6, 2) for v in (t.median, t.low, t.high)]


def null() -> Callable[[], Any]:
    """A kernel on one element."""
    one = torch.zeros(1, device="cuda")
    return lambda: one.add_(1)


def nothing() -> dict[str, float]:
    """Microseconds of a kernel on one element, as a plain call and as a graph, with nothing measured in between."""
    calls = {"null": null()}
    plain, replayed = compare(calls, "cuda", 100, replay=False), compare(calls, "cuda", 100)
    return {"null_kernel_us": round(plain["null"].median * 1e6, 2), "null_graph_us": _us(replayed["null"])[0]}


def best_peer(row: Mapping[str, Any], names: Iterable[str] = PEERS) -> list[float] | None:
    """The fastest of the named that the case has, as [median, low, high]."""
    there = [row[n] for n in names if n in row]
    return min(there, default=None, key=lambda t: t[0])


def table(rows: Mapping[str, Any]) -> Table:
    """Microseconds with the 95% interval of ours, the share of the twin's speed, and the gain over the best peers."""
    heads = ("case", "null us", "twin us", "eager", "best Inductor", "Liger", "interfuse", "95%", "of twin")
    out = Table(*heads, "against Inductor", "")
    for name, row in rows.items():
        if "interfuse" not in row:
            out.add_row(name, *[""] * 9, row.get("interfuse_fails", row.get("fails", "")))
            continue
        mine, peer = row["interfuse"], best_peer(row)
        rival = best_peer(row, (*PEERS, "eager", "eager_plain"))
        behind = "behind" if rival is not None and rival[0] < 0.97 * mine[1] else ""
        liger = best_peer(row, ("liger", "liger_plain"))
        others = (f"{t[0]:.1f}" if t else "" for t in (peer, liger))
        empty = f"{row['null'][0]:.1f}" if "null" in row else ""
        cells = (empty, f"{row['twin'][0]:.1f}", f"{row['eager'][0]:.1f}", *others, f"{mine[0]:.1f}")
        gain = f"{peer[0] / mine[0]:.2f}x" if peer else ""
        out.add_row(name, *cells, f"{mine[1]:.1f}-{mine[2]:.1f}", f"{row['twin'][0] / mine[0]:.0%}", gain, behind)
    return out


def gain(rows: Mapping[str, Any], names: Iterable[str]) -> tuple[float, int]:
    """The geometric mean of the best Inductor's time over ours, and of how many cases."""
    ratios = [peer[0] / row["interfuse"][0] for n in names if (row := rows.get(n)) and (peer := best_peer(row))]
    return statistics.geometric_mean(ratios) if ratios else math.nan, len(ratios)


def in_a_process(name: str, *options: str) -> dict[str, Any]:
    """What a fresh process with these options prints of a case; what kept it from that under "fails"."""
    command = [sys.executable, "-m", "bench.memory", "--case", name, *options]
    own = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # a pool of compilers a process would be many
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_SECONDS, check=False, env=own)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"fails": f"took more than {CASE_SECONDS} s"}
    except (json.JSONDecodeError, IndexError):
        return {"fails": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def side_by_side(
    names: Iterable[str], workers: int, options: Iterable[str], console: Console, told: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case by a process of its own, so many at a time; with a progress bar, in the order in which they end."""
    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(in_a_process, name, *options): name for name in names}
        try:
            for job in track(as_completed(jobs), told, total=len(jobs), console=console):
                yield jobs[job], job.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description="Measure memory-bound kernels.")
    parser.add_argument("parts", nargs="*", help="measure cases whose name holds one of these")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-peers", action="store_true", help="leave Inductor out")
    parser.add_argument("--compiled", action="store_true", help="the caches on disk have every contender's kernels")
    parser.add_argument("--again", action="store_true", help="measure cases that the file has at this commit too")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="take the cases of these files in first")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory_cuda.json")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; run this on a machine with one.")
    if args.case and args.prepare:
        prepare(args.case)
        print("{}")
        return 0
    if args.case:
        load()
        with alone(args.lock):
            print(json.dumps(measure(args.case, args.rounds, not args.no_peers)))
        return 0
    data = json.loads(args.out.read_text()) if args.out.exists() else {"cases": {}}
    for path in args.merge:
        data["cases"] |= json.loads(path.read_text())["cases"]
    data |= {**nothing(), "circumstances": circumstances("cuda", args.commit), "first": list(FIRST)}
    chosen = [n for n in CASES if not args.parts or any(p in n for p in args.parts)]
    left = [n for n in chosen if args.again or data["cases"].get(n, {}).get("commit") != args.commit]
    console = Console()
    if not args.no_peers and not args.compiled:
        for _ in side_by_side(left, os.cpu_count() or 1, ["--prepare"], console, "compiling"):
            pass
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rounds", str(args.rounds), "--lock", f"{folder}/gpu", *(["--no-peers"] if args.no_peers else [])]
        for name, row in side_by_side(left, READY, options, console, "measuring"):
            data["cases"][name] = {**row, "commit": args.commit}
            save(args.out, data)
    console.print(table({n: data["cases"][n] for n in CASES if n in data["cases"]}))
    for label, names in (("the first 41", FIRST), ("all", CASES)):
        mean, count = gain(data["cases"], names)
        console.print(f"geometric mean against the best of Inductor's four, {label}: {mean:.2f}x of {count} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
