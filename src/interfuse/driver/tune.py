"""Tuning a model. In: a model, its inputs, a budget. Out: for each region what won among schedules and candidates.

Regions are measured one after the other, those first that are predicted to take longest; each result is in the store
before the next is begun, so whatever ends the tuning loses no more than the region at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from interfuse.base.record import Record
from interfuse.build.contents import results
from interfuse.driver.begin import begin
from interfuse.driver.compiler import Compiled, Watcher
from interfuse.driver.device import Device
from interfuse.plan.plan import KernelStep, PackStep, Plan, Region
from interfuse.plan.schedules import Asked, Place, alternatives, label_of
from interfuse.report.gather import warnings_of
from interfuse.tune import trial
from interfuse.tune.choice import Choice, lock_text, read_lock, stored_key
from interfuse.tune.race import decide, measured

MOST = 16
"""Schedules of a region to measure beside the family's own."""

TRIES = 3
"""How often a region is measured while some time of it is unsure."""


@dataclass
class Tuned:
    """What tuning found: choices by region key, and a row a region: name, times it occurs, microseconds untuned and
    tuned, the winner. `left` regions were not reached, be it that the tuning was `interrupted`; of `failed` ones no
    kernel could be built and run; for `unsure` ones the machine was too busy, so nothing is kept. `warnings` are one
    sentence each. `known` is the lock file whose choices stay beside the new ones.
    """

    choices: dict[str, Choice] = field(default_factory=dict)
    rows: list[tuple[str, int, float, float, str]] = field(default_factory=list)
    left: int = 0
    failed: int = 0
    unsure: int = 0
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    known: Path | None = None

    def lock_text(self) -> str:
        """The text of a lock file that holds the choices, as option `lock` takes it, beside those that `known` holds by
        now: another process may have tuned into it meanwhile.
        """
        return lock_text({**_read(self.known), **self.choices})


def tune_model(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: float = 120.0,
    known: Path | None = None,
    watch: Watcher | None = None,
    **options: Any,
) -> Tuned:
    """Measure candidates and schedules of every region of the model for at most about `budget` seconds.

    `known` is a lock file, if it is there, whose choices stay beside the new ones. Ctrl-C ends the measuring and keeps
    what there is. ModelError where PyTorch itself cannot run the model, OptionError for a bad option or lock file.
    """
    _read(known)  # a broken one is told of before the work
    with torch.no_grad():
        backend = begin(model, inputs, kwargs, options, watch, stop="plan").backend
    knobs, found = backend.options.knobs(), Tuned(known=known)
    record = Record()
    store = results(knobs, record)
    todo = _todo(backend.compiled)
    deadline = time.perf_counter() + budget
    try:
        for done, (key, (region, plan, device, times)) in enumerate(todo.items()):
            if watch is not None:
                watch(f"tuning {region.name}", done, len(todo))
            if time.perf_counter() > deadline:
                break
            choice, before, after, steady = _tuned(region, plan, device, knobs, record)
            found.unsure += not steady
            found.failed += choice is None
            if choice is None or not steady:
                continue
            store.put(stored_key(key), choice.to_json())
            found.choices[key] = choice
            found.rows.append((region.name, times, before * 1e6, after * 1e6, label_of(choice.candidate, choice.asked)))
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        store.close()
    found.left = len(todo) - len(found.rows) - found.unsure - found.failed
    nothing = (reason,) if (reason := backend.nothing()) else ()
    found.warnings = (*nothing, *warnings_of([record]))
    return found


def _read(lock: Path | None) -> dict[str, Choice]:
    return read_lock(str(lock)) if lock is not None and lock.is_file() else {}


def _todo(compiled: Sequence[Compiled]) -> dict[str, tuple[Region, Plan, Device, int]]:
    """The different regions that have something to choose from, by key, the longest predicted first."""
    found: dict[str, tuple[Region, Plan, Device, int]] = {}
    for made in compiled:
        device, plan = made.stages.device, made.stages.plans.get("plan")
        for region in plan.regions if plan is not None else ():
            if plan is None or device is None or len(region.candidates) < 2:
                continue
            if trial.sizes_of(region, plan.graph) is None:
                continue
            key = trial.region_key(region, plan.graph, device.key())
            times = found[key][3] if key in found else 0
            found[key] = (region, plan, device, times + 1)
    return dict(sorted(found.items(), key=lambda e: (-e[1][0].choice.estimate.seconds * e[1][3], e[0])))


def _tuned(
    region: Region, plan: Plan, device: Device, knobs: Any, record: Record
) -> tuple[Choice | None, float, float, bool]:
    """The winner of one region, the seconds of what runs untuned and of the winner, and whether the machine was quiet
    enough to trust them; None where nothing ran.
    """
    place = Place(device.target, device.profile, dict(plan.graph.hints))
    bases = [c for c in region.candidates if any(isinstance(s, (KernelStep, PackStep)) for s in c.steps)]
    asked: dict[str, tuple[str, Asked]] = {c.label: (c.label, ()) for c in region.candidates}
    more = []
    for base in bases:
        for candidate, schedules in alternatives(base, place, MOST // len(bases)):
            asked[candidate.label] = (base.label, schedules)
            more.append(candidate)
    wide = replace(region, candidates=(*region.candidates, *more), chosen=0)
    steps = [s for c in wide.candidates for s in c.steps if isinstance(s, (KernelStep, PackStep))]
    kernels = {s.kernel.name: s.kernel for s in steps}
    launchers, _ = device.build(tuple(kernels.values()), knobs, record)
    kept = tuple(
        c
        for c in wide.candidates
        if all(s.kernel.name in launchers for s in c.steps if isinstance(s, (KernelStep, PackStep)))
    )
    wide = replace(wide, candidates=kept)
    # In a model the region before often leaves what this one reads in the cache, where it has the room.
    fits = min(c.bytes for c in region.candidates) <= device.profile.cache // 2
    warm = fits and device.torch_device.type == "cuda"
    pool_bytes = knobs.pool_mib << 20
    for _ in range(TRIES):
        result = measured(wide, plan.graph, launchers, device.torch_device, pool_bytes=pool_bytes, warm=warm)
        if result.steady:
            break
    if not result.times:
        return None, 0.0, 0.0, True
    untuned = replace(wide, candidates=tuple(c for c in kept if not asked[c.label][1]))
    before = untuned.candidates[decide(untuned, result)[0]]
    after = wide.candidates[decide(wide, result)[0]]
    if result.times[after.label].overlaps(result.times[before.label]):
        after = before  # a tie changes nothing
    seconds = [result.times[c.label].median for c in (before, after)]
    told = {c.label for c in (*untuned.candidates, after)}  # of other schedules the ledger says nothing
    times = {k: t for k, t in result.times.items() if k in told}
    errors = {k: e for k, e in result.errors.items() if k in told}
    label, schedules = asked[after.label]
    steady = not (result.times[before.label].unsure or result.times[after.label].unsure)
    choice = Choice(label, schedules, round(seconds[0] / seconds[1], 3), region.name, times, errors)
    return choice, seconds[0], seconds[1], steady
