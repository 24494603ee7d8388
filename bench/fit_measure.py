"""Times of every planned candidate of the cases. In: case names, a GPU. Out: for each case its regions, with the
microseconds of each candidate and what the cost model is told of it.

All candidates of a region take turns, in this process, each as a CUDA graph with a second-level cache that holds
something else. What the model is told (the features of each kernel) is kept beside the times, so that fitting needs
neither the GPU nor the plan; `counted` counts it again, on any machine, where only the counting has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from bench.fit_cases import CASES
from bench.memory import alone
from bench.memory_cases import Case
from interfuse.base.keys import short
from interfuse.base.knobs import current
from interfuse.base.record import Record
from interfuse.capture.torch_types import to_torch
from interfuse.cost.features import features
from interfuse.cost.library import asked
from interfuse.cost.model import linear_flops
from interfuse.cost.traffic import moved_bytes
from interfuse.driver.backend import Backend
from interfuse.driver.compiler import Compiled
from interfuse.driver.device import Device
from interfuse.driver.options import read
from interfuse.ir.graph import Input
from interfuse.ir.index import at_sizes
from interfuse.ir.node import topological
from interfuse.lower.canonical import canonical
from interfuse.lower.kernel import Kernel
from interfuse.plan.candidates import near_of
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, PackStep, Plan, ProviderStep, Region, Step
from interfuse.plan.routines import LAUNCHES
from interfuse.run.views import concrete, relaid
from interfuse.tune import trial
from interfuse.tune.bench import compare

Row = dict[str, Any]
ROUNDS = 12
AT_ONCE = 4
"""Cases whose kernels are compiled together: meanwhile other processes time theirs."""


def planned(case: Case, absent: Device | None = None) -> list[Plan]:
    """The plans of the case's graphs, made on tensors without memory; for this GPU, or for one that is `absent`."""
    torch._dynamo.reset()
    backend = Backend(read(None, {"race": False}), stop="plan", absent=absent)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        inputs = case.inputs()
        if not torch.cuda.is_available():  # a PyTorch without CUDA cannot trace all that happens there
            inputs = tree_map_only(torch.Tensor, _on_cpu, inputs)
        torch.compile(case.function, backend=backend, dynamic=case.dynamic)(*inputs)
    return [p for c in backend.compiled if (p := _plan(c)) is not None]


def _on_cpu(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)


def _plan(made: Compiled) -> Plan | None:
    return made.stages.plans.get("plan")


def raced(plan: Plan) -> Iterator[Region]:
    """The regions that have something to choose from."""
    return (r for r in plan.regions if len(r.candidates) > 1)


def kernels_of(region: Region) -> dict[str, Kernel]:
    """The generated kernels of all candidates by name."""
    steps = (s for c in region.candidates for s in c.steps)
    return {s.kernel.name: s.kernel for s in steps if isinstance(s, (KernelStep, PackStep))}


def key_of(plans: Iterable[Plan]) -> str:
    """Changes where any candidate of the case does: its label, its kernels, the calls that it runs."""
    texts = [
        f"{c.label} {[canonical(s.kernel) for s in c.steps if isinstance(s, (KernelStep, PackStep))]} {p.graph.hints}"
        for p in plans
        for r in raced(p)
        for c in r.candidates
    ]
    return short(*texts)


def told(step: Step, plan: Plan, near: frozenset[str]) -> Row:
    """What the cost model is told of a step, as JSON values; steps right before it had the parameters `near`."""
    sizes = dict(plan.graph.hints)
    if isinstance(step, KernelStep):
        found = asdict(features(step.kernel, sizes, near))
        return {"kernel": step.kernel.name, "family": step.kernel.family, "features": found}
    if isinstance(step, PackStep):
        first, *others = (features(m.kernel, sizes) for m in step.members)
        found = asdict(sum(others, first))
        return {"kernel": step.kernel.name, "family": step.kernel.family, "features": found, "rows": len(step.members)}
    if isinstance(step, LibraryStep):
        call = plan.graph.calls[step.call]
        return {"call": call.target, "asked": asdict(asked(call, sizes))}
    assert isinstance(step, ProviderStep)
    linear = next(n for n in topological([step.output]) if n.op == "linear")
    found = {
        "bytes": moved_bytes(step.operands, (step.output,), sizes),
        "launches": LAUNCHES.get(step.provider, 1),
        "flops": linear_flops(linear, sizes),
        "dtype": linear.dtype.name,
    }
    return {"call": step.provider, "provided": found}


def steps_of(candidate: Candidate, plan: Plan) -> list[Row]:
    """What the cost model is told of a candidate; equal steps once, with how often."""
    found: list[Row] = []
    kernels = [s for s in candidate.steps if isinstance(s, KernelStep)]
    near = dict(zip(map(id, kernels), near_of(kernels), strict=True)) if candidate.family.endswith("in parts") else {}
    for step in candidate.steps:
        row = told(step, plan, near.get(id(step), frozenset()))
        same = next((f for f in found if f == row | {"times": f["times"]}), None)
        if same is None:
            found.append(row | {"times": 1})
        else:
            same["times"] += 1
    return found


def counted(case: Case, device: Device) -> list[list[Row]]:
    """For each raced region of the case its candidates without times."""
    return [
        [{"label": c.label, "steps": steps_of(c, p)} for c in r.candidates]
        for p in planned(case, device)
        for r in raced(p)
    ]


# --- Times.


def _made(given: Input, sizes: Mapping[str, int], end: int) -> torch.Tensor:
    """An input as captured, made on the GPU; integers stay below `end`."""
    shape, strides = concrete(given.node.shape, sizes), concrete(given.layout.strides, sizes)
    dtype = to_torch(given.node.dtype)
    floats = dtype.is_floating_point
    values = torch.randn(shape, device="cuda") if floats else torch.randint(0, max(end, 1), shape, device="cuda")
    return relaid(values.to(dtype), strides)


def timed(region: Region, plan: Plan, launchers: Mapping[str, Any]) -> Iterator[Row]:
    """Each candidate of the region with its microseconds and their spread, or why it does not run."""
    alone = trial.unwritten(region, plan.graph)
    own = trial.alone(alone, plan.graph)
    sizes = dict(own.hints)
    ends = trial.index_ends(own.roots(), {i.node for i in own.inputs})
    names = [i.node.attr("symbol") for i in own.inputs]
    inputs = [
        _made(i, sizes, at_sizes(ends.get(i.node, 2), sizes)) if name is None else sizes[name]
        for i, name in zip(own.inputs, names, strict=True)
    ]
    runs: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for k, c in enumerate(alone.candidates):
        try:
            run = trial.program(alone, own, k, launchers)
            run(*inputs)
            runs[c.label] = partial(run, *inputs)
        except Exception as error:  # told beside the times of the others
            failed[c.label] = f"{type(error).__name__}: {str(error)[:120]}"
    found = compare(runs, "cuda", ROUNDS)
    for c in region.candidates:
        row: Row = {"label": c.label, "steps": steps_of(c, plan)}
        if c.label in found:
            yield row | {"us": round(found[c.label].median * 1e6, 2), "spread": round(found[c.label].spread, 3)}
        else:
            yield row | {"fails": failed.get(c.label, "")}


def measured(
    names: Iterable[str], device: Device, known: Mapping[str, Row], seconds: float, lock: Path
) -> Iterator[tuple[str, Row]]:
    """Each case with its times, but for those in `known` whose candidates are the same, for about so many seconds.

    Whatever is timed has the GPU to itself among the processes with this `lock`.
    """
    ends, left = time.perf_counter() + seconds, list(names)
    while left and time.perf_counter() < ends:
        some, left = left[:AT_ONCE], left[AT_ONCE:]
        yield from _measured(some, device, known, ends, lock)


def _measured(
    names: Iterable[str], device: Device, known: Mapping[str, Row], ends: float, lock: Path
) -> Iterator[tuple[str, Row]]:
    """All kernels are compiled side by side before the first is timed."""
    plans: dict[str, list[Plan]] = {}
    for name in names:
        try:
            made = planned(CASES[name])
        except Exception as error:
            yield name, {"fails": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        if known.get(name, {}).get("key") != key_of(made):
            plans[name] = made
    long = {
        (name, k, old): replace(kernel, name=f"c{number}_{k}_{old}")
        for number, (name, made) in enumerate(plans.items())
        for k, plan in enumerate(made)
        for region in raced(plan)
        for old, kernel in kernels_of(region).items()
    }
    record = Record()
    launchers, refused = device.build(tuple(long.values()), current(), record)
    facts = {e.subject: e.facts for e in record.of("kernel")}
    for name, made in plans.items():
        if time.perf_counter() > ends:
            return
        regions = []
        for k, plan in enumerate(made):
            mine = {
                old: launchers[n.name] for (c, p, old), n in long.items() if (c, p) == (name, k) and n.name in launchers
            }
            for region in raced(plan):
                with alone(lock):
                    rows = list(timed(region, plan, mine))
                for step in (s for row in rows for s in row["steps"] if "kernel" in s):
                    own = long[name, k, step["kernel"]].name
                    step |= {n: facts[own][n] for n in ("registers", "shared_bytes")} if own in facts else {}
                    step |= {"refused": refused[own]} if own in refused else {}
                regions.append({"region": region.name, "candidates": rows})
        torch.cuda.empty_cache()
        yield name, {"key": key_of(made), "regions": regions}
