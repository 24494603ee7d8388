"""The first call of a model. In: a model, its inputs, options. Out: it compiled and called, and what compiled it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.driver.backend import Backend
from interfuse.driver.compiler import Watcher
from interfuse.driver.device import Device
from interfuse.driver.measure import arguments, uncompiled
from interfuse.driver.options import read


@dataclass(frozen=True)
class Begun:
    """A compiled model (`fast`), what it is called with, the result of its first call and the seconds that took."""

    fast: Callable[..., Any]
    backend: Backend
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    seconds: float


def begin(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    watch: Watcher | None = None,
    stop: str = "",
    absent: Device | None = None,
) -> Begun:
    """Run the model uncompiled, then compiled afresh for these inputs; `stop` names the last stage to run,
    `absent` a device to plan for instead of the model's own.

    Gradients are on or off as the caller has them. ModelError where PyTorch itself cannot run the model, OptionError
    for a bad option and where option `off` names no region.
    """
    torch._dynamo.reset()
    given, named = arguments(inputs), dict(kwargs or {})
    backend = Backend(read(None, options), watch, stop=stop, absent=absent)
    uncompiled(model, given, named)
    fast = torch.compile(model, backend=backend, dynamic=False)
    began = time.perf_counter()
    result = fast(*given, **named)
    seconds = time.perf_counter() - began
    backend.check_off()
    return Begun(fast, backend, given, named, result, seconds)
