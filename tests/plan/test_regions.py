"""Forming regions. In: captured functions, and a judge that likes every merge. Out: what is broken up stays smaller."""

from __future__ import annotations

import pytest
import torch

from interfuse.plan.flow import analyse
from interfuse.plan.regions import Former
from tests.plan.made import captured


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
