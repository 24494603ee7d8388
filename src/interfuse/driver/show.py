"""Any stage of the compile as text. In: a model, its inputs, a stage. Out: what that stage gave for each graph.

The compile goes no further than it must: the plan is printed without building a kernel, unless `stop_after` asks for
the plan as a later stage leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from interfuse.base.errors import ModelError, OptionError, UnsupportedError
from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.base.text import Writer
from interfuse.build.contents import results
from interfuse.driver.backend import DISABLED
from interfuse.driver.begin import begin
from interfuse.driver.compiler import STAGES, Compiled, Watcher
from interfuse.ir.printer import show as show_graph
from interfuse.lower.kernel import Kernel
from interfuse.lower.printer import show as show_kernel
from interfuse.plan.plan import KernelStep, LibraryStep, PackStep, Plan, Region, Step
from interfuse.plan.printer import show as show_plan
from interfuse.plan.schedules import Place
from interfuse.run.program import subject
from interfuse.tune.choice import settled
from interfuse.tune.race import race

NEEDS: Mapping[str, str] = {
    "capture": "capture",
    "passes": "passes",
    "plan": "plan",
    "kernel": "plan",
    "source": "plan",
    "program": "program",
}
"""What can be shown, and the stage of the compile after which it is there."""

_SHOWN_AFTER = {"build": "plan", "race": "plan"}
"""What `stop_after` alone shows, where that is not the stage itself."""

_NOT_RACED = ", not raced"
_TO_RACE = "a compile races them and keeps the faster (interfuse explain, or show --stop-after race)"
_NO_RACES = "they decide, for races are switched off"


def show(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    stage: str = "",
    region: str = "",
    stop_after: str = "",
    watch: Watcher | None = None,
    **options: Any,
) -> str:
    """The text of `stage` (capture, passes, plan, kernel, source, program) for each graph of the model.

    region      only regions of this name, for kernel, source, plan and program
    stop_after  the last stage to run (capture, passes, plan, build, race, program); by default the first that gives
                what is to be shown. Without `stage`, what the last stage gave is shown.
    A plan that is shown as planned has the choices that races or `tune` left in the store; of the others it says that
    they are predictions. OptionError where a stage or region is not there, or where `stop_after` comes before what is
    to be shown. ModelError where PyTorch itself cannot run the model.
    """
    stage, stop_after = _stages(stage, stop_after)
    with torch.no_grad():
        backend = begin(
            model, inputs, kwargs, options, watch, stop="" if stop_after == "program" else stop_after
        ).backend
    if backend.options.knobs().disable:
        raise OptionError(DISABLED)
    if not backend.compiled:
        raise ModelError("PyTorch captured no graph of this model: there is nothing to show.")
    if region:
        _check_region(region, backend.compiled)
    texts = [_text(c, stage, region, backend.options.knobs()) for c in backend.compiled]
    return "\n".join(t.rstrip("\n") + "\n" for t in texts if t)


def _stages(stage: str, stop_after: str) -> tuple[str, str]:
    """What to show and the last stage to run, each from the other where one is left open."""
    if stage and stage not in NEEDS:
        raise OptionError(f"there is no stage {stage!r} to show; choose one of {', '.join(NEEDS)}.")
    if stop_after and stop_after not in STAGES:
        raise OptionError(f"there is no stage {stop_after!r} to stop after; choose one of {', '.join(STAGES)}.")
    stage = stage or _SHOWN_AFTER.get(stop_after, stop_after) or "kernel"
    stop_after = stop_after or NEEDS[stage]
    if STAGES.index(stop_after) < STAGES.index(NEEDS[stage]):
        least = STAGES[STAGES.index(NEEDS[stage]) :]
        raise OptionError(f"nothing of {stage!r} is there to show after {stop_after}; stop after {' or '.join(least)}.")
    return stage, stop_after


def _named(region: Region, position: int, plan: Plan, name: str) -> bool:
    return name in ("", region.name, subject(plan, position))


def _check_region(name: str, compiled: Sequence[Compiled]) -> None:
    plans = [p for c in compiled if (p := _plan(c)) is not None]
    if plans and not any(_named(r, i, p, name) for p in plans for i, r in enumerate(p.regions)):
        known = ", ".join(dict.fromkeys(r.name for p in plans for r in p.regions)) or "none"
        raise OptionError(f"there is no region {name!r}; the regions are: {known}.")


def _plan(compiled: Compiled) -> Plan | None:
    """The plan as the last stage that ran left it."""
    plans = list(compiled.stages.plans.values())
    return plans[-1] if plans else compiled.plan


def _text(compiled: Compiled, stage: str, region: str, knobs: Knobs) -> str:
    graphs, plan = compiled.stages.graphs, _plan(compiled)
    missing = "; ".join(str(e.facts.get("error", "")) for e in compiled.record.of("fallback"))
    if stage == "capture" and "capture" in graphs:
        return show_graph(graphs["capture"])
    if stage == "passes" and graphs:
        return "\n".join(_after(name, show_graph(g)) for name, g in graphs.items() if name != "capture")
    if plan is None:
        return f"# nothing to show: {missing or 'this stage did not run'}\n"
    if stage == "plan":
        kept = {i for i, r in enumerate(plan.regions) if _named(r, i, plan, region)}
        plan = plan if "race" in compiled.stages.plans else _decided_before(plan, compiled, knobs)
        text = show_plan(plan, only=kept if region else None)
        if any(plan.regions[i].reason.endswith(_NOT_RACED) for i in kept):
            text += f"# not raced: choices by prediction; {_TO_RACE if knobs.race else _NO_RACES}\n"
        return text
    if stage == "program":
        return _program(plan, region)
    kernels = list(dict.fromkeys(_kernels(plan, region)))
    if not kernels:
        return f"# no kernel in {region or plan.graph.name}: every region there runs through the library\n"
    if stage == "kernel":
        return "\n".join(map(show_kernel, kernels))
    return "\n".join(_source(k, compiled) for k in kernels)


def _decided_before(plan: Plan, compiled: Compiled, knobs: Knobs) -> Plan:
    """The plan with the choices of a lock file, of `tune` and of earlier races; reasons say which are predictions."""
    device, regions = compiled.stages.device, []
    assert device is not None
    if (knobs.race or knobs.lock) and "build" not in compiled.stages.plans:  # a build has settled them
        place = Place(device.target, device.profile, dict(plan.graph.hints))
        plan = settled(plan, place, device.key(), knobs, compiled.record)
    store = results(knobs)
    try:
        for region in plan.regions:
            if len(region.candidates) > 1 and not region.settled:
                found = Record()
                key = region.key if knobs.race else ""
                decided = race(region, plan.graph, {}, device.torch_device, store, 0.0, found, key)
                raced = any(e.facts.get("stored") for e in found.of("race"))
                told = f"{decided.reason}, raced before" if raced else f"{region.reason}{_NOT_RACED}"
                region = replace(decided, reason=told)
            regions.append(region)
    finally:
        store.close()
    return replace(plan, regions=tuple(regions))


def _after(name: str, text: str) -> str:
    return f"# after {name}\n{text}"


def _kernels(plan: Plan, region: str) -> Iterator[Kernel]:
    """The kernels of every candidate, the one that runs first."""
    for i, r in enumerate(plan.regions):
        if _named(r, i, plan, region):
            for candidate in (r.choice, *r.candidates):
                yield from (s.kernel for s in candidate.steps if isinstance(s, (KernelStep, PackStep)))


def _source(kernel: Kernel, compiled: Compiled) -> str:
    assert compiled.stages.device is not None
    try:
        return compiled.stages.device.source(kernel)
    except UnsupportedError as error:
        return f"// {kernel.name}: {error}\n"


def _program(plan: Plan, region: str) -> str:
    """What runs, in order: the chosen steps of each region, and the calls that stand by where one of them fails."""
    w = Writer("  ")
    head, launches = (
        f"program of {plan.graph.name} on {plan.graph.device}",
        sum(r.choice.launches for r in plan.regions),
    )
    with w.block(f"{head}: {len(plan.regions)} regions, {launches} launches"):
        for i, r in enumerate(plan.regions):
            if not _named(r, i, plan, region):
                continue
            with w.block(f"{subject(plan, i)}: {r.choice.label}"):
                for step in r.choice.steps:
                    w.line(_step(step, plan))
                if r.choice.family != "library":
                    calls = ", ".join(plan.graph.calls[c].target for c in r.calls)
                    w.line(f"where that fails: {calls}")
    return w.text()


def _step(step: Step, plan: Plan) -> str:
    if isinstance(step, LibraryStep):
        return f"call {plan.graph.calls[step.call].target}"
    if isinstance(step, PackStep):
        return f"launch {step.kernel.name} for {len(step.members)} members"
    return f"launch {step.kernel.name}" if isinstance(step, KernelStep) else f"call provider {step.provider}"
