"""The front doors. In: a model and its inputs. Out: a compiled model, or the ledger of what compiling it brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from interfuse.base.errors import OptionError
from interfuse.base.record import Record
from interfuse.driver.backend import DISABLED, Backend
from interfuse.driver.bench import check_peers
from interfuse.driver.compiler import Watcher
from interfuse.driver.measure import arguments, measure_model, model_name, uncompiled
from interfuse.driver.options import Options, mapping, read
from interfuse.report.ledger import Ledger, ledger


def compile(
    model: Callable[..., Any] | None = None,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
    watch: Watcher | None = None,
    **more: Any,
) -> Any:
    """The model, compiled at its first call: behaves as `torch.compile(model, backend="interfuse")` does.

    `dynamic` and `fullgraph` mean what they mean to torch.compile; `watch` is told the name of each stage. Options are
    those of `interfuse.Options` (fuse, race, race_seconds, off), as keywords, as a mapping or as that value; keywords
    win, and all of them over `mode`. Without a model it gives a decorator: `@interfuse.compile(race=False)`.
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
        raise OptionError(f"interfuse.compile takes a model or a function, not {type(model).__name__}.")
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
    watch: Watcher | None = None,
    **options: Any,
) -> Ledger:
    """Compile `model` for these inputs, run it beside eager, and return the ledger.

    inputs, kwargs  what the model is called with; `measure=False` only plans, builds and races
    peers           other compilers to measure beside: "inductor"
    rounds          interleaved timed runs of each contender
    grad            True keeps gradients on, so that the forward and backward graphs of training are compiled
    The ledger's times are medians in milliseconds; its errors are root mean squares against a float64 run. ModelError
    where PyTorch itself cannot run the model, OptionError where option `off` names no region.
    """
    check_peers(peers)
    inputs = arguments(inputs)
    torch._dynamo.reset()
    backend = Backend(read(None, options), watch)
    given = dict(kwargs or {})
    with torch.set_grad_enabled(grad):
        uncompiled(model, inputs, given)
        fast = torch.compile(model, backend=backend, dynamic=False)
        fast(*inputs, **given)
        backend.check_off()
        records = list(backend.records)
        if backend.options.knobs().disable:
            records.append(Record())
            records[-1].add("warning", "disable", error=DISABLED)
        if measure:
            records.append(measure_model(model, fast, inputs, given, peers, rounds, name or model_name(model), watch))
    return ledger(records)
