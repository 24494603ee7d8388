"""Works that are alike share a kernel, whatever buffers they read; what differs in types, layouts or order does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from interfuse.base.record import Record
from interfuse.device.table import find
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, F64, DType
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower import families
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from interfuse.passes.pipeline import PASSES
from interfuse.plan import candidates
from interfuse.plan.alike import Likeness
from interfuse.plan.plan import KernelStep, Plan
from interfuse.plan.planner import plan
from interfuse.tune.trial import region_key
from tests.plan.made import captured


def _work(names: str, dtype: DType = F32, strides: tuple[int, int] = (8, 1), swapped: bool = False) -> Work:
    x, y = (b.placeholder(n, dtype, (4, 8)) for n in names)
    out = b.apply("sub", y, x) if swapped else b.apply("sub", x, b.apply("exp", y))
    layouts = {x: contiguous((4, 8)), y: Layout(strides), out: contiguous((4, 8))}
    return Work((out,), frozenset((x, y)), layouts)


def test_other_buffers_are_alike_and_come_in_the_same_order() -> None:
    like = Likeness()
    (one, first), (other, second) = like.of(_work("ab")), like.of(_work("dc"))
    assert one == other and [n.attr("name") for n in first] == ["a", "b"]
    assert [n.attr("name") for n in second] == ["d", "c"]


@pytest.mark.parametrize(
    "other", (_work("ab", F64), _work("ab", strides=(1, 4)), _work("ab", swapped=True), _work("aa")), ids=range(4)
)
def test_what_makes_another_kernel_is_not_alike(other: Work) -> None:
    like = Likeness()
    assert like.of(_work("ab"))[0] != like.of(other)[0]


def _unrolled(steps: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, int]:
    """The plan of a recurrence, and how many works were lowered for it."""
    found: list[Work] = []

    def counted(name: str, work: Work, *rest: object, **more: object) -> tuple[Kernel, tuple[Node, ...]]:
        found.append(work)
        return families.lower(name, work, *rest, **more)  # type: ignore[arg-type]

    def unroll(x: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        for step in x.unbind(0):
            a, c = (step @ weight + hidden @ weight).chunk(2, 1)
            hidden = torch.tanh(a) * torch.sigmoid(c)
        return hidden

    monkeypatch.setattr(candidates, "lower", counted)
    graph = captured(unroll, torch.randn(steps, 3, 32), torch.randn(32, 64), torch.randn(3, 32))
    return plan(graph, GPU, find("H100"), Record()), len(found)


def test_steps_of_a_loop_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = _unrolled(4, monkeypatch), _unrolled(12, monkeypatch)
    assert many[1] == few[1]
    assert {r.name for r in many[0].regions} == {"linear", "add+tanh+sigmoid+mul"}, "what all of it reads goes to it"
    steps = [s for r in many[0].regions for s in r.choice.steps if isinstance(s, KernelStep)]
    assert len(steps) == 12 and len({s.kernel.name for s in steps}) == 1
    assert len({s.inputs for s in steps}) == 12 and len({s.outputs for s in steps}) == 12


@pytest.mark.parametrize("way", ("x[t]", "x[:, t]", "turned", "pairs"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
@pytest.mark.parametrize("target", (CPU, GPU), ids=("cpu", "gpu"))
def test_steps_that_read_other_parts_of_a_buffer_share_a_kernel(
    target: Target, dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unrolled(steps: int) -> tuple[Plan, int, set[str]]:
        lowered: list[Work] = []

        def counted(name: str, work: Work, *rest: object, **more: object) -> tuple[Kernel, tuple[Node, ...]]:
            lowered.append(work)
            return families.lower(name, work, *rest, **more)  # type: ignore[arg-type]

        def unroll(x: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            x = x.transpose(0, 1) if way == "turned" else x
            for t in range(1, steps + 1):
                step = x[:, t] if way == "x[:, t]" else x[t - 1] * x[t + 1] if way == "pairs" else x[t]
                hidden = torch.tanh(step + hidden @ weight)
            return hidden

        first = (4, steps + 2, 32) if way in ("x[:, t]", "turned") else (steps + 2, 4, 32)
        monkeypatch.setattr(candidates, "lower", counted)
        weight, hidden = torch.randn(32, 32, dtype=dtype), torch.randn(4, 32, dtype=dtype)
        graph = captured(unroll, torch.randn(*first, dtype=dtype), weight, hidden)
        if target is GPU:
            graph = replace(graph, device="cuda:0")
            for _, run in PASSES:
                graph = run(graph)
        found = plan(graph, target, find("H200" if target is GPU else "CPU avx512"), Record())
        keys = {region_key(r, graph, "") for r in found.regions}
        return found, len(lowered), keys

    few, many = unrolled(2), unrolled(16)
    names = {s.kernel.name for r in many[0].regions for c in r.candidates for s in c.steps if isinstance(s, KernelStep)}
    assert many[1] == few[1] and len(names) == 1
    assert len(many[2]) == len(few[2]), "what is raced"
    skipped = {s.skipped for r in many[0].regions for s in r.candidates[0].steps if isinstance(s, KernelStep)}
    assert len(skipped) == 16
