"""python -m bench.gpu [part of a case's name ...]: memory-bound kernels in fp16 on this GPU, under graph replay.

In: parts of case names (all without any). Out: microseconds of eager, interfuse and Inductor's default, interleaved in
this process with L2 flushed by reading; beside them the time of the case's bytes at the copy bandwidth of this run,
and of a graph with one tiny kernel. Written to bench/results/kernels_cuda.json after each case.
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

SIZES = {"seed": (1, 2048, 4096), "big": (8, 4096, 4096)}
MIB = 1 << 20

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]


def _rms(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x + r
    return a * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(a.dtype) * w, a


def cases() -> Mapping[str, Callable[[], Made]]:
    """Name -> a maker of (function, arguments, bytes read and written)."""
    found: dict[str, Callable[[], Made]] = {}

    def t(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    def add(name: str, shape: tuple[int, ...], f: Callable[..., Any], sides: str, wide: float) -> None:
        """`sides` spells the arguments: x like the shape, w one row; `wide` tensors of the shape cross memory."""
        size = 2 * torch.Size(shape).numel()

        def make() -> Made:
            return f, tuple(t(*shape) if s == "x" else t(shape[-1]) for s in sides), int(wide * size)

        found[name] = make

    for size, shape in SIZES.items():
        width = shape[-1]
        add(f"bias_gelu_res/{size}", shape, lambda x, r, b: F.gelu(x + b) + r, "xxw", 3)
        add(f"bias_gelu_tanh_res/{size}", shape, lambda x, r, b: F.gelu(x + b, approximate="tanh") + r, "xxw", 3)
        add(f"add_ln/{size}", shape, lambda x, r, w, b, n=width: F.layer_norm(x + r, (n,), w, b), "xxww", 3)
        add(f"softmax/{size}", shape, lambda x: torch.softmax(x, -1), "x", 2)
        add(f"swiglu/{size}", shape, lambda x, n=width // 2: F.silu(x[..., :n]) * x[..., n:], "x", 1.5)
        add(f"rms_res/{size}", shape, _rms, "xxw", 4)
        add(f"mean_var/{size}", shape, lambda x: torch.var_mean(x.float(), -1), "x", 1)
        add(f"relu_add_mul/{size}", shape, lambda x: (F.relu(x) + 1) * 0.5, "x", 2)
        add(f"cumsum_scale/{size}", shape, lambda x, s: torch.cumsum(x.float(), -1) * s, "xw", 3)
        add(f"col_mean_var/{size}", shape, lambda x: torch.var_mean(x.float(), (0, 1)), "x", 1)
    return found


def copy_bandwidth() -> float:
    """Bytes a second of a kernel that reads and writes a large tensor (a graph would hand a plain copy to the copy
    engine).
    """
    x = torch.empty(1 << 29, device="cuda", dtype=torch.float16).normal_()
    y = torch.empty_like(x)
    compare({"warm": lambda: torch.neg(x, out=y)}, "cuda", rounds=200)  # clocks rise with work
    return 2 * x.numel() * 2 / compare({"copy": lambda: torch.neg(x, out=y)}, "cuda", rounds=30)["copy"].median


def measure(make: Callable[[], Made], bandwidth: float, rounds: int) -> dict[str, Any]:
    """One case's microseconds, each contender under graph replay, and what it launches."""
    function, arguments, moved = make()
    torch._dynamo.reset()
    contenders = {
        "eager": function,
        "interfuse": interfuse.compile(function, dynamic=False),
        "inductor": torch.compile(function, dynamic=False),
    }
    calls = {name: (lambda f=f: f(*arguments)) for name, f in contenders.items()}
    with torch.no_grad():
        timings = compare(calls, "cuda", rounds=rounds)
    row = {name: [round(v * 1e6, 2) for v in (x.median, x.low, x.high)] for name, x in timings.items()}
    return {**row, "floor": round(moved / bandwidth * 1e6, 2), "bytes": moved}


def table(results: Mapping[str, Any]) -> Table:
    """Microseconds, and shares of the floor."""
    out = Table("case", "floor us", "eager", "interfuse", "inductor", "of floor", "against inductor")
    for name, case in results.items():
        mine, peer = case["interfuse"][0], case["inductor"][0]
        cells = (f"{case['floor']:.1f}", f"{case['eager'][0]:.1f}", f"{mine:.1f}", f"{peer:.1f}")
        out.add_row(name, *cells, f"{case['floor'] / mine:.0%}", f"{peer / mine:.2f}x")
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description="Measure memory-bound kernels on this GPU."
    )
    parser.add_argument("parts", nargs="*", help="measure cases whose name holds one of these")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels_cuda.json")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; run this on a machine with one.")
    chosen = {n: m for n, m in cases().items() if not args.parts or any(p in n for p in args.parts)}
    data = json.loads(args.out.read_text()) if args.out.exists() else {"cases": {}}
    one = torch.zeros(1, device="cuda")
    data["null_us"] = round(compare({"null": lambda: one.add_(1)}, "cuda")["null"].median * 1e6, 2)
    bandwidth = copy_bandwidth()
    data |= {"copy_gb_s": round(bandwidth / 1e9, 1), "circumstances": circumstances("cuda", args.commit)}
    console = Console()
    for name, make in chosen.items():
        try:
            data["cases"][name] = measure(make, bandwidth, args.rounds)
        except torch.OutOfMemoryError:
            console.print(f"{name}: out of memory, left out")
            continue
        save(args.out, data)
        torch.cuda.empty_cache()
    console.print(table(data["cases"]), f"copy {bandwidth / 1e9:.0f} GB/s, null graph {data['null_us']} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
