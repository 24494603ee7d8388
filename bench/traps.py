"""python -m bench.traps [part of a case's name ...]: the known traps of tests/cases.py at the size of real work.

In: parts of case names (all without any). Out: bench/results/traps_cuda.json (traps_cpu.json without a GPU): for each
case the verdict of the numerics contract, the seconds of the first compiled call, and for eager, Interfuse and
Inductor microseconds (on a GPU under graph replay), launches, peak bytes and error; interleaved, in this process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import interfuse
from bench.common import RESULTS, circumstances, commit, save
from interfuse.driver.measure import measure_model
from tests.cases import CASES, Case
from tests.judge import judge

CONTENDERS = ("eager", "interfuse", "inductor")


def measure(name: str, case: Case, rounds: int) -> dict[str, Any]:
    """What one case's run says."""
    torch._dynamo.reset()
    function, arguments = case.build(large=True)
    fast = interfuse.compile(function, dynamic=False)
    row: dict[str, Any] = {"first_s": _first(fast, arguments)}
    verdict = judge(function, arguments, fast, case.rule)
    row |= {"ok": verdict.ok, "share_of_allowed": verdict.share, "note": verdict.note}
    row["inductor_first_s"] = _first(torch.compile(function, dynamic=False), arguments)
    record = measure_model(function, fast, arguments, {}, ("inductor",), rounds, name)
    for event in record.of("measure"):
        facts = event.facts
        row[event.subject] = {
            "us": [round(facts[k] * 1e3, 2) for k in ("median_ms", "low_ms", "high_ms")],
            "launches": facts["launches"],
            "peak_mib": round(facts["peak_bytes"] / 2**20, 1),
            "error_rms": facts["error_rms"],
        }
    return row


def _first(f: Callable[..., Any], arguments: tuple) -> float:
    began = time.perf_counter()
    f(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - began, 2)


def table(rows: Mapping[str, Any]) -> Table:
    """Microseconds, launches, peak MiB and the verdict."""
    out = Table("case", "contract", *(f"{c} us" for c in CONTENDERS), "launches", "peak MiB", "first call s")
    for name, row in rows.items():
        if "fails" in row:
            out.add_row(name, row["fails"])
            continue
        each = [row[c] for c in CONTENDERS]
        firsts = f"{row['first_s']} / {row['inductor_first_s']}"
        cells = [" / ".join(str(c[k]) for c in each) for k in ("launches", "peak_mib")]
        held = f"{row['share_of_allowed']:.0%}" if row["ok"] else row["note"]
        out.add_row(name, held, *(f"{c['us'][0]:.1f}" for c in each), *cells, firsts)
    return out


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.traps", description="Measure the known traps.")
    parser.add_argument("parts", nargs="*", help="measure cases whose name holds one of these")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = args.out or RESULTS / f"traps_{device}.json"
    data = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    data["circumstances"] = circumstances(device, args.commit)
    console = Console()
    chosen = [n for n in CASES if not args.parts or any(p in n for p in args.parts)]
    with torch.no_grad():
        for name in track(chosen, "measuring", console=console):
            try:
                data["cases"][name] = {**measure(name, CASES[name], args.rounds), "commit": args.commit}
            except (torch.OutOfMemoryError, RuntimeError) as error:  # one case tells, the others go on
                data["cases"][name] = {"fails": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            save(path, data)
    console.print(table(data["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
