"""Measured choices. In: a plan, the store, a lock file. Out: the plan with what was chosen before, so that it is not
measured again.

A choice is the label of a candidate and a schedule for each of its kernels. It is known by the region's key
(`trial.region_key`): the region's text, the kernels that the compiler makes for it, device, versions and flags.
Choices are taken before a program is made and never while it runs, so its bits repeat from run to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from interfuse.base.errors import OptionError, UnsupportedError
from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.base.store import plain
from interfuse.build.contents import results
from interfuse.lower.schedule import Schedule
from interfuse.plan.plan import Plan, Region
from interfuse.plan.schedules import Asked, Place, label_of, rescheduled
from interfuse.run.program import subject
from interfuse.tune import trial
from interfuse.tune.bench import Timing
from interfuse.tune.judge import Error

VERSION = 1
"""Of the lock file's form."""


@dataclass(frozen=True)
class Choice:
    """What won a region: a candidate of the plan, its kernels' schedules, how many times faster than what would run
    untuned, and the region's name for readers; by label what was measured of it and of the plan's own candidates, which
    lock files of before do not have.
    """

    candidate: str
    asked: Asked = ()
    gain: float = 1.0
    region: str = ""
    times: Mapping[str, Timing] = field(default_factory=dict)
    errors: Mapping[str, Error] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The choice as JSON values."""
        schedules = [None if s is None else s.to_json() for s in self.asked]
        times, errors = ({k: asdict(v) for k, v in of.items()} for of in (self.times, self.errors))
        named = {"candidate": self.candidate, "schedules": schedules, "gain": self.gain, "region": self.region}
        return {**named, "times": times, "errors": errors}

    @staticmethod
    def from_json(value: Any) -> Choice | None:
        """The choice that `to_json` wrote; None where the value is something else."""
        try:
            asked = tuple(None if s is None else Schedule.from_json(s) for s in value["schedules"])
            gain = float(value["gain"])
            times = {str(k): plain(Timing, {"waited": 0.0, **t}) for k, t in value.get("times", {}).items()}
            errors = {str(k): plain(Error, e) for k, e in value.get("errors", {}).items()}
            found = Choice(str(value["candidate"]), asked, gain, str(value["region"]), times, errors)
            numbers = [gain, *(n for t in times.values() for n in (t.median, t.low, t.high))]
            return found if all(0 < n < math.inf for n in numbers) else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def read_lock(path: str) -> dict[str, Choice]:
    """The choices of a lock file by region key; OptionError where it cannot be read or is of another version."""
    again = "write it again by interfuse tune --lock"
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"the lock file {path} cannot be read ({error.strerror}): {again}.") from None
    except ValueError:
        raise OptionError(f"the lock file {path} is no JSON: {again}.") from None
    if not isinstance(value, Mapping) or value.get("version") != VERSION or not isinstance(value.get("regions"), dict):
        raise OptionError(f"the lock file {path} is not of version {VERSION}: {again}.")
    found = {str(key): Choice.from_json(one) for key, one in value["regions"].items()}
    if None in found.values():
        raise OptionError(f"the lock file {path} has a broken entry: {again}.")
    return {key: one for key, one in found.items() if one is not None}


def lock_text(choices: Mapping[str, Choice]) -> str:
    """The text of a lock file: sorted JSON."""
    regions = {key: c.to_json() for key, c in choices.items()}
    return json.dumps({"version": VERSION, "regions": regions}, indent=1, sort_keys=True)


def stored_key(key: str) -> str:
    """Under what the store keeps the choice of the region with this key."""
    return f"choice/{key}"


def settled(plan: Plan, place: Place, device_key: str, knobs: Knobs, record: Record) -> Plan:
    """The plan in which regions with a choice, in the lock file or the store, have that and the library alone.

    A warning says so where a choice cannot be had any more, and where a lock file knows none of the regions.
    OptionError for a broken lock file.
    """
    lock = read_lock(knobs.lock) if knobs.lock else {}
    store = results(knobs, record)
    regions, open_regions, locked = [], 0, 0
    try:
        for position, region in enumerate(plan.regions):
            if len(region.candidates) > 1 and trial.sizes_of(region, plan.graph) is not None:
                open_regions += 1
                key = trial.region_key(region, plan.graph, device_key)
                locked += key in lock
                choice = lock.get(key) or (Choice.from_json(store.get(stored_key(key))) if knobs.race else None)
                if choice is not None:
                    origin = f"from the lock file {knobs.lock}" if key in lock else "tuned before"
                    region = _chosen(region, choice, place, origin, subject(plan, position), record)
                region = replace(region, key=key)
            regions.append(region)
    finally:
        store.close()
    if lock and open_regions and not locked:
        sentence = f"the lock file {knobs.lock} has none of these regions: it was made for another device or version."
        record.add("warning", "lock", error=sentence)
    return replace(plan, regions=tuple(regions))


def chosen_so(planned: Plan, decided: Plan, device_key: str, knobs: Knobs) -> dict[str, Choice]:
    """The choices of a plan whose regions were raced or settled, by region key; `planned` is that plan before."""
    lock = read_lock(knobs.lock) if knobs.lock else {}
    store = results(knobs)
    found: dict[str, Choice] = {}
    try:
        for region, final in zip(planned.regions, decided.regions, strict=True):
            if len(region.candidates) < 2 or trial.sizes_of(region, planned.graph) is None:
                continue
            key = trial.region_key(region, planned.graph, device_key)
            known = (lock.get(key) or Choice.from_json(store.get(stored_key(key)))) if final.settled else None
            found[key] = known or Choice(final.choice.label, region=region.name)
    finally:
        store.close()
    return found


def _chosen(region: Region, choice: Choice, place: Place, origin: str, subject: str, record: Record) -> Region:
    """The region with the choice and the library; as it is, with a warning, where the choice cannot be had."""
    base = next((c for c in region.candidates if c.label == choice.candidate), None)
    try:
        if base is None:
            raise UnsupportedError(f"there is no candidate {choice.candidate!r}")
        label = label_of(base.label, choice.asked)
        winner = rescheduled(base, choice.asked, label, place) if any(choice.asked) else base
    except UnsupportedError as error:
        record.add("warning", subject, error=f"its choice {origin} cannot be had: {error}; it is measured instead.")
        return region
    told = next(e.facts for e in reversed(record.of("region")) if e.subject == subject)
    listed = {c.label: facts for c, facts in zip(region.candidates, told["candidates"], strict=True)}
    own = {**listed[base.label], "label": label, "predicted_us": winner.estimate.seconds * 1e6}
    is_library = winner is region.library
    candidates = (winner,) if is_library else (winner, region.library)
    # What else was considered has no kernel here, but stays in the ledger.
    rest = {c.label: None for c in (*candidates, *region.candidates) if c.label != label}
    reason = f"{origin}: {choice.gain:.2f}x what runs untuned"
    facts = [own, *(listed[k] for k in rest)]
    record.add("region", subject, **{**told, "candidates": facts, "chosen": 0, "reason": reason})
    if choice.times:
        times = {k: t.in_us() for k, t in choice.times.items()}
        errors = {k: asdict(e) for k, e in choice.errors.items()}
        record.add("race", subject, times=times, errors=errors, chosen=label, reason=reason, stored=True)
    return replace(region, candidates=candidates, chosen=0, reason=reason, settled=True)
