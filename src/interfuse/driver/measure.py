"""Measuring a model as a whole. In: the model, its compiled twin, inputs, peers. Out: a record with one event a
contender.

All contenders run in this process on the same inputs, interleaved, after warm-up. Errors are against a float64 run of
the model; where it has none (a half-only operator, say) the error stays unmeasured. A model that draws random numbers
(dropout in training) has the same seed each time; who draws other numbers from it than the float64 run is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from interfuse.base.errors import ModelError, said
from interfuse.base.record import Record
from interfuse.driver.compiler import Watcher
from interfuse.driver.exact import exact_outputs, tensors_of
from interfuse.run.memory import peak_bytes
from interfuse.tune.bench import compare

SEED = 20

PEERS: Mapping[str, Mapping[str, Any]] = {"inductor": {"backend": "inductor", "dynamic": False}}
"""Other compilers by name, with their arguments of torch.compile."""


def measure_model(
    model: Callable[..., Any],
    fast: Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    peers: Sequence[str],
    rounds: int,
    name: str,
    watch: Watcher | None = None,
) -> Record:
    """A record of "measure" events for eager, interfuse and each peer: milliseconds, peak bytes, error, launches.

    On a GPU each is timed as a CUDA graph and as calls, and the quicker is its time: small models wait for the
    processor as calls, and a model may do more work in a graph (transformers cannot look there whether a mask hides
    anything).
    """
    record = named(model, inputs, kwargs, name)
    device = model_device(model, inputs, kwargs)
    contenders: dict[str, Callable[..., Any]] = {"eager": model, "interfuse": fast}
    for peer in peers:
        _tell(watch, f"compiling with {peer}")
        contenders[peer] = torch.compile(model, **PEERS[peer])
    calls = {label: _bound(f, inputs, kwargs) for label, f in contenders.items()}
    _tell(watch, "float64 run")
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        draws = _draws(calls["eager"], device)
        exact = _seeded(partial(exact_outputs, model, inputs, kwargs), SEED)
        errors = {label: _error(_seeded(call, SEED), exact) for label, call in calls.items()}
        others = {label: _error(_seeded(call, SEED + 1), exact) for label, call in calls.items() if draws}
    _tell(watch, "timing")
    told = None if watch is None else partial(watch, "timing")
    timings = compare(calls, device=device, rounds=rounds, told=told)
    if device.type == "cuda":
        called = compare(calls, device=device, rounds=rounds, told=told, replay=False)
        timings = {label: min(t, called[label], key=lambda t: t.median) for label, t in timings.items()}
    _tell(watch, "peak memory")
    for label, call in calls.items():
        t = timings[label]
        record.add(
            "measure",
            label,
            median_ms=t.median * 1e3,
            low_ms=t.low * 1e3,
            high_ms=t.high * 1e3,
            runs=t.runs,
            waited=t.waited,
            launches=launches(call, device),
            peak_bytes=peak_bytes(call),
            error_rms=None if (random := _unlike(errors[label], others.get(label))) else errors[label],
            random=random,
        )
    return record


def named(model: Callable[..., Any], inputs: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Record:
    """A record of what the model is: its name, device, element type, and the shape of its first input."""
    record, device = Record(), model_device(model, inputs, kwargs)
    record.add(
        "model",
        name,
        device=device.type,
        device_name=_device_name(device),
        dtype=_dtype(model, inputs),
        torch=torch.__version__,
        batch=_batch(inputs, kwargs),
    )
    return record


def _seeded(call: Callable[[], Any], seed: int) -> Any:
    torch.manual_seed(seed)
    return call()


def _unlike(error: float | None, other: float | None) -> bool:
    """True where an error with the float64 run's seed is about as large as with another: the numbers differ."""
    return error is not None and other is not None and not error < other / 4


def _draws(call: Callable[[], Any], device: torch.device) -> bool:
    """True where the call takes numbers from PyTorch's generators."""

    def states() -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    before = states()
    call()
    return not all(map(torch.equal, before, states()))


def _tell(watch: Watcher | None, what: str) -> None:
    if watch is not None:
        watch(what)


def _bound(f: Callable[..., Any], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: f(*inputs, **kwargs)


def _parameters(model: Any) -> list[torch.Tensor]:
    return list(model.parameters()) if isinstance(model, torch.nn.Module) else []


def arguments(inputs: Any) -> tuple[Any, ...]:
    """What a model is called with: one tensor alone, or each of several inputs."""
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def uncompiled(model: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """What the model gives uncompiled. ModelError with its own error, which compiling would bury in PyTorch's."""
    try:
        return model(*inputs, **(kwargs or {}))
    except Exception as error:  # the user's code: anything may come out of it
        raise ModelError(
            f"PyTorch cannot run the model on these inputs: it raised {said(error)}; call it uncompiled to see where."
        ) from error


def model_name(model: Callable[..., Any]) -> str:
    """What a model or function is called."""
    return getattr(model, "__name__", type(model).__name__)


def model_device(model: Any, inputs: Any, kwargs: Mapping[str, Any]) -> torch.device:
    """The device of the model's tensors; the first that is not the CPU."""
    found = tensors_of((inputs, dict(kwargs), _parameters(model)))
    return next((t.device for t in found if t.device.type != "cpu"), torch.device("cpu"))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _dtype(model: Any, inputs: Any) -> str:
    floats = [t.dtype for t in (*_parameters(model), *tensors_of(inputs)) if t.is_floating_point()]
    return str(floats[0]).removeprefix("torch.") if floats else ""


def _batch(inputs: Any, kwargs: Any) -> str:
    found = tensors_of((inputs, dict(kwargs)))
    return " x ".join(map(str, found[0].shape)) if found else ""


def _error(outputs: Any, exact: list[torch.Tensor] | None) -> float | None:
    """Root mean square distance of the floating outputs from the exact ones, over the root mean square of these."""
    got = tensors_of(outputs)
    if exact is None or len(got) != len(exact):
        return None
    pairs = [
        (g.detach().double(), e.double())
        for g, e in zip(got, exact, strict=True)
        if g.is_floating_point() and g.shape == e.shape
    ]
    distance = sum((g - e).square().sum().item() for g, e in pairs)
    size = sum(e.square().sum().item() for _, e in pairs)
    return (distance / size) ** 0.5 if size else None


def launches(call: Callable[[], Any], device: torch.device) -> int | None:
    """Kernels that one call launches, from the profiler; None on CPU, where nothing is launched."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize()
    kernels = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
    return len([e for e in kernels if not e.name.startswith(("Memcpy", "Memset"))])
