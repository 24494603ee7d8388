"""The pipeline. In: an ATen graph that AOTAutograd hands over. Out: a function that runs it, and the record of how.

    capture -> passes -> plan -> build -> race -> program

Each stage is timed into the record. Whatever fails in a stage is recorded, and the graph runs as captured instead: a
model that PyTorch can run never fails because Interfuse could not help.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from interfuse.base.errors import InterfuseError
from interfuse.base.keys import short
from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.capture.fx import import_graph
from interfuse.cost.traffic import call_bytes
from interfuse.driver.debug import changes, debug
from interfuse.driver.device import Device, device_of
from interfuse.driver.options import parts
from interfuse.ir.graph import Graph
from interfuse.ir.verify import verify
from interfuse.lower.printer import show as show_kernel
from interfuse.passes.pipeline import PASSES
from interfuse.plan.plan import KernelStep, PackStep, Plan, Region
from interfuse.plan.planner import library_plan, plan
from interfuse.plan.printer import show as show_plan
from interfuse.plan.schedules import Place
from interfuse.run.program import Program, subject
from interfuse.tune.choice import settled
from interfuse.tune.needs import kept_to_eagers
from interfuse.tune.race import race_plan

Runner = Callable[[list[Any]], Any]
"""Takes a list of inputs and empties it, so that each input is freed after its last use."""

CAPTURING = (
    "a CUDA graph is being captured, so nothing was measured and predictions stand; call the model once before "
    "capturing it."
)

STAGES = ("capture", "passes", "plan", "build", "race", "program")
"""The stages in order."""


class Watcher(Protocol):
    """Told the name of each stage when it begins, and `done` of `total` steps within it, for a progress bar."""

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        """`total` 0 means that the number of steps is not known."""


def about(name: str, watch: Watcher | None) -> Watcher | None:
    """A watcher that tells `watch` each stage as one of `name`; None where nobody watches."""
    if watch is None:
        return None

    def told(stage: str, done: int = 0, total: int = 0) -> None:
        watch(f"{name}: {stage}", done, total)

    return told


@dataclass
class Stages:
    """What each stage gave, empty where it did not run: what `show` prints and the bisection works on.

    graphs      "capture", then each pass by its name
    plans       "plan", "build" (candidates without a kernel left out), "race" (choices measured)
    launchers   of the kernels that were built, by name
    """

    device: Device | None = None
    graphs: dict[str, Graph] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    launchers: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Compiled:
    """One compiled graph: what to call, its plan (None where only the graph itself runs), its record, its stages."""

    run: Runner
    plan: Plan | None
    record: Record
    stages: Stages = field(default_factory=Stages)


class _StoppedError(Exception):
    """The stage after which the caller wanted no more has ended."""


def compile_graph(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    knobs: Knobs,
    name: str = "graph",
    watch: Watcher | None = None,
    stop: str = "",
    absent: Device | None = None,
) -> Compiled:
    """Compile one ATen graph. `inputs` are its example inputs (fake or real); never raises for want of a lowering.

    After stage `stop` no other runs, and the graph runs as captured. What is `absent` is planned for instead of the
    graph's own device.
    """
    record, found = Record(), Stages()
    stage = _stages(record, knobs, watch, stop)
    try:
        with stage("capture"):
            graph = import_graph(gm, inputs, name)
            found.graphs["capture"] = graph
            found.device = device = absent or device_of(graph.device, knobs, record)
            _note_model(graph, device, record)
            if device.why:
                record.add("warning", "device", error=device.why)
    except _StoppedError:
        return Compiled(_as_captured(gm), None, record, found)
    except Exception as error:  # any failure must leave the model running
        record.add("fallback", name, error=_sentence("capture", error))
        return Compiled(_as_captured(gm), None, record)
    try:
        return _compile(graph, device, knobs, record, stage, found, watch)
    except _StoppedError:
        return Compiled(_as_captured(gm), None, record, found)
    except Exception as error:
        record.add("fallback", name, error=_sentence("compile", error))
    record = Record([e for e in record.events if e.stage in ("model", "call", "fallback")])
    try:
        chosen = library_plan(graph, device.profile, record)
        return Compiled(Program(chosen, {}, record).run, chosen, record)
    except Exception as error:
        record.add("fallback", name, error=_sentence("library program", error))
        return Compiled(_as_captured(gm), None, record)


def _compile(
    graph: Graph,
    device: Device,
    knobs: Knobs,
    record: Record,
    stage: Callable[[str], Any],
    found: Stages,
    watch: Watcher | None,
) -> Compiled:
    if not knobs.fuse:
        found.plans["plan"] = chosen = library_plan(graph, device.profile, record)
        return Compiled(Program(chosen, {}, record).run, chosen, record, found)
    with stage("passes"):
        rewritten = graph
        for name, run_pass in PASSES:
            before, rewritten = rewritten, run_pass(rewritten)
            found.graphs[name] = rewritten
            debug(knobs, 2, partial(changes, name, before, rewritten))
        verify(rewritten)
    with stage("plan"):
        off = parts(knobs.off)
        found.plans["plan"] = chosen = plan(
            rewritten,
            device.target,
            device.profile,
            record,
            off,
            device.unavailable(rewritten, knobs),
            device.why.rstrip("."),
        )
    debug(knobs, 2, partial(show_plan, chosen))
    if knobs.lock or knobs.race:
        place = Place(device.target, device.profile, dict(rewritten.hints))
        chosen = settled(chosen, place, device.key(), knobs, record)
    with stage("build"):
        chosen, launchers = _build(chosen, device, knobs, record)
        found.plans["build"], found.launchers = chosen, launchers
    if knobs.race:
        with stage("race"):
            told = None if watch is None else partial(watch, "race")
            if device.is_capturing():
                record.add("warning", "race", error=CAPTURING)
            else:
                probed = device.probe_key if knobs.correct else ""
                chosen = race_plan(chosen, launchers, device.torch_device, device.key(), knobs, record, told, probed)
            found.plans["race"] = chosen
    with stage("program"):
        if not knobs.race:
            chosen = kept_to_eagers(chosen, [{}] * len(chosen.regions), launchers, device.torch_device, record)
        program = Program(chosen, launchers, record, pool_bytes=knobs.pool_mib << 20)
    return Compiled(program.run, chosen, record, found)


def _build(chosen: Plan, device: Device, knobs: Knobs, record: Record) -> tuple[Plan, Mapping[str, Any]]:
    """Launchers for every kernel of every candidate; candidates whose kernel does not build are left out."""
    kernels = {
        s.kernel.name: s.kernel
        for r in chosen.regions
        for c in r.candidates
        for s in c.steps
        if isinstance(s, (KernelStep, PackStep))
    }
    for kernel in kernels.values():
        debug(knobs, 3, partial(show_kernel, kernel))
    launchers, failed = device.build(tuple(kernels.values()), knobs, record)
    regions = tuple(_buildable(subject(chosen, i), r, failed, record) for i, r in enumerate(chosen.regions))
    return replace(chosen, regions=regions), launchers


def _buildable(subject: str, region: Region, failed: Mapping[str, str], record: Record) -> Region:
    """The region without the candidates whose kernel has failed, which its record is told."""
    lost = {
        c.label: failed[s.kernel.name]
        for c in region.candidates
        for s in c.steps
        if isinstance(s, (KernelStep, PackStep)) and s.kernel.name in failed
    }
    if not lost:
        return region
    kept = [k for k, c in enumerate(region.candidates) if c.label not in lost]
    reason = "; ".join(f"{label}: {why}" for label, why in lost.items())
    told = next(e.facts for e in reversed(record.of("region")) if e.subject == subject)
    candidates = [told["candidates"][k] for k in kept]
    record.add("region", subject, **{**told, "candidates": candidates, "chosen": 0, "reason": reason})
    return replace(region, candidates=tuple(region.candidates[k] for k in kept), chosen=0, reason=reason, key="")


def _as_captured(gm: torch.fx.GraphModule) -> Runner:
    def run(inputs: list[Any]) -> Any:
        given = tuple(inputs)
        inputs.clear()
        return gm.forward(*given)

    return run


def _stages(record: Record, knobs: Knobs, watch: Watcher | None, stop: str) -> Callable[[str], Any]:
    @contextmanager
    def stage(name: str) -> Iterator[None]:
        if watch is not None:
            watch(name)
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        record.add("stage", name, seconds=seconds)
        debug(knobs, 1, lambda: f"{name}: {seconds * 1e3:.1f} ms")
        if name == stop:
            raise _StoppedError

    return stage


def _note_model(graph: Graph, device: Device, record: Record) -> None:
    """Write what was captured into the record: the model, and every call with what eager spends on it."""
    key = short(*(f"{c.target}{[o.shape if o else None for o in c.outs]}" for c in graph.calls))
    record.add(
        "model",
        graph.name,
        device=graph.device,
        device_name=device.profile.name,
        torch=torch.__version__,
        plan=key,
        bandwidth=device.profile.bandwidth,
        peak_flops=device.profile.flops_of("f32"),
        profiled=device.profile.measured,
    )
    for k, call in enumerate(graph.calls):
        record.add(
            "call",
            str(k),
            target=call.target,
            launches=call.launches,
            bytes=call_bytes(call, dict(graph.hints)),
            view=call.view_of is not None,
            opaque=call.opaque,
            reason=call.reason,
            source=call.source,
        )


def _sentence(stage: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kind = "" if isinstance(error, InterfuseError) else f"{type(error).__name__}: "
    return f"{stage} failed, the graph runs as captured: {kind}{first}"
