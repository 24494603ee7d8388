"""Reductions in parts write each value once. In: columns of one element. Out: steps whose outputs differ."""

from __future__ import annotations

import torch

from interfuse.plan.plan import KernelStep
from tests.plan.made import planned


def test_no_step_writes_a_value_twice() -> None:
    def f(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * (g > 0)
        left = (y - y.sum(-1, keepdim=True)).sum((0,))
        return y, x.mean((0,)), y.sum((0,)), y.amax(-1), left

    plan, _ = planned(f, torch.ones(40, 1), torch.ones(40, 1))
    steps = [s for r in plan.regions for c in r.candidates for s in c.steps if isinstance(s, KernelStep)]
    assert steps
    assert all(len(set(s.outputs)) == len(s.outputs) for s in steps)
