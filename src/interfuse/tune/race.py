"""The race: candidates of a region measured. In: a plan with its kernels built. Out: the same plan, decided.

Each candidate runs alone on made-up inputs. Those less accurate than the contract allows are out; among the rest the
fastest wins, ties go to fewer launches, and the library keeps what is not beaten; then regions whose routines need more
workspace than eager's memory has room for go back to the library. Results go into the store under a key
of the region's text and the device, so an equal region, here or in a later process, is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.base.store import Store, plain
from interfuse.build.contents import results
from interfuse.ir.graph import Graph
from interfuse.plan.memory import Need
from interfuse.plan.plan import Plan, Region
from interfuse.run.assemble import results_of
from interfuse.run.launch import Launcher
from interfuse.run.program import subject
from interfuse.run.real import real_tensors
from interfuse.tune import trial
from interfuse.tune.bench import BUSY, Timing, compare
from interfuse.tune.corrections import note
from interfuse.tune.judge import WORST, Error, judge
from interfuse.tune.needs import Needs, kept_to_eagers, needs_of

ROUNDS = 15
CLOSE = 1.03
"""How many times as slow as the fastest a candidate may be that is tied with it."""

REGION_SECONDS = 1.0
"""Longest time for the timed rounds of one region."""

SPENT = "budget spent"
TOO_BUSY = "The machine was too busy to trust what some regions took: they are measured again when next compiled."
DYNAMIC = "sizes change between calls and the example does not tell them: not measured"


@dataclass
class Result:
    """What a race found, by candidate label: times, errors, why a candidate is out, memory where routines with
    workspaces are among them; `judged` by float64 or eager, at these `sizes` where they change between calls.
    """

    times: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, Error] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    judged: str = "float64"
    sizes: dict[str, int] = field(default_factory=dict)
    needs: dict[str, Need] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        """True where no time is so unsure that another day might decide otherwise: only then is it worth keeping."""
        return not any(t.unsure for t in self.times.values())

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> Result | None:
        """The result that `to_json` wrote; None where the value is something else."""
        try:
            return Result(
                {k: plain(Timing, v) for k, v in value["times"].items()},
                {k: plain(Error, v) for k, v in value["errors"].items()},
                {str(k): str(v) for k, v in value["out"].items()},
                str(value["judged"]),
                {str(k): int(v) for k, v in value["sizes"].items()},
                {k: plain(Need, v) for k, v in value["needs"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def race_plan(
    plan: Plan,
    launchers: Mapping[str, Launcher],
    device: torch.device,
    device_key: str,
    knobs: Knobs,
    record: Record,
    told: Callable[[int, int], None] | None = None,
    probe_key: str = "",
) -> Plan:
    """The plan with its choices measured, within knobs.race_seconds; what is not reached keeps its prediction.

    `told` hears how many of how many regions are decided. What was predicted is compared with what was measured under
    `probe_key`, the device's name (tune/corrections.py). Each result is in the store before the next is measured.
    """
    store = results(knobs, record)
    deadline = time.perf_counter() + knobs.race_seconds
    regions, needs, seen = list[Region](), list[Needs](), dict[str, Result]()
    pool = knobs.pool_mib << 20
    try:
        for position, region in enumerate(plan.regions):
            if told is not None:
                told(position, len(plan.regions))
            name, key = subject(plan, position), ""
            if len(region.candidates) > 1 and trial.sizes_of(region, plan.graph) is not None:
                key = region.key or trial.region_key(region, plan.graph, device_key)
            left = deadline - time.perf_counter()
            decided = _decided(
                region, plan.graph, launchers, device, store, left, record, key, name, seen, pool, probe_key
            )
            regions.append(decided)
            needs.append(seen[key].needs if key in seen else {})
    finally:
        store.close()
    if not all(result.steady for result in seen.values()):
        record.add("warning", "race", error=TOO_BUSY)
    return kept_to_eagers(replace(plan, regions=tuple(regions)), needs, launchers, device, record)


def race(
    region: Region,
    graph: Graph,
    launchers: Mapping[str, Launcher],
    device: torch.device,
    store: Store,
    budget_seconds: float,
    record: Record,
    key: str,
    name: str = "",
) -> Region:
    """The region with its choice measured (or found in the store under `key`); recorded as the race of `name`."""
    return _decided(region, graph, launchers, device, store, budget_seconds, record, key, name or region.name, {})


def _decided(
    region: Region,
    graph: Graph,
    launchers: Mapping[str, Launcher],
    device: torch.device,
    store: Store,
    seconds: float,
    record: Record,
    key: str,
    name: str,
    seen: dict[str, Result],
    pool_bytes: int = 0,
    probe_key: str = "",
) -> Region:
    if len(region.candidates) < 2 or region.settled:
        return region
    if not key:
        record.add("race", name, times={}, errors={}, chosen=region.choice.label, reason=DYNAMIC)
        return region
    result, stored = seen.get(key), False
    if result is None:
        result = Result.from_json(store.get(key))
        stored = result is not None
    if result is None and seconds <= 0:
        record.add("race", name, times={}, errors={}, chosen=region.choice.label, reason=SPENT)
        return region
    if result is None:
        result = measured(region, graph, launchers, device, min(seconds, REGION_SECONDS), pool_bytes)
        if result.steady:
            store.put(key, result.to_json())
            if probe_key:
                note(region, result.times, key, store, probe_key, record, name)
    seen[key] = result
    chosen, reason = decide(region, result)
    reason = "; ".join(filter(None, (region.candidates[chosen].note, reason)))
    if result.sizes:
        reason += f"; measured at {', '.join(f'{name} = {n}' for name, n in result.sizes.items())}"
    record.add(
        "race",
        name,
        times={k: t.in_us() for k, t in result.times.items()},
        errors={k: asdict(e) for k, e in result.errors.items()},
        chosen=region.candidates[chosen].label,
        reason=reason,
        judged=result.judged,
        stored=stored,
        busy=not result.steady,
        sizes=result.sizes,
    )
    return replace(region, chosen=chosen, reason=reason)


def measured(
    region: Region,
    graph: Graph,
    launchers: Mapping[str, Launcher],
    device: torch.device,
    seconds: float = REGION_SECONDS,
    pool_bytes: int = 0,
    warm: bool = False,
) -> Result:
    """Run every candidate on made-up inputs: errors first, then times of those inside the contract. With `warm` times
    are half of what a run takes that finds nothing in the second-level cache, half of what one takes after another.
    """
    whole, region = region, trial.unwritten(region, graph)
    own, result = trial.alone(region, graph), Result(sizes=trial.sizes_of(region, graph) or {})
    if not results_of(graph).issuperset(region.outputs):
        pool_bytes = 0  # in the model only results of the graph lie in the pool
    library = region.candidates.index(region.library)
    with real_tensors():
        inputs = trial.made_up(own, device)
        try:
            eager = trial.program(region, own, library, {})(*inputs)
        except Exception as error:  # made-up inputs may be outside what a call accepts; any reason is as good
            result.out[region.library.label] = f"the captured calls fail on made-up inputs: {_first_line(error)}"
            return result
        exact = exact_of(region, own, library, inputs)
        result.judged = "float64" if exact is not None else "eager, for it cannot run in float64"
        runs, codes = {}, trial.codes(own)
        for k, candidate in enumerate(region.candidates):
            try:
                run = trial.program(region, own, k, launchers, pool_bytes)
                found = judge(run(*inputs), eager, exact, codes=codes)
            except Exception as error:
                result.out[candidate.label] = f"fails: {_first_line(error)}"
                continue
            result.errors[candidate.label] = found
            if found.ok or k == library:
                runs[candidate.label] = k
            else:
                off = f"its error is {found.share:.2f} times what is allowed"
                result.out[candidate.label] = "gives other values" if found.share >= WORST else off
        del eager, exact
        if len(runs) < 2:
            return result
        result.needs = needs_of(region, own, launchers, device, runs, inputs)
        # On a GPU graph replay allocates nothing, so results in memory of their own cost no more.
        timed, timed_in = trial.in_place(whole, graph) if device.type == "cpu" else (region, own)
        if timed_in.inputs != own.inputs:
            inputs = trial.made_up(timed_in, device)
        works = {
            label: partial(trial.program(timed, timed_in, k, launchers, pool_bytes), *inputs)
            for label, k in runs.items()
        }
        result.times = compare(works, device, ROUNDS, seconds)
        if warm and result.times:
            again = compare(works, device, ROUNDS, seconds, cold=False)
            result.times = {label: t.mixed(again[label]) for label, t in result.times.items()}
    return result


def exact_of(region: Region, own: Graph, library: int, inputs: list[torch.Tensor]) -> list[Any] | None:
    """The library path in float64, or None where it cannot run so."""
    try:
        exact = trial.program(region, trial.widened(own), library, {})(*map(trial.wide_tensor, inputs))
    except Exception:  # no float64 form of an operator, mixed types, memory: all mean that there is none
        return None
    return exact if all(not t.is_floating_point() or t.dtype == torch.float64 for t in exact) else None


def decide(region: Region, result: Result) -> tuple[int, str]:
    """The position of the winner and the reason.

    Fastest by median; candidates within CLOSE of the fastest, whose intervals touch its own, are tied with it, and ties
    go to fewer launches, then to the earlier candidate. Nobody wins whose median is not below the library's.
    """
    library = region.candidates.index(region.library)
    base = result.times.get(region.library.label)
    left_out = "; ".join(f"{label} {why}" for label, why in result.out.items())
    if base is None:
        return library, left_out or "only the library can run it"
    timed = [(k, t) for k, c in enumerate(region.candidates) if (t := result.times.get(c.label)) is not None]
    best = min((t for _, t in timed), key=lambda t: t.median)
    tied = [k for k, t in timed if t.overlaps(best) and t.median <= best.median * CLOSE]
    able = [k for k in tied if k == library or result.times[region.candidates[k].label].median < base.median]
    chosen = min(able, default=library, key=lambda k: (region.candidates[k].launches, k))
    mine = result.times[region.candidates[chosen].label]
    if chosen == library:
        fastest = min((t.median for k, t in timed if k != library), default=None)
        beat = "beat" if fastest is None or fastest >= base.median else "is tied with"
        other = "" if fastest is None else f"the best other, which took {fastest / base.median:.2f}x"
        reason = other and f"the library {beat} {other}"
    else:
        reason = f"{base.median / mine.median:.2f}x faster than the library"
    return chosen, "; ".join(filter(None, (reason if result.steady else BUSY, left_out)))


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
