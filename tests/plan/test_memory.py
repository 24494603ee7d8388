"""Peak memory of plans: counted as buffers live, and never above that of eager's own order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.record import Record
from interfuse.lower.target import CPU
from interfuse.plan.flow import analyse
from interfuse.plan.memory import eager_peak, peak, suspects
from interfuse.plan.planner import plan
from tests.plan.made import PROFILE, captured, planned

A, B, C, X = torch.randn(256, 8), torch.randn(256, 8), torch.randn(8, 256), torch.randn(64, 128)
W = torch.randn(128, 128)


def two_products() -> Any:
    return (A @ C).sum(-1) + (B @ C).sum(-1)


def test_live_buffers_are_counted_from_maker_to_last_reader() -> None:
    graph = captured(lambda: torch.sort(torch.sort(X).values).values.sum())
    flow = analyse(graph)
    one_by_one = peak([frozenset((k,)) for k in flow.needed], flow)
    values, indices = X.numel() * 4, X.numel() * 8
    assert one_by_one.bytes == 2 * values + indices, "the first sort's values, the second's values and indices"


def test_a_merge_that_would_hold_two_products_is_undone() -> None:
    plan, record = planned(two_products)
    flow = analyse(plan.graph)
    eager = peak([frozenset((k,)) for k in flow.needed], flow)
    assert peak([frozenset(r.calls) for r in plan.regions], flow).bytes <= eager.bytes
    assert [r.name for r in plan.regions] == ["linear", "sum", "linear", "sum+add"]
    assert any("held at once" in r["reason"] for e in record.of("region") for r in e.facts["rejected"])


@pytest.mark.parametrize(("steps", "most"), [(26, 8), (41, 10), (52, 10)])
def test_a_region_that_holds_too_much_is_halved(steps: int, most: int) -> None:
    """Of a ladder's last steps the forward pass keeps everything, so the region that makes it all passes eager's peak
    by one value: where it ends, steps run one by one, before that in regions twice as large each.
    """

    def ladder(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            low, high = low + high, torch.tanh(high) * low
        return high

    graph = captured(ladder, torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True), gradients=True)
    regions = plan(graph, CPU, PROFILE, Record()).regions
    flow = analyse(graph)
    assert len(graph.calls) >= 3 * steps - 1
    assert len(regions) <= most
    assert peak([frozenset(r.calls) for r in regions], flow).bytes <= eager_peak(flow)


def test_a_product_and_its_activation_stay_together_where_memory_is_short() -> None:
    def layers() -> Any:
        x = X
        for _ in range(3):
            x = F.relu(F.linear(x, W))
        return x

    plan, _ = planned(layers)
    flow = analyse(plan.graph)
    assert [r.name for r in plan.regions] == ["linear+relu"] * 3
    assert peak([frozenset(r.calls) for r in plan.regions], flow).bytes == 2 * X.numel() * 4


def test_the_suspects_are_the_merged_regions_that_make_or_read_what_is_held() -> None:
    flow = analyse(captured(two_products))
    first, sum1, second, sum2, add = flow.needed
    merged = frozenset((sum1, sum2, add))
    order = [frozenset((first,)), frozenset((second,)), merged]
    found = peak(order, flow)
    assert found.bytes > peak([frozenset((k,)) for k in flow.needed], flow).bytes
    assert suspects(found, order, flow) == [merged]
    assert suspects(found, [frozenset((k,)) for k in flow.needed], flow) == []


@pytest.mark.parametrize(
    "f",
    [
        lambda: F.layer_norm(F.gelu(X) + X, (128,)),
        lambda: torch.softmax(torch.sort(X * 2).values + X, -1),
        lambda: (X.exp() + X.sin(), X.exp() * X.cos()),
        two_products,
    ],
    ids=range(4),
)
def test_no_plan_needs_more_than_eager(f: Callable[[], Any]) -> None:
    plan, _ = planned(f)
    flow = analyse(plan.graph)
    eager = peak([frozenset((k,)) for k in flow.needed], flow).bytes
    assert peak([frozenset(r.calls) for r in plan.regions], flow).bytes <= eager
