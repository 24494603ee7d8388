"""python -m bench [case ...]: measure models, write bench/results/models_<device>.json, print one table.

In: case names (all without any). Out: a data file with device, versions, commit and date beside the figures of every
case; cases that are not named keep the figures that the file has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import interfuse
from bench.cases import CASES, LARGE
from bench.common import RESULTS, circumstances, commit, save
from interfuse.base.knobs import override


def measure(name: str, device: str, peers: list[str], rounds: int) -> dict[str, Any]:
    """One case: each contender's figures, and the ledger's totals."""
    model, inputs, kwargs = (CASES | LARGE)[name](device)
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
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES | LARGE)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    unknown = [c for c in args.cases if c not in CASES | LARGE]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; the cases are {', '.join(CASES | LARGE)}")
    path = args.out or RESULTS / f"models_{args.device}.json"
    data = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    console = Console()
    for name in args.cases or (CASES if args.device == "cpu" else CASES | LARGE):
        with console.status(f"{name} ..."):
            case = measure(name, args.device, [] if args.no_inductor else ["inductor"], args.rounds)
        data["cases"][name] = {**case, "circumstances": circumstances(args.device, args.commit)}
        save(path, data)  # after each case: an interrupted run keeps what it measured
    console.print(table(data["cases"]))
    console.print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
