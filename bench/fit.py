"""python -m bench.fit [measure | count]: the cost model beside measured kernels.

Alone: fit the numbers of `cost.model.Fit` to the times in the data file, and print how far predictions lie from
measured times, and how often what is ranked first is the fastest, for the cases that were fitted and for those held
back. In: bench/results/fit_cuda.json. Out: a table, and the fitted numbers, to be written into cost/model.py by hand;
how far off the numbers there are now goes into the file.

`measure [part of a case's name ...]`, on a GPU: probe it, time every planned candidate of the cases of
bench/fit_cases.py, write the data file. A case whose candidates are the same as in the file is not timed again.

`count`, anywhere: count again what the model is told of the candidates in the file, after a change of
cost/features.py.

Held back are the cases of bench.fit_cases.HELD_BACK, a third of all, whose sizes are drawn; neither the numbers of the
model nor its terms come from them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench import fit_measure
from bench.common import RESULTS, circumstances, commit
from bench.fit_cases import CASES, HELD_BACK, SEEN
from bench.fit_shares import Share, ShareError, end_with_input, lines
from bench.memory import alone
from interfuse.base.errors import InterfuseError
from interfuse.base.knobs import current, override
from interfuse.cost.estimate import Estimate
from interfuse.cost.features import Features
from interfuse.cost.library import LINEAR_RATE, Asked, library_estimate
from interfuse.cost.model import FITTED, Fit, estimate, predicted, table_seconds
from interfuse.device.profile import DeviceProfile
from interfuse.device.table import find
from interfuse.driver.device import absent, device_of, measure
from interfuse.plan.candidates import one_after_other

Row = dict[str, Any]
CLOSE = 1.05
"""What is ranked first counts as right up to this many times the fastest."""


@dataclass(frozen=True)
class Raced:
    """One region of a case: its candidates' labels, steps and microseconds, those that ran."""

    case: str
    labels: tuple[str, ...]
    steps: tuple[list[Row], ...]
    us: tuple[float, ...]

    @property
    def held_back(self) -> bool:
        """True where it is not fitted to."""
        return self.case in HELD_BACK


def raced(data: Row) -> list[Raced]:
    """Every region in the data file that has several candidates with times."""
    found = []
    for case, row in data["cases"].items():
        for region in row.get("regions", ()) if case in CASES else ():
            ran = [c for c in region["candidates"] if "us" in c]
            if len(ran) > 1:
                found.append(
                    Raced(
                        case,
                        tuple(c["label"] for c in ran),
                        tuple(c["steps"] for c in ran),
                        tuple(c["us"] for c in ran),
                    )
                )
    return found


def profile_of(data: Row) -> DeviceProfile:
    """The profile that was measured beside the times."""
    known = find(data["circumstances"]["device"])
    found = known.with_measurement(data["profile"])
    assert found is not None, "the data file has no profile: measure again"
    return found


def step_estimate(step: Row, profile: DeviceProfile, fit: Fit) -> Estimate:
    """What the planner predicts of one step (plan/candidates.py), by other numbers."""
    if "asked" in step:
        return library_estimate(Asked(**step["asked"]), profile, fit)
    if "provided" in step:
        p = step["provided"]
        return estimate(p["bytes"], p["flops"], p["launches"], profile, reached=LINEAR_RATE, dtype=p["dtype"])
    one = predicted(Features(**step["features"]), profile, fit)
    table = table_seconds(step["rows"], profile, fit) if "rows" in step else 0.0
    return replace(one, seconds=one.seconds + table)


def candidate_us(steps: Sequence[Row], profile: DeviceProfile, fit: Fit) -> float:
    """Predicted microseconds of a candidate."""
    each = [e for s in steps if (e := step_estimate(s, profile, fit)).seconds for _ in range(s.get("times", 1))]
    return one_after_other(each, profile).seconds * 1e6


# --- How far off.


def errors(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit, ours: bool | None = None) -> list[float]:
    """|predicted / measured - 1| of each candidate: all, those with kernels of ours alone, or those without."""
    return [
        abs(candidate_us(steps, profile, fit) / us - 1)
        for r in regions
        for steps, us in zip(r.steps, r.us, strict=True)
        if ours is None or ours == any("features" in s for s in steps)
    ]


def losses(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit) -> list[float]:
    """For each region what is ranked first takes, over the fastest."""
    found = []
    for r in regions:
        ranked = [candidate_us(steps, profile, fit) for steps in r.steps]
        found.append(r.us[ranked.index(min(ranked))] / min(r.us))
    return found


def ninth_decile(values: Sequence[float]) -> float:
    """What nine of ten do not exceed."""
    return sorted(values)[max(0, math.ceil(0.9 * len(values)) - 1)]


# --- Fitting.


def loss(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit) -> float:
    """What fitting makes small: distances of predicted from measured times, as factors; far ones count little more than
    near ones, so that no single candidate bends the numbers. Drawn cases count as much in all as chosen ones.
    """
    parts = [[r for r in regions if (r.case in SEEN) == drawn] for drawn in (False, True)]
    return statistics.fmean(_loss(part, profile, fit) for part in parts if part)


def _loss(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit) -> float:
    found = [
        abs(math.log(candidate_us(steps, profile, fit) / us))
        for r in regions
        for steps, us in zip(r.steps, r.us, strict=True)
    ]
    return sum(min(d, 1.0) ** 1.3 for d in found) / len(found)


def with_registers(regions: Sequence[Raced], profile: DeviceProfile, start: Fit) -> Fit:
    """The numbers with those of registers as the assembler counted them: a line through what kernels hold and take."""
    points = {
        (s["kernel"], f["lanes"] / (f["warps"] * profile.lanes), s["registers"])
        for r in regions
        for steps in r.steps
        for s in steps
        if "registers" in s and (f := s["features"])
    }
    if len({held for _, held, _ in points}) < 2:
        return start
    slope, base = statistics.linear_regression([held for _, held, _ in points], [taken for _, _, taken in points])
    return replace(start, registers=round(slope, 2), base=round(base, 1))


def fitted(regions: Sequence[Raced], profile: DeviceProfile, start: Fit) -> Fit:
    """The numbers that make `loss` small, by changing one at a time, in ever smaller steps."""
    start = with_registers(regions, profile, start)
    best, found = loss(regions, profile, start), start
    factor = {f.name: 1.4 for f in fields(Fit) if f.name not in ("registers", "base", "lost")}
    while max(factor.values()) > 1.02:
        for name, by in factor.items():
            for times in (by, 1 / by):
                other = replace(found, **{name: getattr(found, name) * times})
                lower = loss(regions, profile, other)
                if lower < best - 1e-6:
                    best, found = lower, other
                    break
            else:
                factor[name] = math.sqrt(by)
    return Fit(**{f.name: float(f"{getattr(found, f.name):.3g}") for f in fields(Fit)})


# --- Tables.


def judged(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit) -> Row:
    """Errors and ranking of the fitted cases and of those held back, as JSON values."""
    found: Row = {}
    for name, held_back in (("fitted", False), ("held back", True)):
        part = [r for r in regions if r.held_back == held_back]
        lost = losses(part, profile, fit)
        found[name] = {"cases": len({r.case for r in part}), "regions": len(part)}
        found[name] |= {"ranked right": sum(x <= CLOSE for x in lost)}
        for kind, ours in (("all", None), ("ours", True), ("library", False)):
            off = errors(part, profile, fit, ours)
            figures = {"candidates": len(off)}
            if off:
                figures |= {"median": round(statistics.median(off), 3), "ninth decile": round(ninth_decile(off), 3)}
            found[name][kind] = figures
    return found


def summary(found: Row) -> Table:
    """What `judged` found."""
    out = Table(
        "", "candidates", "median error", "ninth decile", "of ours", "", "library", "", "ranked first is fastest"
    )
    for name, part in found.items():
        cells = []
        for kind in ("all", "ours", "library"):
            cells += [f"{part[kind].get(n, math.nan):.0%}" for n in ("median", "ninth decile")]
        right = f"{part['ranked right']} of {part['regions']} within {CLOSE - 1:.0%}"
        out.add_row(name, str(part["all"]["candidates"]), *cells, right)
    return out


def details(regions: Sequence[Raced], profile: DeviceProfile, fit: Fit, only: Sequence[str]) -> Table:
    """Every candidate: measured and predicted microseconds, and what takes its time."""
    out = Table("case", "candidate", "measured us", "predicted", "ratio", "parts")
    for r in regions:
        if only and not any(p in r.case for p in only):
            continue
        for label, steps, us in zip(r.labels, r.steps, r.us, strict=True):
            each = [step_estimate(s, profile, fit) for s in steps]
            parts = " | ".join(" ".join(f"{n[:4]} {t * 1e6:.1f}" for n, t in e.parts) for e in each if e.parts)
            total = candidate_us(steps, profile, fit)
            out.add_row(
                r.case + (" *" if r.held_back else ""),
                label[:28],
                f"{us:.1f}",
                f"{total:.1f}",
                f"{total / us:.2f}",
                parts,
            )
    return out


# --- Commands.


def keep(path: Path, data: Row) -> None:
    """Write the data file whole, a case a line."""
    cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in data["cases"].items())
    rest = json.dumps({k: v for k, v in data.items() if k != "cases"}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")  # whoever is killed here leaves the file as it was
    new.write_text(f'{rest[:-2]},\n "cases": {{\n{cases}\n }}\n}}\n', encoding="utf-8")
    new.replace(path)


def run_measure(args: argparse.Namespace) -> None:
    """Measure and write the data file after each case. Processes plan and build side by side; one at a time times.

    ShareError where one of them fails; what the others have found is in the file.
    """
    data = json.loads(args.out.read_text()) if args.out.exists() else {"cases": {}}
    names = [n for n in CASES if not args.parts or any(p in n for p in args.parts)]
    names.sort(key=lambda n: (n in data["cases"], n not in HELD_BACK))  # what there is nothing of comes first
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as children:
        lock = Path(folder, "gpu")
        own = ["--out", str(args.out), "--seconds", str(args.seconds), "--lock", str(lock)]
        own += ["--again"] if args.again else []
        command = [sys.executable, "-m", "bench.fit", "share"]
        shares = [names[k :: args.jobs] for k in range(min(args.jobs, len(names)))]
        with alone(lock):
            begun = [
                children.enter_context(Share([*command, *share, *own], Path(folder, f"errors{k}")))
                for k, share in enumerate(shares)
            ]
            device = measure("cuda:0", current())
        data |= {"profile": device.profile.measurement(), "circumstances": circumstances("cuda", args.commit)}
        for line in lines(begun):
            name, row = json.loads(line)
            data["cases"][name] = row
            keep(args.out, data)
        failed = [said for share in begun if (said := share.failed())]
    if failed:
        raise ShareError(f"{len(failed)} of {len(shares)} processes failed, and with them their cases: {failed[0]}")


def run_share(args: argparse.Namespace) -> None:
    """Measure the cases named and print each as a line."""
    end_with_input()
    known: Mapping[str, Row] = {}
    if args.out.exists() and not args.again:
        known = json.loads(args.out.read_text())["cases"]
    device = device_of("cuda:0", current())
    with override(workers=2):  # compilers of a process: there are several of these
        for found in fit_measure.measured(args.parts, device, known, args.seconds, args.lock):
            print(json.dumps(found), flush=True)


def run_count(args: argparse.Namespace, console: Console) -> None:
    """Count the features of every candidate in the data file again."""
    data = json.loads(args.out.read_text())
    device = absent(data["circumstances"]["device"])
    for name, row in data["cases"].items():
        if name not in CASES or "regions" not in row:
            continue
        now = fit_measure.counted(CASES[name], device)
        told = {(k, c["label"]): c["steps"] for k, region in enumerate(now) for c in region}
        for k, region in enumerate(row["regions"]):
            for c in region["candidates"]:
                steps = told.get((k, c["label"]))
                if steps is None or [s.get("kernel") for s in steps] != [s.get("kernel") for s in c["steps"]]:
                    console.print(f"{name}: {c['label']} is not planned any more")
                    continue
                for old, new in zip(c["steps"], steps, strict=True):
                    old |= new
        keep(args.out, data)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description="Fit and judge the cost model.")
    parser.add_argument("command", nargs="?", default="fit", choices=["fit", "measure", "count", "share"])
    parser.add_argument("parts", nargs="*", help="cases whose name holds one of these")
    parser.add_argument("--out", type=Path, default=RESULTS / "fit_cuda.json")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after so long")
    parser.add_argument(
        "--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)), help="processes that plan and build"
    )
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help="time cases that the file has too")
    parser.add_argument("--details", action="store_true", help="print every candidate")
    parser.add_argument("--no-fit", action="store_true", help="judge the numbers of cost/model.py as they are")
    parser.add_argument("--commit", default=commit(), help="the commit that is measured, where this is no git checkout")
    args = parser.parse_args()
    if args.command == "share":
        run_share(args)
        return 0
    console = Console(width=180 if args.details else None)
    if args.command == "measure":
        if not torch.cuda.is_available():
            parser.error("PyTorch sees no GPU here; run this on a machine with one.")
        try:
            run_measure(args)
        except (InterfuseError, ShareError) as error:
            console.print(f"error: {error}", markup=False)
            return 1
    elif args.command == "count":
        run_count(args, console)
    data = json.loads(args.out.read_text())
    regions, profile, fit = raced(data), profile_of(data), FITTED
    data["judged"] = judged(regions, profile, FITTED)
    keep(args.out, data)
    if args.command == "fit" and not args.no_fit:
        fit = fitted([r for r in regions if not r.held_back], profile, fit)
        console.print(fit)
    if args.details:
        console.print(details(regions, profile, fit, args.parts))
    console.print(summary(judged(regions, profile, fit)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
