"""python -m bench.first_gpu: what the first kernel of a process costs on a GPU; bench/results/first_cuda.json.

In: nothing. Out: for each function seconds of its first call without tuning, in a process of its own with empty caches
on disk, Triton's too, and of another function afterwards in the same process. What the figures are:

    capture   Dynamo and AOTAutograd, until the graph is handed over
    plan      reading the graph, the passes, the plan
    build     compiling its kernels in worker processes, and loading them
    launch    the rest of the call: Dynamo's guards, Triton's own first launch, the kernel
    after     plan, build and launch

Processes run `--jobs` at a time and rounds take turns among the functions; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from bench.common import RESULTS, circumstances, commit, save
from interfuse.driver.backend import Backend
from interfuse.driver.device import absent
from interfuse.driver.options import read

PARTS = ("capture", "plan", "build", "launch", "after")
Made = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its inputs."""


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)


FUNCTIONS: Mapping[str, Callable[[], Made]] = {
    "map": lambda: (lambda x, b: F.gelu(x + b), (_t(2048, 4096), _t(4096))),
    "row": lambda: (lambda x, w, b: F.layer_norm(x, (4096,), w, b), (_t(2048, 4096), _t(4096), _t(4096))),
    "column": lambda: (lambda x: torch.var_mean(x.float(), 0), (_t(256, 65536),)),
    "scan": lambda: (lambda x: torch.cumsum(x.float(), -1) * 2, (_t(2048, 4096),)),
    "softmax": lambda: (lambda x, m: torch.softmax(x * 0.125 + m, -1), (_t(8, 1024, 1024), _t(1024, 1024))),
    "cross-entropy": lambda: (
        lambda x, t: F.cross_entropy(x.float(), t),
        (_t(2048, 32000), torch.randint(32000, (2048,))),
    ),
    "in parts": lambda: (lambda x: x / x.float().pow(2).sum().sqrt(), (_t(2048, 4096),)),
    "concat": lambda: (lambda a, b, c: torch.cat([a + 1, F.relu(b), c * 2], -1), tuple(_t(2048, 512) for _ in "abc")),
}
"""One-kernel functions (in parts: two) by name."""


def after(name: str) -> str:
    """The function whose first call follows that of `name` in its process."""
    names = list(FUNCTIONS)
    return names[(names.index(name) + 1) % len(names)]


def first_call(name: str, gpu: str = "") -> dict[str, float]:
    """Seconds of a function's first call, by PARTS. With `gpu`, one that need not be here, nothing is launched."""
    with torch.device("cpu" if gpu else "cuda"):
        function, inputs = FUNCTIONS[name]()
    if not gpu:
        torch.cuda.synchronize()
    begun: dict[str, float] = {}
    torch._dynamo.reset()
    with torch.no_grad():
        start = time.perf_counter()

        def watch(stage: str, done: int = 0, total: int = 0) -> None:
            begun.setdefault(stage, time.perf_counter() - start)

        options, device = read(None, {"race": False}), absent(gpu) if gpu else None
        backend = Backend(options, watch=watch, stop="build" if gpu else "", absent=device)
        torch.compile(function, backend=backend, dynamic=False)(*inputs)
        if not gpu:
            torch.cuda.synchronize()
        end = time.perf_counter() - start
    (made,) = backend.compiled
    wrong = [e.facts["error"] for kind in ("fallback", "warning") for e in made.record.of(kind)]
    if wrong or not made.record.of("kernel"):
        raise RuntimeError(f"{name}: {wrong or 'no kernel was built'}")
    ends = begun.get("program", end)
    found = {
        "capture": begun["capture"],
        "plan": begun["build"] - begun["capture"],
        "build": ends - begun["build"],
        "launch": end - ends,
        "after": end - begun["capture"],
    }
    return {part: round(seconds, 3) for part, seconds in found.items()}


def in_a_process(name: str, gpu: str = "") -> dict[str, dict[str, float]]:
    """`first_call` of the function and then of the one after it, in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"INTERFUSE_CACHE": f"{folder}/ours", "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, "-m", "bench.first_gpu", "--function", name, *(["--gpu", gpu] if gpu else [])]
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(names: list[str], rounds: int, jobs: int, gpu: str = "") -> dict[str, Any]:
    """Medians by function, as the first of its process and ("resident") as the second."""
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda n: (n, in_a_process(n, gpu)), names * rounds))
    seen: dict[str, dict[str, list[dict[str, float]]]] = {n: {"first": [], "resident": []} for n in FUNCTIONS}
    for name, both in found:
        seen[name]["first"].append(both["first"])
        seen[after(name)]["resident"].append(both["resident"])
    return {
        name: {
            k: {p: round(statistics.median(r[p] for r in runs), 3) for p in PARTS} for k, runs in kinds.items() if runs
        }
        for name, kinds in seen.items()
        if any(kinds.values())
    }


def table(functions: Mapping[str, Any]) -> Table:
    """Seconds of each part of each function's first call."""
    out = Table("function", *(f"{p} s" for p in PARTS), "later in a process: after s")
    for name, row in functions.items():
        cells = [f"{row['first'][p]:.2f}" if "first" in row else "" for p in PARTS]
        out.add_row(name, *cells, f"{row['resident']['after']:.2f}" if "resident" in row else "")
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_gpu", description="Measure first calls on a GPU.")
    parser.add_argument("names", nargs="*", help=f"functions, of {', '.join(FUNCTIONS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--gpu", default="", help="only plan and compile, for this GPU of the device table")
    parser.add_argument("--out", type=Path, default=RESULTS / "first_cuda.json")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    parser.add_argument("--function", choices=FUNCTIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.function:
        calls = {"first": args.function, "resident": after(args.function)}
        print(json.dumps({kind: first_call(name, args.gpu) for kind, name in calls.items()}))
        return 0
    if not args.gpu and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; run this on a machine with one, or name one with --gpu.")
    found = measure(args.names or list(FUNCTIONS), args.rounds, args.jobs, args.gpu)
    if not args.gpu:
        data = {"rounds": args.rounds, "jobs": args.jobs, "functions": found}
        save(args.out, data | {"circumstances": circumstances("cuda", args.commit)})
    Console().print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
