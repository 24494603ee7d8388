"""Predictions corrected by measurements. In: races with what was predicted. Out: factors by schedule family, by
provider, and of the library.

Every steady time of a candidate is kept as a share of its uncorrected prediction, in a row of its own, so that
processes side by side lose nothing and one region never counts twice. A family whose median share lies beyond the error
bar, over at least LEAST candidates, has its predictions multiplied by that median, within BOUND either way. Which rows
there are decides, and nothing else: not when they came, nor in which order.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace

from interfuse.base.keys import short
from interfuse.base.record import Record
from interfuse.base.store import Store
from interfuse.build.contents import PREDICTED
from interfuse.cost.model import ERROR, FITTED
from interfuse.device.profile import DeviceProfile
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, PackStep, ProviderStep, Region
from interfuse.tune.bench import Timing

LEAST = 5
"""Measured candidates of a family below which its predictions are left alone."""

VERSION = 2
"""Rises where what is measured changes: what was kept before is not read then."""

BOUND = 2.0
"""Most that predictions are multiplied or divided by."""


def corrected(profile: DeviceProfile, store: Store, key: str) -> DeviceProfile:
    """The profile with the corrections that what the store has asks for; `key` names the device."""
    shares: dict[str, list[float]] = defaultdict(list)
    for name, share in store.under(_prefix(key)).items():
        if isinstance(share, float) and share > 0:
            shares[name.rsplit("/", 1)[0].removeprefix(_prefix(key))].append(share)
    found = {family: _factor(values) for family, values in sorted(shares.items())}
    return replace(profile, corrections=tuple((family, by) for family, by in found.items() if by != 1.0))


def _factor(shares: list[float]) -> float:
    median = statistics.median(shares)
    if len(shares) < LEAST or 1 - ERROR <= median <= 1 + ERROR:
        return 1.0
    return round(min(BOUND, max(1 / BOUND, median)), 2)


def note(
    region: Region, times: dict[str, Timing], region_key: str, store: Store, key: str, record: Record, subject: str
) -> None:
    """Keep what each candidate took of what was predicted; what lies beyond its error bar goes into the record."""
    for c in region.candidates:
        time = times.get(c.label)
        if time is None or not c.estimate.seconds:
            continue
        family = _family(c)
        if family:
            share = time.median / c.estimate.uncorrected
            store.put(f"{_prefix(key)}{family}/{short(region_key, c.label)}", round(share, 4))
        if abs(time.median / c.estimate.seconds - 1) > c.estimate.error:
            predicted, took = c.estimate.seconds * 1e6, time.median * 1e6
            record.add("miss", subject, label=c.label, family=family, predicted_us=predicted, median_us=took)


def _family(candidate: Candidate) -> str:
    """What the candidate's time tells of; "" where it is several things."""
    if all(isinstance(s, LibraryStep) for s in candidate.steps):
        return "library"
    if all(isinstance(s, (KernelStep, PackStep)) for s in candidate.steps):
        return candidate.family
    names = {s.provider if isinstance(s, ProviderStep) else "" for s in candidate.steps}
    return names.pop() if len(names) == 1 else ""


def _prefix(key: str) -> str:
    """Under what the store keeps what was measured of predictions by the numbers that the cost model has now."""
    return f"{PREDICTED}{short(repr(FITTED), str(VERSION))} on {key}/"
