"""The front doors. In: a model and its inputs. Out: a compiled model, or the ledger of what compiling it brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.base.errors import OptionError
from interfuse.driver.backend import Backend
from interfuse.driver.compiler import Watcher
from interfuse.driver.measure import PEERS, measure_model
from interfuse.driver.options import read
from interfuse.report.ledger import Ledger, ledger


def compile(
    model: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    watch: Watcher | None = None,
    **options: Any,
) -> Any:
    """The model, compiled at its first call: behaves as `torch.compile(model, backend="interfuse")` does.

    `dynamic` and `fullgraph` mean what they mean to torch.compile; `watch` is told the name of each stage; options are
    those of `driver.options.Options` (fuse, race, race_seconds, off). OptionError for an option that is not there.
    """
    if not callable(model):
        raise OptionError(f"interfuse.compile takes a model or a function, not {type(model).__name__}.")
    return torch.compile(model, backend=Backend(read(mode, options), watch), dynamic=dynamic, fullgraph=fullgraph)


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
    The ledger's times are medians in milliseconds; its errors are root mean squares against a float64 run.
    """
    for peer in peers:
        if peer not in PEERS:
            raise OptionError(f"there is no peer {peer!r}; the peers are {', '.join(PEERS)}.")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    torch._dynamo.reset()
    backend = Backend(read(None, options), watch)
    given = dict(kwargs or {})
    with torch.set_grad_enabled(grad):
        fast = torch.compile(model, backend=backend, dynamic=False)
        fast(*inputs, **given)
        records = list(backend.records)
        if measure:
            records.append(measure_model(model, fast, tuple(inputs), given, peers, rounds, name or _name(model), watch))
    return ledger(records)


def _name(model: Callable[..., Any]) -> str:
    return getattr(model, "__name__", type(model).__name__)
