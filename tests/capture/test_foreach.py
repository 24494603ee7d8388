"""Calls on lists of tensors: each becomes plain calls with eager's bits; what has no plain form stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from interfuse.capture.foreach import _PLAIN, split
from interfuse.capture.fx import import_graph

CASES = [(name, overload) for overload, names in _PLAIN.items() for name in names]
SHAPES = ((3, 4), (5,), ())


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(s, generator=generator) * 0.8 + 0.1 for s in SHAPES]


def call(name: str, overload: str) -> Callable[..., Any]:
    function = getattr(getattr(torch.ops.aten, f"_foreach_{name}"), overload)
    three = name in ("addcmul", "addcdiv")

    def run(a: list[torch.Tensor], b: list[torch.Tensor], c: list[torch.Tensor]) -> Any:
        given: tuple[Any, ...] = (a, b, c) if three else (a, b) if name == "lerp" else (a,)
        if overload == "List":
            given = (a, b, c) if name == "lerp" else (a, b)
        extra: tuple[Any, ...] = {
            "Scalar": (2.0,) if name == "norm" else (0.5,),
            "ScalarList": ([0.5, 2.0, 3.0],),
            "Tensor": (c[2],),
        }.get(overload, ())
        return function(2.0, a) if overload == "ScalarAndTensor" else function(*given, *extra)

    return run


def traced(f: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    return make_fx(f, tracing_mode="fake")(*inputs)


@pytest.mark.parametrize(("name", "overload"), CASES)
def test_plain_calls_give_the_bits_of_the_list(name: str, overload: str) -> None:
    f, given = call(name, overload), (tensors(0), tensors(1), tensors(2))
    gm = traced(f, *given)
    assert any("_foreach" in str(n.target) for n in gm.graph.nodes)
    split(gm)
    assert not any("_foreach" in str(n.target) for n in gm.graph.nodes)
    for got, expected in zip(gm(*given), f(*given), strict=True):
        assert torch.equal(got, expected) and got.dtype == expected.dtype
    graph = import_graph(gm)
    assert not [c.reason for c in graph.calls if c.reason], name


def test_arguments_by_name() -> None:
    def f(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
        return (
            *torch._foreach_add(a, b, alpha=0.3),
            *torch._foreach_norm(a, 1),
            *torch._foreach_norm(a, 2, dtype=torch.float64),
            *torch._foreach_addcmul(a, b, b),
        )

    gm = traced(f, tensors(0), tensors(1))
    split(gm)
    for got, expected in zip(gm(tensors(0), tensors(1)), f(tensors(0), tensors(1)), strict=True):
        assert torch.equal(got, expected) and got.dtype == expected.dtype


def test_what_has_no_plain_form_stays() -> None:
    gm = traced(lambda a: torch._foreach_lgamma(a), tensors(0))
    split(gm)
    assert any("_foreach_lgamma" in str(n.target) for n in gm.graph.nodes)


def test_one_launch_is_counted_for_a_list_elsewhere_than_on_a_cpu() -> None:
    def f(a: list[torch.Tensor]) -> Any:
        return torch._foreach_mul(a, 2.0)

    on_cpu, on_meta = traced(f, tensors(0)), traced(f, [t.to("meta") for t in tensors(0)])
    assert [c.launches for c in import_graph(on_cpu).calls] == [1, 1, 1]
    graph = import_graph(on_meta)
    assert [c.launches for c in graph.calls] == [1, 0, 0] and [c.joined for c in graph.calls] == [False, True, True]
