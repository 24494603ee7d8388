"""Works that are alike share a kernel, whatever buffers they read; what differs in types, layouts or order does not."""

from __future__ import annotations

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
from interfuse.lower.target import GPU
from interfuse.lower.work import Work
from interfuse.plan import candidates
from interfuse.plan.alike import Likeness
from interfuse.plan.plan import KernelStep, Plan
from interfuse.plan.planner import plan
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
