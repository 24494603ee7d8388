"""What Nsight Compute watches, in a process of its own (driver/counters.py). In: where to find a model, and the options
that make its choices. Out: each region run between marks, and a file that says what each mark's number stands for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from interfuse.driver.begin import begin
from interfuse.driver.compiler import Compiled
from interfuse.driver.counters import RANGE
from interfuse.driver.load import load
from interfuse.plan.plan import Plan, Region
from interfuse.run.program import subject
from interfuse.run.real import real_tensors
from interfuse.tune import trial
from interfuse.tune.bench import FLUSH_BYTES

Tried = list[tuple[int, str, str]]
"""What a mark's number stands for: the graph, the region, the candidate."""

Mark = Callable[[str], contextlib.AbstractContextManager[None]]


def main(arguments: Sequence[str]) -> int:
    """Run every region of a model. The arguments: the file to write what was tried to, the model, options as JSON."""
    tried, target, options = arguments
    case = load(target)
    with torch.no_grad():
        compiled = begin(case.model, case.inputs, case.kwargs, json.loads(options), stop="build").backend.compiled
    device = next(c.stages.device.torch_device for c in compiled if c.stages.device is not None)
    filler = torch.ones(FLUSH_BYTES // 4, device=device)  # floats: the sum of integers writes them again, wider
    with torch.cuda.device(device):
        found = run_marked(compiled, lambda: filler.sum(), _range)
    Path(tried).write_text(json.dumps(found), encoding="utf-8")
    return 0


@contextlib.contextmanager
def _range(name: str) -> Iterator[None]:
    """A range that ncu sees; what is launched in it has ended when it does."""
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push(RANGE)
    torch.cuda.nvtx.range_push(name)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_pop()


def run_marked(compiled: Sequence[Compiled], fill: Callable[[], Any], mark: Mark) -> Tried:
    """Run the choice and the library's way of each different region; `fill` puts other data into the cache.

    What cannot run on made-up inputs is left out.
    """
    tried: Tried = []
    seen: set[str] = set()
    with mark("interfuse begins"):  # what ncu itself writes at its first kernel is nobody's
        fill()
    for number, made in enumerate(compiled):
        plan, device = made.stages.plans.get("build"), made.stages.device
        for position, region in enumerate(plan.regions if plan is not None else ()):
            if plan is None or device is None or len(region.candidates) < 2:
                continue
            if trial.sizes_of(region, plan.graph) is None:
                continue
            key = trial.region_key(region, plan.graph, device.key())
            if key in seen:
                continue
            seen.add(key)
            for label, run in _ways(region, plan, made, device.torch_device):
                with contextlib.suppress(Exception):  # nothing to say of a way that does not run here
                    run()  # compiled and warm
                    fill()
                    with mark(f"interfuse region {len(tried)}"):
                        run()
                    with mark(f"interfuse after {len(tried)}"):
                        fill()
                    tried.append((number, subject(plan, position), label))
    return tried


def _ways(region: Region, plan: Plan, made: Compiled, device: torch.device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The choice and the captured calls, ready to run on made-up inputs."""
    with real_tensors():
        alone = trial.unwritten(region, plan.graph)
        own = trial.alone(alone, plan.graph)
        inputs = trial.made_up(own, device)
        for k in dict.fromkeys((region.chosen, region.candidates.index(region.library))):
            program = trial.program(alone, own, k, made.stages.launchers)
            yield region.candidates[k].label, lambda program=program: program(*inputs)  # type: ignore[misc]
