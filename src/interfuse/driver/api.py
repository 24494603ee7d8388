"""The front doors. In: a model and its inputs. Out: a compiled model, or the ledger of what compiling it brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from interfuse.base.errors import CounterError, OptionError
from interfuse.base.record import Record
from interfuse.driver.backend import Backend
from interfuse.driver.begin import begin
from interfuse.driver.bench import check_peers
from interfuse.driver.compiler import Watcher
from interfuse.driver.counters import count
from interfuse.driver.measure import measure_model, model_name, named
from interfuse.driver.options import Options, mapping, read
from interfuse.report.ledger import Ledger, ledger


def compile(
    model: Callable[..., Any] | None = None,
    options: Mapping[str, object] | Options | None = None,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    watch: Watcher | None = None,
    **more: Any,
) -> Any:
    """The model, compiled at its first call: behaves as `torch.compile(model, backend="interfuse")` does.

    `dynamic` and `fullgraph` mean what they mean to torch.compile; `watch` is told the name of each stage. Options are
    those of `interfuse.Options` (fuse, race, race_seconds, off, lock), as keywords, a mapping or that value; keywords
    win, and all of them over `mode`. torch.compile takes options= by name alone; here they may also stand behind the
    model. Without a model it gives a decorator: `@interfuse.compile(race=False)`.
    OptionError for an option that is not there. Regions are known once a graph is compiled, so a name in `off` that is
    part of none gives a warning then.
    """
    chosen = read(mode, {**mapping(options), **more})
    if model is None:
        return partial(_compile, chosen, dynamic, fullgraph, watch)
    return _compile(chosen, dynamic, fullgraph, watch, model)


def _compile(
    chosen: Options, dynamic: bool | None, fullgraph: bool, watch: Watcher | None, model: Callable[..., Any]
) -> Any:
    if not callable(model):
        meant = "; for a decorator, write options=" if isinstance(model, Options | Mapping) else ""
        raise OptionError(f"interfuse.compile takes a model or a function, not {type(model).__name__}{meant}.")
    return torch.compile(model, backend=Backend(chosen, watch, warn=True), dynamic=dynamic, fullgraph=fullgraph)


def explain(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    measure: bool = True,
    peers: Sequence[str] = (),
    rounds: int = 30,
    name: str = "",
    grad: bool = False,
    counters: str = "",
    watch: Watcher | None = None,
    **options: Any,
) -> Ledger:
    """Compile `model` for these inputs, run it beside eager, and return the ledger.

    inputs, kwargs  what the model is called with; `measure=False` only plans, builds and races
    peers           other compilers to measure beside: "inductor"
    rounds          interleaved timed runs of each contender
    grad            True keeps gradients on, so that the forward and backward graphs of training are compiled
    counters        how the command line names this model ("package.module:function"): what its regions read from and
                    write to device memory is then read from hardware counters, in a process that runs it again
    The ledger's times are medians in milliseconds; its errors are root mean squares against a float64 run. ModelError
    where PyTorch itself cannot run the model, OptionError where option `off` names no region, for peers that are not
    to be measured, and for no rounds.
    """
    check_peers(peers)
    if peers and not measure:
        raise OptionError("a peer is there to be measured beside: name none, or leave measuring on.")
    if rounds < 1:
        raise OptionError(f"rounds must be 1 or more, not {rounds}.")
    with torch.set_grad_enabled(grad):
        begun = begin(model, inputs, kwargs, options, watch)
        records = list(begun.backend.records)
        if reason := begun.backend.nothing():
            records.append(Record())
            records[-1].add("warning", "model", error=reason)
        label = name or model_name(model)
        if measure:
            records.append(measure_model(model, begun.fast, begun.inputs, begun.kwargs, peers, rounds, label, watch))
        else:
            records.append(named(model, begun.inputs, begun.kwargs, label))
        if counters:
            records.append(_counters(begun.backend, counters, watch))
    return ledger(records)


def _counters(backend: Backend, target: str, watch: Watcher | None) -> Record:
    """Read hardware counters into the records of the compiled graphs; what keeps them from being read is a warning."""
    found = Record()
    if watch is not None:
        watch("memory counters")
    try:
        count(backend.compiled, target, backend.options.knobs())
    except CounterError as error:
        found.add("warning", "counters", error=str(error))
    return found
