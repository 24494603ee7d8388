"""The torch.compile backend. In: graphs from Dynamo. Out: compiled functions with torch.compile's semantics.

Registered under the name "interfuse" as an entry point. Dynamo and AOTAutograd are the front end: they trace, guard,
functionalise, split training into a forward and a backward graph, and call `compile_graph` for each.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from interfuse.base.errors import OptionError
from interfuse.base.knobs import Knobs, misspelt
from interfuse.base.record import Record
from interfuse.build.workers import KEPT, workers_of
from interfuse.capture.decompositions import table
from interfuse.capture.partition import partition
from interfuse.driver.compiler import Compiled, Runner, Watcher, compile_graph
from interfuse.driver.device import Device
from interfuse.driver.options import Options, parts, read
from interfuse.run import gpu as run_gpu
from interfuse.tune.choice import read_lock

DISABLED = "INTERFUSE_DISABLE is set, so PyTorch runs the model unchanged: unset it to compile."
"""What is said where the kill switch leaves nothing to report."""

NO_GRAPH = (
    "PyTorch captured no graph of this model, so it runs as PyTorch runs it: TORCH_LOGS=graph_breaks shows what keeps "
    "it from that."
)
"""What is said where Dynamo has handed nothing over, as of an nn.LSTM."""

_TOLD: set[str] = set()
"""What this process has been warned of: a model of many graphs would hear it with each."""


class Backend:
    """A torch.compile backend that keeps what it compiled: `compiled` grows by one for each graph.

    `watch(stage)` is told when a stage begins; after stage `stop` no other runs, and graphs run as captured. With
    `absent` they are planned for that device, which need not be here.
    `warn=True` warns, once a name, of names to switch off that are no region's in what is compiled so far; who knows
    when all is compiled calls `check_off`.
    """

    def __init__(
        self,
        options: Options | None = None,
        watch: Watcher | None = None,
        stop: str = "",
        warn: bool = False,
        absent: Device | None = None,
    ) -> None:
        self.options = options or Options()
        self.compiled: list[Compiled] = []
        if (lock := self.options.knobs().lock) and not self.options.knobs().disable:
            read_lock(lock)  # a broken one is told at once, and not by a compile that falls back
        if torch.cuda.is_initialized() and not self.options.knobs().disable:
            _begin(self.options.knobs())  # while Dynamo traces the model
        for sentence in misspelt() if warn else ():
            warnings.warn(sentence, stacklevel=4)
        self._watch, self._stop, self._warn, self._absent = watch, stop, warn, absent
        self._warned: set[str] = set()

    def __getstate__(self) -> Options:
        """Copies and pickles of a compiled model carry the options and compile for themselves."""
        return self.options

    def __setstate__(self, options: Options) -> None:
        self.__init__(options, warn=True)  # type: ignore[misc]

    @property
    def records(self) -> list[Record]:
        """The records of every graph compiled so far."""
        return [c.record for c in self.compiled]

    def nothing(self) -> str:
        """Why nothing is compiled; "" where something is."""
        return DISABLED if self.options.knobs().disable else "" if self.compiled else NO_GRAPH

    def check_off(self) -> None:
        """OptionError where option `off` has a name that is part of no region's in what was compiled so far."""
        for sentence in self._without_region(self.options.off or ()).values():
            raise OptionError(sentence)

    def _without_region(self, off: Iterable[str]) -> dict[str, str]:
        """For each name in `off` that is part of no region's so far one sentence."""
        plans = [c.plan or next(iter(c.stages.plans.values()), None) for c in self.compiled]
        names = list(dict.fromkeys(r.name for p in plans if p is not None for r in p.regions))
        return {
            part: f"there is no region {part!r} to switch off; the regions are: {', '.join(names)} "
            "(interfuse.explain(model, inputs) lists them)."
            for part in off
            if names and not any(part in name for name in names)
        }

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one Dynamo graph. The kill switch hands the graph back as it is."""
        knobs = self.options.knobs()
        if knobs.disable:
            return gm.forward
        if any(getattr(t, "is_cuda", False) for t in inputs):
            _begin(knobs)  # where the GPU or this graph came later
        names = [_readable(n.name) for n in gm.graph.nodes if n.op == "placeholder"]

        def step(kind: str) -> Callable[..., Any]:
            return functools.partial(self._graph, knobs, kind, names)

        compiler = aot_autograd(
            fw_compiler=step("forward"),
            bw_compiler=step("backward"),
            inference_compiler=step("inference"),
            partition_fn=partition,
            decompositions=table(),
            keep_inference_input_mutations=True,
        )
        return compiler(gm, list(inputs))

    def _graph(
        self, knobs: Knobs, kind: str, names: Sequence[str], gm: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        _name_inputs(gm, names)
        if kind == "backward":
            _keep_saved_values()
        made = compile_graph(gm, inputs, knobs, kind, self._watch, self._stop, self._absent)
        self.compiled.append(made)
        self._warn_off(made.record, knobs, kind)
        if self._warn and knobs.fuse:
            _warn_of_place(made.record)
        return _boxed(made.run)

    def _warn_off(self, record: Record, knobs: Knobs, kind: str) -> None:
        """Record each name to switch off that is no region's yet, and warn of those among the options.

        The backward graph that follows a forward one may have it, and surely is meant where the name says so.
        """
        for sentence in self._without_region(parts(knobs.off)).values():
            record.add("warning", "off", error=sentence)
        for name, sentence in self._without_region(self.options.off or ()).items() if self._warn else ():
            if kind == "forward" and "backward" in name:
                continue
            if name not in self._warned:
                more = "; a backward graph that is still to come may have it." if kind == "forward" else "."
                warnings.warn(sentence.removesuffix(".") + more, stacklevel=2)
            self._warned.add(name)


def _begin(knobs: Knobs) -> None:
    """Start what compiles and launches GPU kernels, without waiting for it."""
    workers_of(None).begin(max(1, min(KEPT, knobs.workers or (os.cpu_count() or 1) // 4)))
    run_gpu.begin()


def _warn_of_place(record: Record) -> None:
    """Warn, once a process, that this machine has no compiler or no cache folder: results are right without, so that
    nobody would look for the reason why nothing is faster.
    """
    for event in record.of("warning"):
        sentence = str(event.facts["error"])
        if event.subject in ("device", "cache") and sentence not in _TOLD:
            _TOLD.add(sentence)
            warnings.warn(f"Interfuse: {sentence}", stacklevel=3)


def _readable(name: str) -> str:
    """Dynamo's name of an input as people know it: l_self_modules_fc_parameters_weight_ is weight."""
    name = name.lower().strip("_")
    for mark in ("_parameters_", "_buffers_"):
        name = name.rpartition(mark)[2]
    return name.removeprefix("l_").removeprefix("self_")


def _name_inputs(gm: torch.fx.GraphModule, names: Sequence[str]) -> None:
    """Give the inputs Dynamo's names, for kernels that people read; left alone where AOTAutograd added or dropped
    some.
    """
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    if len(places) == len(names):
        for place, name in zip(places, names, strict=True):
            place._rename(name)


def _keep_saved_values() -> None:
    """Tell AOTAutograd that the backward graph writes into nothing that the forward one saved. It marks what it might
    overwrite, and refuses `retain_graph=True` from then on.
    """
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None and hasattr(context.fw_metadata, "bw_donated_idxs"):
        context.fw_metadata.bw_donated_idxs = []


def _boxed(run: Runner) -> Runner:
    """A function of AOTAutograd's boxed convention, which compiled graphs keep to: itself where it says so."""
    if getattr(run, "_boxed_call", False):
        return run

    def call(inputs: list[Any]) -> Any:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def interfuse(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
) -> Callable[..., Any]:
    """The entry point that `torch.compile(model, backend="interfuse", mode=, options=)` finds. OptionError for bad
    ones.
    """
    return Backend(read(mode, options), warn=True)(gm, example_inputs)
