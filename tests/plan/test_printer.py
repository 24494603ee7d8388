"""Printed plans. In: a plan with every kind of step. Out: the golden text; times only where they are asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from interfuse.plan.plan import Plan
from interfuse.plan.printer import show
from tests import golden
from tests.plan.made import planned


def sample() -> Plan:
    """A kernel, a provider, a library call that cannot be lowered, and a view that nobody runs."""
    x, residual, weight = torch.ones(8, 32), torch.ones(8, 32), torch.ones(16, 32)

    def f() -> tuple[torch.Tensor, torch.Tensor]:
        h = F.layer_norm(x + residual, (32,))
        return h, torch.sort(F.gelu(F.linear(h, weight))).values

    return planned(f)[0]


def test_a_plan(request: pytest.FixtureRequest) -> None:
    golden.check(request, show(sample(), times=False))


def test_times_and_reasons_are_shown_where_asked_for() -> None:
    text = show(sample())
    assert "predicted " in text and " us +- 60%" in text and "because: no lowering for aten.sort.default yet" in text
    assert " us" not in show(sample(), times=False)


def test_the_choice_is_marked() -> None:
    plan = sample()
    last = len(plan.regions[0].candidates) - 1
    moved = replace(plan, regions=(replace(plan.regions[0], chosen=last), *plan.regions[1:]))
    marked = [line.strip() for line in show(moved).splitlines() if line.strip().startswith("* ")]
    assert marked[0].startswith(f"* {plan.regions[0].candidates[last].label}:")


def test_where_a_kernel_begins_to_read_is_said() -> None:
    x = torch.ones(4, 8)
    assert "from 16) ->" in show(planned(lambda: torch.tanh(x[2]) * 2)[0])
