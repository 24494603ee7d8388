"""A function with the kernel that a test is about. In: a label, a function, inputs. Out: the compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.plan import planner


def compiled_as(label: str, f: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    """The function as one region that runs as `label`, whatever is predicted of several kernels that do the same."""
    backend = Backend(read(None, {"race": False}))
    run = torch.compile(f, backend=backend, dynamic=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "in_parts", lambda calls, context: ())
        run(*inputs)
    assert not [e.facts for r in backend.records for e in r.of("fallback")]
    chosen = [r.choice.label for c in backend.compiled if c.plan for r in c.plan.regions]
    assert chosen == [label], chosen
    return run
