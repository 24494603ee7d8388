"""python -m bench [case ...]: measure models, write bench/results/models_<device>.json, print one table.

In: case names (all without any). Out: a data file with device, versions, commit and date beside the figures of every
case; cases that are not named keep the figures that the file has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from rich.console import Console
from rich.table import Table

import interfuse
from bench.cases import CASES
from interfuse.base.knobs import override

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The commit that is measured, with "+" where the tree has changes; "" outside git."""

    def git(*args: str) -> str:
        done = subprocess.run(("git", *args), capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ":/src") else "")


def circumstances(device: str, measured: str) -> dict[str, Any]:
    """What the figures depend on; `measured` is the commit."""
    name = torch.cuda.get_device_name() if device == "cuda" else _cpu_name()
    return {
        "device": name,
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "interfuse": interfuse.__version__,
        "triton": triton.__version__,
        "commit": measured,
        "date": datetime.date.today().isoformat(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def measure(name: str, device: str, peers: list[str], rounds: int) -> dict[str, Any]:
    """One case: each contender's figures, and the ledger's totals."""
    model, inputs, kwargs = CASES[name](device)
    # An empty cache: races are of this run, not of a time when the machine was busy.
    with tempfile.TemporaryDirectory() as folder, override(cache_dir=Path(folder)):
        ledger = interfuse.explain(model, inputs, kwargs=kwargs, peers=peers, rounds=rounds, name=name)
    account = json.loads(ledger.to_json())
    return {"measures": {m["name"]: m for m in account["measures"]}, "totals": account["totals"]}


def table(results: dict[str, Any]) -> Table:
    """Milliseconds a call, and how many times faster than eager."""
    out = Table("case", "eager ms", "interfuse ms", "inductor ms", "against eager", "against inductor")
    for name, case in results.items():
        ms = {who: m["median_ms"] for who, m in case["measures"].items()}
        times = [f"{ms[who] / ms['interfuse']:.2f}x" if who in ms else "" for who in ("eager", "inductor")]
        out.add_row(
            name, *(f"{ms[who]:.2f}" if who in ms else "" for who in ("eager", "interfuse", "inductor")), *times
        )
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure models beside eager and Inductor.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    unknown = [c for c in args.cases if c not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    path = args.out or RESULTS / f"models_{args.device}.json"
    data = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    console = Console()
    for name in args.cases or CASES:
        with console.status(f"{name} ..."):
            case = measure(name, args.device, [] if args.no_inductor else ["inductor"], args.rounds)
        data["cases"][name] = {**case, "circumstances": circumstances(args.device, args.commit)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")  # after each case: an interrupted run keeps what it measured
    console.print(table(data["cases"]))
    console.print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
