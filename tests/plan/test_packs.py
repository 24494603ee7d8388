"""Packs in plans: like independent regions become one launch; what depends, differs or costs memory stays apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from interfuse.base.record import Record
from interfuse.plan.flow import analyse
from interfuse.plan.memory import peak
from interfuse.plan.plan import PackStep, Plan
from interfuse.plan.printer import show
from tests.plan.made import PROFILE, captured, planned
from tests.plan.test_planner import check_order

XS = [torch.randn(8, 4 * k + 4) for k in range(6)]


def members(plan: Plan) -> list[int]:
    """How many members each pack of the plan has."""
    steps = [s for r in plan.regions for c in r.candidates for s in c.steps]
    return [len(s.members) for s in steps if isinstance(s, PackStep)]


def each(f: Callable[[torch.Tensor], torch.Tensor], xs: Sequence[torch.Tensor] = XS) -> Plan:
    plan, _ = planned(lambda *given: [f(x) for x in given], *xs)
    check_order(plan)
    return plan


def test_like_regions_run_as_one_launch() -> None:
    plan = each(lambda x: torch.relu(x + 1) * 2)
    (region,) = plan.regions
    assert members(plan) == [6] and region.name == "add+relu+mul x6"
    assert region.choice.launches == 1 and region.library.launches == 18
    assert region.choice.note == "packed 6 like regions" and region.reason.startswith("packed 6 like regions")
    assert region.choice.bytes == sum(2 * x.nbytes for x in XS)
    assert len(region.outputs) == len(region.inputs) == 6


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.softmax(x, 0),
        lambda x: (x * x).sum(-1).sqrt(),
        lambda x: x.to(torch.bfloat16),
        lambda x: torch.tanh(x.t().contiguous()),
        lambda x: x.sum(0) + 1,
    ],
)
def test_families_that_pack(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert members(each(f))[0] == 6


def test_equal_members_could_also_run_one_by_one() -> None:
    plan = each(lambda x: torch.relu(x + 1), [torch.randn(4, 4) for _ in range(5)])
    labels = [c.label for c in plan.regions[0].candidates]
    assert labels[0] == "packed: map" and "fused: map, one by one" in labels and labels[-1].startswith("library")


def test_one_region_is_no_pack() -> None:
    plan = each(lambda x: torch.relu(x + 1), XS[:1])
    assert members(plan) == [] and plan.regions[0].choice.note == ""


def test_what_depends_on_each_other_is_not_packed() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)

    def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            a = torch.tanh(torch.mm(a, b))
        return a

    plan, _ = planned(chain, a, b)
    check_order(plan)
    assert members(plan) == []


def test_two_chains_pack_step_by_step() -> None:
    given = [torch.randn(8, 8) for _ in range(3)]

    def chains(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(3):
            a, b = torch.sort(a * 2 + 1).values, torch.sort(b * 2 + 1).values
        return a, b

    plan, _ = planned(chains, *given)
    check_order(plan)
    assert members(plan) == [2, 2, 2]


def test_packs_that_would_wait_for_each_other_are_not_both_formed() -> None:
    """tanh of one feeds exp of the other and the other way round: only one of the two kinds can be packed."""

    def crossed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.sort(torch.tanh(a)).values  # tanh, then exp
        one = torch.exp(first)
        second = torch.sort(torch.exp(b)).values  # exp, then tanh
        return one, torch.tanh(second)

    plan, _ = planned(crossed, torch.randn(8, 8), torch.randn(8, 8))
    check_order(plan)
    assert members(plan) == [2]


def test_constants_that_differ_keep_regions_apart() -> None:
    plan, _ = planned(lambda a, b: (a * 2 + 1, b * 3 + 1), torch.randn(8), torch.randn(8))
    assert members(plan) == []


def test_empty_members_are_left_to_the_library() -> None:
    xs = [*XS, torch.randn(0, 4)]
    assert members(each(lambda x: torch.relu(x + 1), xs)) == [6]


def test_peak_memory_stays_within_eagers() -> None:
    """Each scratch of eager dies before the next is made: a pack of all would hold all of them at once."""
    xs = [torch.randn(4096) for _ in range(8)]

    def one_after_another(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.sort(torch.tanh(x) + 1).values.sum() for x in xs]

    graph = captured(one_after_another, *xs)
    flow = analyse(graph)
    eager = peak([frozenset((k,)) for k in flow.needed], flow).bytes
    plan, record = planned(one_after_another, *xs)
    check_order(plan)
    assert peak([frozenset(r.calls) for r in plan.regions], flow).bytes <= eager
    refused = [r["reason"] for e in record.of("region") for r in e.facts["rejected"]]
    assert any("as a pack" in why for why in refused)


def test_a_plan_prints_its_packs() -> None:
    text = show(each(lambda x: torch.relu(x + 1)), times=False)
    assert "pack pack_add_relu of 6 members" in text and "with n0 = 32" in text


def test_switched_off_by_name() -> None:
    from interfuse.lower.target import CPU
    from interfuse.plan.planner import plan

    graph = captured(lambda *xs: [torch.relu(x + 1) for x in xs], *XS)
    chosen = plan(graph, CPU, PROFILE, Record(), off=("add+relu",))
    assert [c.family for c in chosen.regions[0].candidates] == ["library"]


def test_a_pack_larger_than_the_caches_still_pays() -> None:
    xs = [torch.empty(1 << 18, device="cpu") for _ in range(30)]
    assert members(each(lambda x: torch.relu(x + 1), xs)) == [30]
