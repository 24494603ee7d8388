"""Roundings stay where something discrete can see them, and go where nothing can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import interfuse
from interfuse.ir import build as b
from interfuse.ir.dtypes import BOOL, F8E5M2, F16, F32, I8, I64
from interfuse.ir.graph import Graph, Input, Output
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, make, topological
from interfuse.passes.drop_rounds import drop_rounds
from tests.plan.made import captured

X = b.placeholder("x", F32, (4, 8))
R = b.rounded(b.apply("exp", X), F16)


def _rounds(*outputs: Node) -> int:
    graph = Graph((Input(X, contiguous(X.shape)),), (), tuple(Output(o, contiguous(o.shape)) for o in outputs))
    return sum(n.op == "round" for n in topological(drop_rounds(graph).roots()))


SEEN = {
    "a comparison": b.apply("eq", R, X),
    "a comparison behind arithmetic": b.apply("lt", b.apply("mul", R, X), X),
    "a floor": b.apply("floor", R),
    "an integer cast": b.cast(R, I8),
    "a bool cast": b.cast(R, BOOL),
    "an arg-reduction behind a maximum": b.reduce("argmax", b.apply("maximum", R, X), (1,)),
    "a reduction, then a sign": b.apply("sign", b.reduce("sum", R, (1,))),
}
UNSEEN = {
    "arithmetic": b.apply("mul", R, X),
    "the values of a where": b.apply("where", b.apply("lt", X, b.broadcast(b.constant(0.0, F32), X.shape)), R, X),
    "a narrow cast": b.cast(R, F16),
    "a matrix product, whatever reads that": b.apply("floor", b.linear(R, X)),
    "a library call, whatever reads that": b.apply("floor", make("library", (R,), F32, (4, 8), token=1)),
}


@pytest.mark.parametrize("name", SEEN)
def test_seen_roundings_stay(name: str) -> None:
    assert _rounds(SEEN[name]) == 1


@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_roundings_go(name: str) -> None:
    assert _rounds(UNSEEN[name]) == 0


def test_one_sight_is_enough() -> None:
    assert _rounds(b.apply("mul", R, X), b.apply("eq", R, X)) == 1


def test_chains_of_roundings_go_together() -> None:
    again = b.rounded(b.apply("mul", R, R), F16)
    assert _rounds(b.cast(again, F16)) == 0
    assert _rounds(b.cast(again, I64)) == 2


def test_a_rounding_that_is_seen_stays_behind_one_that_is_not() -> None:
    """x.to(float8).half(): the half's own rounding changes nothing, that of the code does."""
    coded = b.rounded(b.apply("exp", X), F8E5M2)
    half = b.cast(b.rounded(coded, F16), F16)
    assert _rounds(b.cast(coded, F8E5M2), half) == 1
    graph = Graph(
        (Input(X, contiguous(X.shape)),),
        (),
        tuple(Output(o, contiguous(o.shape)) for o in (b.cast(coded, F8E5M2), half)),
    )
    assert drop_rounds(graph).outputs[1].node is b.cast(coded, F16)


def pieces(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.bfloat16(), torch.stack([x.half(), x.half()]).bfloat16()[0]]).float()


def into_a_window(x: torch.Tensor) -> torch.Tensor:
    held = torch.zeros(8, 24, dtype=torch.bfloat16)
    held[:, 3:19] = x
    return held.float()


def filled(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).copy_(x.bfloat16())


ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "two pieces of a number": pieces,
    "a round trip": lambda x: x.half().float() * 2.0,
    "of what is computed": lambda x: torch.exp(x).bfloat16().float() - torch.exp(x),
    "moved between": lambda x: x.bfloat16().t()[:5].float() + 1.0,
    "of doubles": lambda x: x.double().half().double() - 1.0,
    "promoted": lambda x: (x - x.bfloat16(), x * x.bfloat16()),
    "through two types": lambda x: (x.half().bfloat16().float(), x.bfloat16().half().bfloat16().float()),
    "of integers": lambda x: torch.arange(1000).bfloat16() + torch.zeros(1000),
    "joined": joined,
    "padded": lambda x: torch.nn.functional.pad(x.bfloat16(), (1, 2)).float(),
    "rolled": lambda x: x.bfloat16().roll(1, 0).float(),
    "written into a window": into_a_window,
    "copied": filled,
    "turned about": lambda x: (-x.bfloat16()).float() + x.bfloat16().abs().float(),
    "chosen": lambda x: torch.where(x > 0, x.bfloat16(), -1).float(),
    "reduced": lambda x: (x.bfloat16().sum(-1, dtype=torch.float32), x.bfloat16().amax(-1).float()),
    "scanned": lambda x: x.bfloat16().cumsum(-1, dtype=torch.float32),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_rounding_that_a_model_asks_for_stays(name: str) -> None:
    torch.manual_seed(0)
    x, f = torch.randn(8, 16), ASKED[name]
    torch._dynamo.reset()
    for got, want in zip(*(tree_leaves(g(x)) for g in (interfuse.compile(f, race=False), f)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_what_an_operator_gives_is_not_asked_to_be_rounded() -> None:
    """A residual sum in bf16 that a norm widens keeps f32 between the two."""
    graph = captured(lambda x, r: (x + r).float() * 2.0, torch.randn(4, 8).bfloat16(), torch.randn(4, 8).bfloat16())
    assert not any(n.op == "round" for n in topological(drop_rounds(graph).roots()))


def compensated(p: torch.Tensor, rest: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = rest - 0.001 * g
    new = p + y
    return new, y - (new - p)


def test_a_compensated_sum_keeps_what_its_roundings_lose() -> None:
    """A step of an optimizer in bf16 with what rounding left out carried along, many times."""
    torch.manual_seed(0)
    start = torch.randn(512).bfloat16()
    steps = [(torch.randn(512) * 0.1 + 0.3).bfloat16() for _ in range(300)]
    exact = start.double() - 0.001 * torch.stack(steps).double().sum(0)
    torch._dynamo.reset()
    errors = []
    for step in (compensated, interfuse.compile(compensated, race=False)):
        p, rest = start, torch.zeros_like(start)
        for g in steps:
            p, rest = step(p, rest, g)
        errors.append((p.double() - exact).square().mean().sqrt().item())
    assert errors[1] <= 1.1 * errors[0]


def test_what_a_product_reads_is_what_is_subtracted() -> None:
    """The sum that a matrix product reads in bf16 is the number that its remainder is measured from."""
    torch.manual_seed(0)
    a, b, w = torch.randn(8, 16).bfloat16(), (torch.randn(8, 16) / 64).bfloat16(), torch.randn(4, 16).bfloat16()

    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = a + b
        return torch.nn.functional.linear(high, w), b - (high - a)

    torch._dynamo.reset()
    high, low = a + b, interfuse.compile(f, race=False)(a, b, w)[1]
    torch.testing.assert_close(low.double(), b.double() - (high.double() - a.double()), rtol=2**-8, atol=1e-7)
