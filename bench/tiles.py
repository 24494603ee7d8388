"""python -m bench.tiles: f32 products on a CPU's tile registers beside the libraries'; bench/results/tiles_cpu.json.

Out: for sizes of BERT and MiniLM, on one thread and on all, milliseconds of eager (MKL), oneDNN and interfuse.linear,
which take turns: the quickest round, the median and the slowest tenth. Two hardware threads of a core share its tile
registers, so on a machine with neighbours the quickest round and the median tell different things, and both stand in
the file. Beside them the root mean square of errors against float64, as shares of that of the result.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.common import RESULTS, circumstances, commit, save
from bench.products import error
from interfuse.base.knobs import current
from interfuse.run.linear import missing
from interfuse.run.providers import PROVIDERS

SIZES = ((1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (128, 768, 768), (128, 3072, 768), (1024, 1536, 384))
"""Rows, features and what they have in common."""

ROUTINES = {"eager": "aten.linear", "onednn": "onednn.linear", "interfuse": "interfuse.linear"}


def measure(sizes: tuple[int, int, int], threads: int, rounds: int) -> dict[str, Any]:
    """One case's figures."""
    rows, features, common = sizes
    tensors = [torch.randn(rows, common), torch.randn(features, common) / common**0.5, torch.randn(features)]
    runs: Mapping[str, Callable[[], torch.Tensor]] = {
        who: partial(PROVIDERS[name].run, tensors, {}) for who, name in ROUTINES.items()
    }
    torch.set_num_threads(threads)
    exact = torch.nn.functional.linear(*(t.double() for t in tensors))
    errors = {who: error(run(), exact) for who, run in runs.items()}
    taken: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            begin = time.perf_counter()
            run()
            taken[who].append((time.perf_counter() - begin) * 1e3)
    figures = {
        who: {"best": min(t), "median": statistics.median(t), "slow": statistics.quantiles(t, n=10)[-1]}
        for who, t in taken.items()
    }
    return {"ms": figures, "errors": errors, "operations": 2 * rows * features * common}


def table(results: Mapping[str, Any]) -> Table:
    """Rates in the quickest round and in the median one, and errors."""
    out = Table("case", *(f"{who} GFLOP/s" for who in ROUTINES), "quickest", "median", "error", "eager's")
    for name, case in results.items():
        ms = case["ms"]
        rates = (f"{case['operations'] / ms[w]['best'] / 1e6:.0f}" for w in ROUTINES)
        gained = (f"{min(ms['eager'][k], ms['onednn'][k]) / ms['interfuse'][k]:.2f}x" for k in ("best", "median"))
        out.add_row(name, *rates, *gained, *(f"{case['errors'][w]:.1e}" for w in ("interfuse", "eager")))
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.tiles", description="Measure products on tile registers.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS / "tiles_cpu.json")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    if (reason := missing(current())) is not None:
        parser.error(f"there is nothing to measure: {reason}.")
    most = torch.get_num_threads()
    data: dict[str, Any] = {"circumstances": circumstances("cpu", args.commit), "cases": {}}
    cases = [(sizes, threads) for threads in dict.fromkeys((1, most)) for sizes in SIZES]
    for sizes, threads in track(cases, description="products"):
        name = f"{'x'.join(map(str, sizes))}/{threads}"
        data["cases"][name] = measure(sizes, threads, args.rounds)
        save(args.out, data)
    torch.set_num_threads(most)
    Console().print(table(data["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
