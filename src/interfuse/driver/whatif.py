"""Plans for GPUs that are not here. In: a model, its inputs, names of GPUs. Out: a WhatIf: plans and predicted times.

The model runs where it is, once a GPU, so that PyTorch captures it; each graph is planned for the GPU as if it lay
there, and every kernel is compiled for it, which tells registers and spills. Nothing is measured: times are the cost
model's, with its error bars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.base.errors import ModelError, OptionError
from interfuse.driver.backend import DISABLED
from interfuse.driver.begin import begin
from interfuse.driver.compiler import Watcher, about
from interfuse.driver.device import absent
from interfuse.driver.measure import model_name
from interfuse.report.gather import gather
from interfuse.report.whatif import Outlook, WhatIf


def whatif(
    model: Callable[..., Any],
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    gpus: Sequence[str],
    name: str = "",
    watch: Watcher | None = None,
    **options: Any,
) -> WhatIf:
    """What Interfuse would run on each of `gpus` (names of the device table, in any spelling), fastest first.

    OptionError for a GPU that the table does not have and where none is given, ModelError where PyTorch itself cannot
    run the model or captures no graph of it, CompilerMissingError without Triton.
    """
    devices = {d.profile.name: d for d in map(absent, gpus)}
    if not devices:
        raise OptionError("no GPU is given: name one or more, as in H100,B200.")
    outlooks = []
    for gpu, device in devices.items():
        told = about(gpu, watch)
        with torch.no_grad():
            backend = begin(model, inputs, kwargs, {**options, "race": False}, told, "build", device).backend
        if backend.options.knobs().disable:
            raise OptionError(DISABLED)
        if not backend.compiled:
            raise ModelError("PyTorch captured no graph of this model: there is nothing to plan.")
        outlooks.append(Outlook(gpu, gather(backend.records)))
    outlooks.sort(key=lambda o: o.ours.us)
    return WhatIf(name or model_name(model), tuple(outlooks))
