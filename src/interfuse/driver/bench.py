"""Running and timing a model. In: a model, its inputs, contenders. Out: outputs, and measures beside eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from interfuse.base.errors import OptionError
from interfuse.driver.begin import begin
from interfuse.driver.compiler import Watcher
from interfuse.driver.measure import PEERS, measure_model, model_device, model_name
from interfuse.report.bench import Bench
from interfuse.report.gather import gather, warnings_of
from interfuse.tune.bench import Timing, compare


@dataclass(frozen=True)
class Once:
    """One compiled run: outputs as text, seconds of the first call (compile included), then the Timing of later ones.

    `fallbacks` and `warnings` are what the record says went wrong, one sentence each.
    """

    outputs: tuple[str, ...]
    first_seconds: float
    timing: Timing
    graphs: int
    regions: int
    fused: int
    fallbacks: tuple[str, ...]
    warnings: tuple[str, ...]


def once(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rounds: int = 1,
    watch: Watcher | None = None,
    **options: Any,
) -> Once:
    """Compile `model` for these inputs, run it, then time `rounds` more calls.

    ModelError where PyTorch itself cannot run it.
    """
    if rounds < 1:
        raise OptionError(f"rounds must be 1 or more, not {rounds}.")
    with torch.no_grad():
        begun = begin(model, inputs, kwargs, options, watch)
        told = None if watch is None else partial(watch, "timing")
        work = partial(begun.fast, *begun.inputs, **begun.kwargs)
        device = model_device(model, begun.inputs, begun.kwargs)
        timing = compare({"interfuse": work}, device, rounds, told=told)["interfuse"]
    backend = begun.backend
    regions = [r for c in backend.compiled if c.plan is not None for r in c.plan.regions]
    nothing = (reason,) if (reason := backend.nothing()) else ()
    events = [e for record in backend.records for e in record.events]
    return Once(
        tuple(map(_described, _leaves(begun.result))),
        begun.seconds,
        timing,
        len(backend.compiled),
        len(regions),
        sum(r.choice.family != "library" for r in regions),
        tuple(f"{e.subject}: {e.facts.get('error', '')}" for e in events if e.stage == "fallback"),
        (*nothing, *warnings_of(backend.records)),
    )


def bench(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    peers: Sequence[str] = (),
    rounds: int = 30,
    name: str = "",
    watch: Watcher | None = None,
    **options: Any,
) -> Bench:
    """Time eager, interfuse and each of `peers` ("inductor"), taking turns: medians in ms, peak bytes, rms errors.

    OptionError for a peer that is not known, ModelError where PyTorch itself cannot run the model.
    """
    check_peers(peers)
    if rounds < 1:
        raise OptionError(f"rounds must be 1 or more, not {rounds}.")
    with torch.no_grad():
        begun = begin(model, inputs, kwargs, options, watch)
        record = measure_model(
            model, begun.fast, begun.inputs, begun.kwargs, peers, rounds, name or model_name(model), watch
        )
    account = gather([record])
    return Bench(account.model, account.measures)


def check_peers(peers: Sequence[str]) -> None:
    """OptionError for a peer that is not known."""
    for peer in peers:
        if peer not in PEERS:
            raise OptionError(f"there is no peer {peer!r}; the peers are {', '.join(PEERS)}.")


def _leaves(result: Any) -> list[Any]:
    return tree_leaves(result.to_tuple() if hasattr(result, "to_tuple") else result)


def _described(value: Any) -> str:
    """float32[2, 16] on cpu; the type alone for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}] on {value.device}"
