"""Plans: what joins, what stays apart and why, what is dropped, and that every plan covers and orders its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.record import Record
from interfuse.device.profile import DeviceProfile
from interfuse.device.table import find
from interfuse.lower.target import CPU, GPU
from interfuse.passes.pipeline import PASSES
from interfuse.plan.flow import analyse
from interfuse.plan.plan import KernelStep, LibraryStep, Plan, ProviderStep
from interfuse.plan.planner import library_plan, plan
from tests.plan.made import PROFILE, captured, planned

X, Y, W, V = torch.randn(16, 32), torch.randn(16, 32), torch.randn(48, 32), torch.randn(32)
B = torch.randn(48)
IMAGE, C, SPREAD = torch.randn(2, 4, 5, 6), torch.randn(4), torch.rand(4)


def blocks_of(y: torch.Tensor) -> torch.Tensor:
    """Each block of eight over its largest; `abs` goes to the kernel of the blocks, not to the one before."""
    parts = y.view(16, 4, 8)
    return parts / parts.abs().amax(-1, keepdim=True)


def test_kernels_of_parts_overlap_on_a_gpu() -> None:
    graph = captured(lambda x: torch.softmax(x, -1), torch.randn(2, 131072))
    for target, overlap in ((GPU, True), (CPU, False)):
        (region,) = plan(graph, target, find("H100"), Record()).regions
        steps = next(c.steps for c in region.candidates if c.label.endswith("in parts"))
        ways = [(s.kernel.follows, s.kernel.leads) for s in steps if isinstance(s, KernelStep)]
        last = len(ways) - 1
        awaited = [set(s.kernel.awaits) for s in steps if isinstance(s, KernelStep)]
        assert not awaited[0] and all(overlap == bool(a) for a in awaited[1:])
        assert last > 0 and ways == [(overlap and k > 0, overlap and k < last) for k in range(last + 1)]


@pytest.mark.parametrize(("rows", "label"), [(2048, "fused: row, in parts"), (32768, "fused: row, streamed")])
def test_few_rows_that_lie_across_are_predicted_faster_in_two_kernels(rows: int, label: str) -> None:
    x, w = torch.randn(1, 4096, dtype=torch.float16).expand(rows, 4096), torch.randn(4096, dtype=torch.float16)
    graph = captured(lambda x, w: F.layer_norm(x, (4096,), w, w).t().contiguous(), x.clone(), w)
    (region,) = plan(graph, GPU, find("H200"), Record()).regions
    assert region.choice.label == label


def test_teams_share_long_rows_on_nvidia_gpus_alone() -> None:
    graph = captured(lambda x: torch.softmax(x, -1), torch.randn(2, 131072))
    for device, shared in (("H100", True), ("MI300X", False)):
        (region,) = plan(graph, GPU, find(device), Record()).regions
        found = [c for c in region.candidates if c.label == "fused: row, in teams"]
        assert len(found) == shared
        assert not shared or (found[0].launches, found[0].bytes) == (1, 2 * 4 * 2 * 131072), "each element once"


def test_rows_that_lie_across_may_go_by_way_of_a_ring() -> None:
    x, w = torch.randn(1, 4096, dtype=torch.float16).expand(32768, 4096), torch.randn(4096, dtype=torch.float16)
    graph = captured(lambda x, w: F.layer_norm(x, (4096,), w, w).t().contiguous(), x.clone(), w)
    for device in ("H200", "A100", "MI300X"):
        profile = find(device)
        (region,) = plan(graph, replace(GPU, ring=profile.ring), profile, Record()).regions
        found = [c for c in region.candidates if c.label == "fused: row, in a ring"]
        assert len(found) == (device == "H200")
        assert not found or (region.choice is found[0] and found[0].launches == 1)


def test_what_is_written_in_place_waits_for_nobody() -> None:
    graph = captured(lambda x: x.copy_(torch.softmax(x, -1)), torch.randn(2, 131072))
    for region in plan(graph, GPU, find("H100"), Record()).regions:
        assert not any(
            "teams" in c.label and any(s.over for s in c.steps if isinstance(s, KernelStep)) for c in region.candidates
        )


def names(plan: Plan) -> list[str]:
    return [r.name for r in plan.regions]


def check_order(plan: Plan) -> None:
    """Every region reads only what inputs or earlier regions give, and no call is in two regions."""
    flow = analyse(plan.graph)
    given = set(flow.inputs)
    seen: set[int] = set()
    for region in plan.regions:
        assert not seen & set(region.calls)
        seen |= set(region.calls)
        assert set(region.inputs) <= given, f"{region.name} reads what nobody gave yet"
        given |= set(region.outputs)
    assert seen == set(flow.needed)
    for kinds in (("random",), ("mutation", "collective")):
        effects = [k for r in plan.regions for k in r.calls if plan.graph.calls[k].effect in kinds]
        assert effects == sorted(effects), "calls with an effect changed places"


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda: F.gelu(X + V) + Y, ["add+gelu+add"]),
        (lambda: F.layer_norm(X + Y, (32,), V, V), ["add+layer_norm"]),
        (lambda: (F.layer_norm(X + Y, (32,), V, V), X + Y), ["add+layer_norm"]),
        (lambda: torch.softmax(X * 0.125 + V, -1), ["mul+add+softmax"]),
        (lambda: torch.var_mean(X, -1), ["var_mean"]),
        (lambda: (X.mean(-1), X.amax(-1)), ["mean+amax"]),
        (lambda: (X * 2).max(-1), ["mul+max"]),
        (lambda: torch.softmax(X, -1).argmax(-1), ["softmax+argmax"]),
        (lambda: torch.sort(torch.tanh(X) * 2).values + 1, ["tanh+mul", "sort", "add"]),
        (lambda: F.gelu(F.linear(X, W)), ["linear+gelu"]),
        (lambda: F.gelu(F.linear(X, W)) * 2, ["linear", "gelu+mul"]),
        (lambda: torch.softmax(torch.softmax(X, -1).t().contiguous(), -1), ["softmax+clone", "softmax"]),
        (lambda: blocks_of(F.rms_norm(X, (32,), V)), ["pow+mean+add+rsqrt+mul", "abs+amax+div"]),
        (lambda: X.sum(0) + 1, ["sum+add"]),
        (lambda: torch.cumsum(X * 2, -1) + Y, ["mul+cumsum+add"]),
        (lambda: torch.cummax(X * 2, 0), ["mul+cummax"]),
        (lambda: torch.cumsum(torch.softmax(X, 0), 0), ["softmax+cumsum"]),
        (lambda: torch.softmax(X * 2, 0), ["mul+softmax"]),
        (lambda: (X.mean(0), X.var(0), X.sum(1)), ["mean+var", "sum"]),
        (lambda: F.silu(F.group_norm(IMAGE, 2, C, C)), ["native_group_norm+silu"]),
        (
            lambda: F.relu(F.batch_norm(IMAGE, C, SPREAD, C, C)) + IMAGE,
            ["native_batch_norm_legit_no_training+relu+add"],
        ),
    ],
    ids=range(21),
)
def test_what_joins(f: Callable[[], Any], expected: list[str]) -> None:
    plan, _ = planned(f)
    assert names(plan) == expected
    check_order(plan)


def test_a_path_through_another_region_keeps_two_apart() -> None:
    def f() -> Any:
        a = torch.tanh(X)
        return a + torch.sort(a).values

    plan, record = planned(f)
    assert names(plan) == ["tanh", "sort", "add"]
    refused = [r for e in record.of("region") for r in e.facts["rejected"]]
    assert any("runs elsewhere" in r["reason"] for r in refused)


def test_random_calls_keep_their_order() -> None:
    def f() -> Any:
        x = torch.rand(16, 32) + torch.rand(16, 32)
        later, earlier = (X + 1).uniform_(), torch.empty(3).exponential_()
        return x + X, later, earlier, torch.rand(3) + (X + 1).sum()

    plan, _ = planned(f)
    check_order(plan)
    drawn = [plan.graph.calls[k].target.split(".")[1] for r in plan.regions for k in r.calls if r.reason == "random"]
    assert drawn == ["rand", "rand", "uniform", "exponential", "rand"]


def test_every_refusal_has_a_reason() -> None:
    _, record = planned(lambda: X.sum(0) + torch.softmax(X, -1).sum(0))
    assert all(r["reason"] for e in record.of("region") for r in e.facts["rejected"])
    assert all(e.facts["reason"] for e in record.of("region"))


def test_every_region_has_its_library_path() -> None:
    plan, _ = planned(lambda: F.layer_norm(F.gelu(F.linear(X, W)), (48,)) + 1)
    for region in plan.regions:
        steps = [s.call for s in region.library.steps if isinstance(s, LibraryStep)]
        assert set(region.calls) <= set(steps)
        assert len(steps) == len(region.library.steps)


def test_a_product_and_its_activation_have_an_epilogue_and_a_chain() -> None:
    plan, _ = planned(lambda: F.gelu(F.linear(X, W, B), approximate="tanh"))
    (region,) = plan.regions
    kinds = [tuple(type(s) for s in c.steps) for c in region.candidates]
    assert (ProviderStep,) in kinds
    assert (ProviderStep, KernelStep) in kinds
    assert (LibraryStep, KernelStep) in kinds
    epilogues = [dict(s.attrs)["activation"] for c in region.candidates for s in c.steps if isinstance(s, ProviderStep)]
    assert "gelu_tanh" in epilogues


def test_a_provider_that_is_not_there_is_not_a_candidate() -> None:
    plan, _ = planned(lambda: F.linear(X, W), unavailable={"onednn.linear": "not built"})
    assert [c.family for c in plan.regions[0].candidates] == ["library"]


def test_tile_registers_are_tried_for_f32_alone() -> None:
    def labels(x: torch.Tensor, w: torch.Tensor, profile: DeviceProfile, *gone: str) -> list[str]:
        made = plan(
            captured(lambda: F.relu(F.linear(x, w))), CPU, profile, Record(), unavailable=dict.fromkeys(gone, "")
        )
        return [c.label for r in made.regions for c in r.candidates]

    split = replace(PROFILE, flops=(*PROFILE.flops, ("split", 2 * PROFILE.flops_of("f32"))))
    ours = {"interfuse.linear with relu epilogue", "interfuse.linear, then fused: map"}
    assert ours < set(labels(X, W, split))
    assert ours.isdisjoint(labels(X, W, split, "interfuse.linear"))
    assert ours.isdisjoint(labels(X, W, PROFILE))
    assert ours.isdisjoint(labels(X.bfloat16(), W.bfloat16(), split))


def test_without_a_target_only_the_library_runs() -> None:
    plan, record = planned(lambda: torch.tanh(X) + 1, target=None)
    assert {r.choice.family for r in plan.regions} == {"library"}
    assert "no kernels are generated" in record.of("region")[0].facts["reason"]
    check_order(plan)


def test_equal_layers_share_one_kernel() -> None:
    def f() -> Any:
        x = X
        for _ in range(3):
            x = F.layer_norm(torch.sort(x).values + Y, (32,))
        return x

    plan, _ = planned(f)
    kernels = {s.kernel.name for r in plan.regions for c in r.candidates for s in c.steps if isinstance(s, KernelStep)}
    assert len([n for n in names(plan) if n == "add+layer_norm"]) == 3
    assert len(kernels) == 1


def test_views_and_unread_work_are_dropped_with_a_reason() -> None:
    def f() -> Any:
        torch.exp(X).sum(0)
        return X.view(4, 4, 32).transpose(0, 1) + 1

    plan, _ = planned(f)
    assert names(plan) == ["add"]
    assert plan.dropped
    assert all(why for _, why in plan.dropped)


def test_narrow_buffers_stand_for_their_wide_expressions() -> None:
    h = X.half()
    plan, _ = planned(lambda: torch.sort(torch.tanh(h) * 2).values * torch.sigmoid(torch.tanh(h)))
    check_order(plan)


def test_constants_that_a_library_call_reads_are_made_for_it() -> None:
    plan, _ = planned(lambda: torch.index_select(X, 0, torch.arange(3)) * 2)
    check_order(plan)
    plan = library_plan(captured(lambda: torch.index_select(X, 0, torch.arange(3)) * 2), PROFILE)
    assert all(c.family == "library" for r in plan.regions for c in r.candidates)


def test_switched_off_by_part_of_a_name() -> None:
    plan, _ = planned(lambda: torch.softmax(X + Y, -1), off=("soft",))
    assert [r.reason for r in plan.regions] == ["switched off by name"]


def ladder(a: torch.Tensor, b: torch.Tensor, steps: int) -> torch.Tensor:
    xs = [a, b]
    for _ in range(steps):
        xs += [xs[-1] + xs[-2], torch.tanh(xs[-1]) * xs[-2]]
    return xs[-1]


def test_planning_is_linear_in_depth() -> None:
    plan, _ = planned(lambda a, b: ladder(a, b, 13), V, V)
    assert len(plan.regions) == 1
    kernel = plan.regions[0].choice.steps[0]
    assert isinstance(kernel, KernelStep)
    assert len(kernel.kernel.body) < 80, "shared values are computed once"


@pytest.mark.parametrize("steps", (30, 41, 52, 70))
def test_a_full_region_ends_where_least_is_handed_on(steps: int) -> None:
    """Between two steps that are two values; in the middle of one it is three, more than eager ever holds."""
    plan, _ = planned(lambda a, b: ladder(a, b, steps), V, V)
    assert len(plan.regions) == -(-3 * steps // 63)
    assert [len(r.outputs) for r in plan.regions] == [2] * (len(plan.regions) - 1) + [1]


@pytest.mark.parametrize(("steps", "rows"), ((1, 2), (4, 3)))
def test_a_step_of_a_recurrent_cell_is_one_kernel_on_a_gpu(steps: int, rows: int) -> None:
    """Its gates are slices of a sum of two products; all that reads them is one group only once the last is in it."""

    def unroll(x: torch.Tensor, into: torch.Tensor, back: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        for step in x.unbind(0):
            keep, new, candidate, out = (step @ into + h @ back).chunk(4, -1)
            c = torch.sigmoid(keep) * c + torch.sigmoid(new) * torch.tanh(candidate)
            h = torch.sigmoid(out) * torch.tanh(c)
        return h, c

    shapes = (steps, rows, 32), (32, 128), (32, 128), (rows, 32), (rows, 32)
    graph = replace(captured(unroll, *map(torch.zeros, shapes)), device="cuda:0")
    for _, run in PASSES:
        graph = run(graph)
    regions = plan(graph, GPU, find("H200"), Record()).regions
    assert [r.choice.label for r in regions] == ["fused: row, streamed"] * steps
    check_order(plan(graph, GPU, find("H200"), Record()))
