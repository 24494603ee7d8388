"""Memory that routines need while they run. In: a decided plan, and what races measured. Out: the plan, within eager's
memory.

Each candidate of a region that has a routine for its product on a CPU is run once more to be measured. Where nothing
was raced (a choice from a lock file, or no race at all) that is all that is run: bytes are the same every time, so that
choices still are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled

from interfuse.base.record import Record
from interfuse.ir.graph import Graph
from interfuse.plan.memory import Need
from interfuse.plan.plan import Plan, ProviderStep, Region
from interfuse.plan.workspaces import has_room, keep_to_eagers_workspaces
from interfuse.run.launch import Launcher
from interfuse.run.memory import host_need
from interfuse.run.program import subject
from interfuse.run.real import real_tensors
from interfuse.tune import trial
from interfuse.tune.bench import BUSY

Needs = Mapping[str, Need]
"""What candidates of a region need, by their labels."""


def needs_of(
    region: Region,
    own: Graph,
    launchers: Mapping[str, Launcher],
    device: torch.device,
    runs: Mapping[str, int],
    inputs: Sequence[Any],
) -> dict[str, Need]:
    """What each candidate that `runs`, by its position, needs on `inputs` of the graph `own`, where a routine is one on
    a CPU; nothing while the user profiles this thread, for one profiler is all that a thread can have.
    """
    routines = any(isinstance(s, ProviderStep) for c in region.candidates for s in c.steps)
    if device.type != "cpu" or not routines or _profiler_enabled():
        return {}
    works = {label: partial(trial.program(region, own, k, launchers), *inputs) for label, k in runs.items()}
    return {label: host_need(work) for label, work in works.items()}


def kept_to_eagers(
    plan: Plan, found: Sequence[Needs], launchers: Mapping[str, Launcher], device: torch.device, record: Record
) -> Plan:
    """The plan with regions taken back to their captured calls where workspaces would pass eager's peak; the record
    says which. `found` has what races measured of each region; routines that were chosen without one are measured here.
    """
    open_regions = [r for r, one in zip(plan.regions, found, strict=True) if not one and _runs_a_routine(r, plan.graph)]
    if device.type == "cpu" and open_regions and not has_room(plan, torch.get_num_threads()):
        keys = {r: r.key or trial.region_key(r, plan.graph, str(device)) for r in open_regions}
        one_of_each = {key: r for r, key in keys.items()}
        known = {key: _measured(r, plan.graph, launchers, device) for key, r in one_of_each.items()}
        found = [known[keys[r]] if r in keys else one for r, one in zip(plan.regions, found, strict=True)]
    kept = keep_to_eagers_workspaces(plan, found)
    for position, (before, after) in enumerate(zip(plan.regions, kept.regions, strict=True)):
        if before is not after:
            _tell(record, subject(plan, position), after)
    return kept


def _tell(record: Record, name: str, region: Region) -> None:
    """Record that the region keeps to its captured calls."""
    raced = next((e.facts for e in reversed(record.of("race")) if e.subject == name), None)
    if raced is not None:
        reason = f"{region.reason}; {BUSY}" if raced.get("busy") else region.reason
        record.add("race", name, **{**raced, "chosen": region.choice.label, "reason": reason})
        return
    told = next(e.facts for e in reversed(record.of("region")) if e.subject == name)
    chosen = next(k for k, c in enumerate(told["candidates"]) if c["label"] == region.choice.label)
    record.add("region", name, **{**told, "chosen": chosen, "reason": region.reason})


def _runs_a_routine(region: Region, graph: Graph) -> bool:
    return any(isinstance(s, ProviderStep) for s in region.choice.steps) and trial.sizes_of(region, graph) is not None


def _measured(region: Region, graph: Graph, launchers: Mapping[str, Launcher], device: torch.device) -> Needs:
    """What the region's choice and its captured calls need; nothing where these do not take made-up inputs."""
    runs = {c.label: k for k, c in enumerate(region.candidates) if c in (region.choice, region.library)}
    region, own = trial.unwritten(region, graph), trial.alone(region, graph)
    with real_tensors():
        inputs = trial.made_up(own, device)
        try:
            for k in runs.values():
                trial.program(region, own, k, launchers)(*inputs)  # once before, so that workspaces exist
            return needs_of(region, own, launchers, device, runs, inputs)
        except Exception:  # any reason is as good
            return {}
