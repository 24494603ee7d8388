"""python -m bench.products [part of a case's name ...]: matrix products in f32 on this GPU, under graph replay.

In: parts of case names (all without any). Out: for each case microseconds of eager, interfuse and Inductor's default,
interleaved in this process with L2 flushed by reading; the rate in operations a second; and the root mean square of
eager's and interfuse's errors against float64, as shares of that of the result. PyTorch multiplies all digits
(float32_matmul_precision "highest"). Written to bench/results/products_cuda.json after each case.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import interfuse
from bench.common import RESULTS, circumstances, commit, save
from interfuse.tune.bench import compare

SIZES = (
    (1024, 768, 768),
    (1024, 3072, 768),
    (1024, 768, 3072),
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (8, 4096, 4096),
    (1024, 384, 384),
    (1024, 1536, 384),
    (8192, 1000, 768),
    (4096, 4096, 4096),
)
"""Rows, features and what they have in common: BERT, MiniLM, a decode step, a classifier, and a large one."""

Given = Mapping[str, torch.Tensor]

FUNCTIONS: Mapping[str, Callable[[Given], torch.Tensor]] = {
    "linear": lambda t: F.linear(t["x"], t["w"], t["bias"]),
    "linear_gelu_add": lambda t: F.gelu(F.linear(t["x"], t["w"], t["bias"])) + t["added"],
    "mm": lambda t: t["x"] @ t["turned"],  # features lie side by side, as in GPT-2, or the gradient of the rows
    "weight_gradient": lambda t: t["added"].t() @ t["x"],
}


def given(rows: int, features: int, common: int) -> Given:
    """Random arguments of all functions."""

    def t(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    w = t(features, common) / common**0.5
    known = {"x": t(rows, common), "w": w, "bias": t(features), "added": t(rows, features)}
    return known | {"turned": w.t().contiguous()}


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the error over that of what is exact."""
    return float((got.double() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())


def measure(name: str, sizes: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """One case's figures."""
    function, t = FUNCTIONS[name], given(*sizes)
    torch._dynamo.reset()
    backend = interfuse.compile(function, dynamic=False)
    contenders = {"eager": function, "interfuse": backend, "inductor": torch.compile(function, dynamic=False)}
    calls = {who: (lambda f=f: f(t)) for who, f in contenders.items()}
    with torch.no_grad():
        timings = compare(calls, "cuda", rounds=rounds)
        exact = function({k: v.double() for k, v in t.items()})
        errors = {who: error(contenders[who](t), exact) for who in ("eager", "interfuse")}
    row = {who: [round(v * 1e6, 2) for v in (x.median, x.low, x.high)] for who, x in timings.items()}
    rows, features, common = sizes
    return {**row, "operations": 2 * rows * features * common, "errors": errors}


def table(results: Mapping[str, Any]) -> Table:
    """Microseconds, the rate, what is gained, and errors."""
    out = Table("case", "eager us", "inductor", "interfuse", "TFLOP/s", "against both", "error", "eager's error")
    for name, case in results.items():
        eager, peer, mine = (case[who][0] for who in ("eager", "inductor", "interfuse"))
        rate = f"{case['operations'] / mine / 1e6:.1f}"
        errors = (f"{case['errors'][who]:.1e}" for who in ("interfuse", "eager"))
        times = (f"{v:.1f}" for v in (eager, peer, mine))
        out.add_row(name, *times, rate, f"{min(eager, peer) / mine:.2f}x", *errors)
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.products", description="Measure products in f32 on this GPU."
    )
    parser.add_argument("parts", nargs="*", help="measure cases whose name holds one of these")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS / "products_cuda.json")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; run this on a machine with one.")
    named = {f"{f}/{'x'.join(map(str, sizes))}": (f, sizes) for f in FUNCTIONS for sizes in SIZES}
    data = json.loads(args.out.read_text()) if args.out.exists() else {"cases": {}}
    data["circumstances"] = circumstances("cuda", args.commit)
    console = Console()
    for name, (f, sizes) in named.items():
        if not args.parts or any(p in name for p in args.parts):
            data["cases"][name] = measure(f, sizes, args.rounds)
            save(args.out, data)
    console.print(table(data["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
