"""Forming regions. In: captured functions, and a judge that likes every merge. Out: what is broken up stays smaller,
and plans hold no more than eager does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.record import Record
from interfuse.lower.target import CPU
from interfuse.passes.pipeline import PASSES
from interfuse.plan import planner
from interfuse.plan.flow import analyse
from interfuse.plan.memory import eager_peak, peak
from interfuse.plan.regions import Former
from tests.plan.made import PROFILE, captured


def _diamonds(x: torch.Tensor, count: int) -> torch.Tensor:
    """Values that two calls read each, which a third one joins."""
    for _ in range(count):
        x = torch.tanh(x) * torch.sin(x)
    return x


@pytest.mark.parametrize("count", (1, 2, 3, 6))
def test_what_is_broken_up_stays_in_parts(count: int) -> None:
    flow = analyse(captured(lambda x: _diamonds(x, 2 * count), torch.zeros(4, 8)))
    former = Former(flow, lambda _: True, lambda _: 1.0, lambda *_: None)
    groups = former.run()
    whole = frozenset(flow.needed)
    assert groups.ordered() == [whole]
    broken = [whole]
    while broken:
        calls = broken.pop()
        others = [g for g in groups.ordered() if g != calls]
        former.break_up(calls)
        assert all(g in groups.ordered() for g in others), "what is not broken up stays what it is"
        parts = [g for g in groups.ordered() if g <= calls]
        assert frozenset().union(*parts) == calls and all(len(g) < len(calls) for g in parts)
        broken += [g for g in parts if len(g) > 1]
    assert len(groups.ordered()) == len(whole)


def test_parts_join_nothing_from_outside() -> None:
    """A part may have become the one to read what another region gives; it is left to that region."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        u = torch.exp(x) * torch.tanh(x)
        v = torch.sin(y) * torch.cos(y) + u
        w = v * u
        return w - v

    flow = analyse(captured(f, torch.zeros(4, 8), torch.ones(4, 8)))
    outside, first, rest = (frozenset(range(k, k + 3)) for k in (0, 3, 6))

    def judge(calls: frozenset[int]) -> float | None:
        return None if calls & outside and calls - outside and (calls & first or len(calls) < 6) else 1.0

    former = Former(flow, lambda _: True, judge, lambda *_: None)
    groups = former.run()
    assert groups.ordered() == [outside, first | rest]
    former.break_up(first | rest)
    assert set(groups.ordered()) == {outside, first, rest}


def test_regions_that_hold_the_most_together_are_broken_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them alone is what passes eager's peak: another holds as much at another time."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        c = torch.cos(x)
        y = F.linear(x, w) * 0.3
        z = y - c.amax(1, keepdim=True)
        turned = (z.t().contiguous() * 0.5).t() + y
        one, two = z.chunk(2, 1)
        gated = torch.cat([torch.sigmoid(two) * one, one], 1)
        same = torch.cat([gated[:1], gated[1:]], 0)
        return turned / (same.norm(dim=1, keepdim=True) + 1) * gated.mean(0)

    def held() -> tuple[float, float]:
        graph = replace(captured(f, torch.zeros(4, 6), torch.zeros(6, 6)), device="cuda:0")
        for _, run in PASSES:
            graph = run(graph)  # the product is a sum there
        made = planner.plan(graph, CPU, PROFILE, Record())
        flow = analyse(made.graph)
        return peak([frozenset(r.calls) for r in made.regions], flow).bytes, eager_peak(flow)

    most, eager = held()
    assert most <= eager
    relief = planner._relief
    monkeypatch.setattr(planner, "_relief", lambda c, *a: relief([p for p in c if len(p) == 1], *a))
    most, eager = held()
    assert most > eager, "one by one they do not help"
