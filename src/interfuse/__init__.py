"""Interfuse: operator fusion for PyTorch. In: a model. Out: the same model in fewer kernels, and the ledger.

`compile(model)` gives a model that behaves as the original; `explain(model, inputs)` runs both and says what each fused
region saved, measured, with the reason for every decision. `show` prints any stage of the compile, `bench` times the
model beside eager, `bisect` names the region at fault where results are less accurate than they may be, `load` finds
the models that the command line takes, `tune_model` measures schedules and keeps the winners, `probe` measures the
devices that are here, `whatif` plans for GPUs that are not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interfuse.driver.api import compile, explain
    from interfuse.driver.bench import bench, once
    from interfuse.driver.bisect import bisect
    from interfuse.driver.load import load
    from interfuse.driver.options import Options
    from interfuse.driver.probe import probe
    from interfuse.driver.show import show
    from interfuse.driver.tune import tune_model
    from interfuse.driver.whatif import whatif
    from interfuse.report.ledger import Ledger

__version__ = "0.1.0"
__all__ = [
    "Ledger",
    "Options",
    "__version__",
    "bench",
    "bisect",
    "compile",
    "explain",
    "load",
    "once",
    "probe",
    "show",
    "tune_model",
    "whatif",
]

_HOMES = {
    "Ledger": "interfuse.report.ledger",
    "Options": "interfuse.driver.options",
    "bench": "interfuse.driver.bench",
    "bisect": "interfuse.driver.bisect",
    "compile": "interfuse.driver.api",
    "explain": "interfuse.driver.api",
    "load": "interfuse.driver.load",
    "once": "interfuse.driver.bench",
    "probe": "interfuse.driver.probe",
    "show": "interfuse.driver.show",
    "tune_model": "interfuse.driver.tune",
    "whatif": "interfuse.driver.whatif",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for: compile workers import this package and must stay free of
    torch.
    """
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'interfuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Every public name, so that completion finds those that are not imported yet."""
    return sorted({*globals(), *_HOMES})
