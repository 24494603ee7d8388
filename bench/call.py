"""python -m bench.call: what a call of a one-kernel function on small tensors costs; bench/results/call_cpu.json.

In: nothing. Out: CPU microseconds a call of relu(x + y) * 2 on 8 x 8 tensors, for a trivial AOTAutograd backend that
returns its first input (what Dynamo's entry and AOTAutograd's wrapper cost by themselves), Interfuse and Inductor. They
take turns in one process; each figure is the median of the rounds and the quickest one. CPU time, not wall time: the
work is on one thread, and other processes of the machine should not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.backends.common import aot_autograd

import interfuse
from bench.common import RESULTS, circumstances, commit, save

CALLS = 2000
"""Calls in one sample."""


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One kernel's worth of work."""
    return torch.relu(x + y) * 2


def trivial(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[[list[Any]], list[Any]]:
    """A compiler of AOTAutograd graphs whose functions only hand their first input back."""

    def run(given: list[Any]) -> list[Any]:
        first = given[0]
        given.clear()
        return [first]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def sample(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> float:
    """CPU microseconds a call."""
    began = time.process_time()
    for _ in range(CALLS):
        f(x, y)
    return (time.process_time() - began) / CALLS * 1e6


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Median and best by contender; each in a code object of its own, so that Dynamo caches them apart."""
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    contenders = {
        "trivial": torch.compile(
            lambda x, y: function(x, y), backend=aot_autograd(fw_compiler=trivial, inference_compiler=trivial)
        ),
        "interfuse": interfuse.compile(lambda x, y: function(x, y), race=False),
        "inductor": torch.compile(lambda x, y: function(x, y)),
    }
    with torch.inference_mode():
        samples: dict[str, list[float]] = {label: [] for label in contenders}
        for f in contenders.values():
            sample(f, x, y)
        for _ in range(rounds):
            for label, f in contenders.items():
                samples[label].append(sample(f, x, y))
    return {label: {"median_us": statistics.median(us), "best_us": min(us)} for label, us in samples.items()}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.call", description="Measure the cost of a small call.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path, default=RESULTS / "call_cpu.json")
    args = parser.parse_args()
    found = measure(args.rounds)
    data = {"rounds": args.rounds, "contenders": found, "circumstances": circumstances("cpu", commit())}
    save(args.out, data)
    out = Table("contender", "us a call", "beyond the entry", "best us")
    for label, us in found.items():
        beyond = us["median_us"] - found["trivial"]["median_us"]
        out.add_row(label, f"{us['median_us']:.2f}", f"{beyond:.2f}", f"{us['best_us']:.2f}")
    Console().print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
