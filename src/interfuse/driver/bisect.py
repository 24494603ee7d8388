"""Accuracy bisection. In: a model and its inputs. Out: the regions whose kernels break the accuracy contract.

The model is compiled once. Its regions are then switched between their kernels and the library path by building its
programs again from the same plan, and a binary search over how many regions run kernels finds the one that tips the
model's outputs over; it is switched off and the search goes on until the outputs keep the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from interfuse.base.errors import InterfuseError, ModelError
from interfuse.base.record import Record
from interfuse.capture.torch_types import to_torch
from interfuse.driver.backend import Backend
from interfuse.driver.compiler import Compiled, Runner, Watcher
from interfuse.driver.exact import exact_outputs, tensors_of
from interfuse.driver.measure import arguments, uncompiled
from interfuse.driver.options import read
from interfuse.driver.reproducer import values_of, write
from interfuse.ir.graph import Graph
from interfuse.plan.plan import Region
from interfuse.report.bisection import Bisection, Suspect
from interfuse.run.program import Program, subject
from interfuse.tune import trial
from interfuse.tune.judge import Error, judge, moved
from interfuse.tune.race import exact_of

SEED = 20

Switch = tuple[int, int]
"""A region by the number of its graph and its position there."""


def bisect(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rank: bool = False,
    folder: Path | None = None,
    watch: Watcher | None = None,
    **options: Any,
) -> Bisection:
    """Judge the compiled model against a float64 run, and name the regions at fault where it breaks the contract.

    rank     also judge every region that runs kernels on the values that reach it, worst first
    folder   where to write a script for each region at fault that shows its error by itself; None writes nothing
    Inputs and buffers are given afresh for each run. ModelError where the model gives other results each time.
    """
    tries = _Tries(model, arguments(inputs), dict(kwargs or {}), read(None, options), watch)
    everything = tries.fused
    error, at_fault, note = tries.judge(everything), list[Switch](), tries.nothing
    if not error.ok and not tries.judge(()).ok:
        note = (
            "The library path alone breaks it too, so no kernel is at fault: please report the model, "
            "and run it with INTERFUSE_DISABLE=1 meanwhile."
        )
    elif not error.ok:
        at_fault = _search(everything, tries)
    with torch.no_grad():
        suspects = [tries.suspect(s, folder) for s in at_fault]
        ranking = list(tries.suspects(everything)) if rank else []
    return Bisection(
        error.rms,
        error.share,
        "float64" if tries.exact is not None else "eager",
        len(everything),
        tries.count,
        tuple(suspects),
        tuple(sorted(ranking, key=lambda s: -(s.share or 0.0))),
        note,
    )


def _search(everything: Sequence[Switch], tries: _Tries) -> list[Switch]:
    """The regions without whose kernels the rest keeps the contract. With none switched on it is known to be kept."""
    left, found = list(everything), []
    while left and not tries.judge(left).ok:
        kept, broken = 0, len(left)  # the first `kept` regions keep the contract, the first `broken` do not
        while broken - kept > 1:
            middle = (kept + broken) // 2
            if tries.judge(left[:middle]).ok:
                kept = middle
            else:
                broken = middle
        found.append(left.pop(broken - 1))
    return found


class _Switchable(Backend):
    """A backend whose graphs look their program up at each call; `given` keeps what each graph was first given."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: dict[int, list[Any]] = {}

    def _graph(self, *arguments: Any) -> Runner:
        super()._graph(*arguments)
        number, made = len(self.compiled) - 1, self.compiled[-1]

        def call(inputs: list[Any]) -> Any:
            if number not in self.given:
                self.given[number] = [_kept(t) for t in inputs]
            return made.run(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


class _Tries:
    """Runs of one compiled model with any of its regions switched to the library path, each judged."""

    def __init__(
        self,
        model: Callable[..., Any],
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Any,
        watch: Watcher | None,
    ) -> None:
        self._model, self._arguments, self._watch = model, (inputs, kwargs), watch
        buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
        self._buffers = [(b, b.clone()) for b in buffers]
        self.count = 0
        self._eager = uncompiled(self._outputs, (model,))
        self.exact = self._exact()
        self._nearby = None if self.exact is None else self._exact(move=True)
        again = judge(self._outputs(model), self._eager, self.exact, self._nearby)
        if not again.ok:
            raise ModelError(
                "the model gives other results from run to run with the same seed, so its accuracy cannot be judged: "
                "make it deterministic first, for example by model.eval()."
            )
        torch._dynamo.reset()
        self._backend = _Switchable(options, watch)
        self._fast = torch.compile(model, backend=self._backend, dynamic=False)
        self._outputs(self._fast)
        self._backend.check_off()
        self.nothing = self._backend.nothing()
        self._plans = [c.plan for c in self._backend.compiled]
        self._codes = self._coded()
        self.fused = tuple(
            (g, i)
            for g, plan in enumerate(self._plans)
            if plan is not None
            for i, region in enumerate(plan.regions)
            if region.choice.family != "library"
        )

    def judge(self, on: Sequence[Switch]) -> Error:
        """The error of the compiled model with kernels in the regions `on` alone."""
        self.count += 1
        if self._watch is not None:
            self._watch("bisecting", self.count)
        for g, (plan, made) in enumerate(zip(self._plans, self._backend.compiled, strict=True)):
            if plan is not None:
                regions = tuple(r if (g, i) in on else _off(r) for i, r in enumerate(plan.regions))
                made.run = Program(replace(plan, regions=regions), made.stages.launchers, Record()).run
        return judge(self._outputs(self._fast), self._eager, self.exact, self._nearby, self._codes)

    def _coded(self) -> list[int]:
        """The positions of results that have type and shape of codes which one of the graphs gives (`trial.codes`)."""
        graphs = [plan.graph for plan in self._plans if plan is not None]
        nodes = [graph.outputs[k].node for graph in graphs for k in trial.codes(graph)]
        kinds = {(to_torch(n.dtype), n.shape) for n in nodes if n is not None}
        return [k for k, t in enumerate(self._eager) if (t.dtype, tuple(t.shape)) in kinds]

    def suspects(self, switches: Sequence[Switch]) -> Iterator[Suspect]:
        """Each region with the error that it makes alone."""
        for done, switch in enumerate(switches):
            if self._watch is not None:
                self._watch("judging regions", done, len(switches))
            yield self.suspect(switch, None)

    def suspect(self, switch: Switch, folder: Path | None) -> Suspect:
        """The region with the error that it makes alone, and its script in `folder`."""
        number, position = switch
        made, plan = self._backend.compiled[number], self._plans[number]
        assert plan is not None
        region = plan.regions[position]
        graph = made.stages.graphs["capture"]
        calls = [graph.calls[k] for k in region.calls]
        found = Suspect(
            graph.name,
            subject(plan, position),
            region.name,
            region.choice.label,
            tuple(c.target for c in calls),
            tuple(dict.fromkeys(c.source for c in calls if c.source)),
        )
        given = self._backend.given.get(number)
        if given is None or plan.graph.symbols:
            return replace(found, note="its inputs were not seen, so it cannot be judged alone.")
        region = trial.unwritten(region, plan.graph)
        own = trial.alone(region, plan.graph)
        seen = values_of(plan.graph, own.inputs, given)
        error, has_exact = _alone(region, own, made, seen)
        found = replace(found, rms=error.rms, share=error.share)
        if folder is None:
            return found
        shown = not _alone(region, own, made, trial.made_up(own, torch.device(plan.graph.device)))[0].ok
        return write(found, graph, region, None if shown else given, has_exact, folder)

    def _outputs(self, f: Callable[..., Any]) -> list[torch.Tensor]:
        """The tensors that `f` gives for fresh copies of the arguments, then these as it leaves them.

        Each run has the same seed and the same buffers.
        """
        for buffer, value in self._buffers:
            buffer.copy_(value)
        inputs, kwargs = tree_map(_copied, self._arguments)
        torch.manual_seed(SEED)
        with torch.no_grad():
            result = f(*inputs, **kwargs)
        return [t.detach().clone() for t in (*tensors_of(result), *tensors_of((inputs, kwargs)))]

    def _exact(self, move: bool = False) -> list[torch.Tensor] | None:
        inputs, kwargs = tree_map(_copied, self._arguments)  # integers may be written too
        torch.manual_seed(SEED)
        with torch.no_grad():
            exact = exact_outputs(self._model, inputs, kwargs, arguments=True, move=move)
        same = exact is not None and [e.shape for e in exact] == [e.shape for e in self._eager]
        return exact if same else None


def _copied(value: Any) -> Any:
    """A copy of a tensor with its strides; one that is expanded cannot be written, and stays."""
    if not isinstance(value, torch.Tensor) or 0 in value.stride():
        return value
    same = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return same.copy_(value.detach()).requires_grad_(value.requires_grad)


def _kept(value: Any) -> Any:
    """What a graph was given, safe from changes: parameters as they are, for they may be large and rarely change."""
    return value.detach() if isinstance(value, torch.nn.Parameter) else _copied(value)


def _off(region: Region) -> Region:
    return replace(region, chosen=region.candidates.index(region.library))


def _alone(region: Region, own: Graph, made: Compiled, inputs: list[Any]) -> tuple[Error, bool]:
    """The chosen candidate's error on these inputs, and whether there was a float64 run to judge it by."""
    library = region.candidates.index(region.library)
    eager = trial.program(region, own, library, {})(*inputs)
    exact = exact_of(region, own, library, inputs)
    nearby = None if exact is None else exact_of(region, own, library, moved(inputs))
    try:
        got = trial.program(region, own, region.chosen, made.stages.launchers)(*inputs)
    except (RuntimeError, InterfuseError):  # in the model this region falls back to the library
        return Error(0.0, 0.0), exact is not None
    return judge(got, eager, exact, nearby, trial.codes(own)), exact is not None
