"""python -m bench.first: what the first call of BERT-base costs, cold and warm; bench/results/first_cpu.json.

In: nothing. Out: seconds of the first call for each contender, each in a process of its own: cold with empty caches on
disk, warm with what the process before left there. `capture` is Dynamo and AOTAutograd with a backend that compiles
nothing: what any compiler behind them pays. Rounds take turns among the contenders; figures are medians of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.backends.common import aot_autograd

import interfuse
from bench.cases import CASES
from bench.common import RESULTS, circumstances, commit, save

CASE = "bert_base_b1_s128"


def as_captured(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A compiler of AOTAutograd graphs that runs them as they are."""
    return gm


CONTENDERS: dict[str, Callable[[torch.nn.Module], Callable[..., Any]]] = {
    "capture": lambda m: torch.compile(
        m, backend=aot_autograd(fw_compiler=as_captured, inference_compiler=as_captured), dynamic=False
    ),
    "interfuse": lambda m: interfuse.compile(m, dynamic=False),
    "inductor": lambda m: torch.compile(m, dynamic=False),
}


def first_call(contender: str) -> float:
    """Seconds of the first compiled call in this process; eager ran once before, so libraries are loaded."""
    model, inputs, kwargs = CASES[CASE]("cpu")
    with torch.no_grad():
        model(*inputs, **kwargs)
        fast = CONTENDERS[contender](model)
        began = time.perf_counter()
        fast(*inputs, **kwargs)
        return time.perf_counter() - began


def in_a_process(contender: str, caches: Path) -> float:
    """The same in a fresh process whose compilers keep their caches in the folder `caches`."""
    places = {"INTERFUSE_CACHE": "ours", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    environment = {**os.environ, **{name: str(caches / folder) for name, folder in places.items()}}
    command = (sys.executable, "-m", "bench.first", "--contender", contender)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure(rounds: int) -> dict[str, dict[str, Any]]:
    """Cold and warm seconds by contender."""
    seconds: dict[str, dict[str, list[float]]] = {c: {"cold": [], "warm": []} for c in CONTENDERS}
    for _ in range(rounds):
        for contender, found in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    found[state].append(in_a_process(contender, Path(folder)))
    return {
        c: {state: {"median_s": statistics.median(s), "low_s": min(s), "high_s": max(s)} for state, s in found.items()}
        for c, found in seconds.items()
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.first", description="Measure first calls, cold and warm.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=CONTENDERS, help="only print this one's seconds in this process")
    parser.add_argument("--out", type=Path, default=RESULTS / "first_cpu.json")
    args = parser.parse_args()
    if args.contender:
        print(first_call(args.contender))
        return 0
    console = Console()
    with console.status("a process for each first call ..."):
        found = measure(args.rounds)
    data = {"case": CASE, "rounds": args.rounds, "contenders": found, "circumstances": circumstances("cpu", commit())}
    save(args.out, data)
    out = Table("contender", "cold s", "warm s", "warm, beyond capture")
    capture = found["capture"]["warm"]["median_s"]
    for label, states in found.items():
        cold, warm = (states[state]["median_s"] for state in ("cold", "warm"))
        out.add_row(label, f"{cold:.2f}", f"{warm:.2f}", f"{warm - capture:.2f}")
    console.print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
