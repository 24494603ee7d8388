"""A region on its own. In: graphs. Out: which of their outputs are codes that a reduction may move."""

from __future__ import annotations

import math

import pytest
import torch

from interfuse.capture.fx import import_graph
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32
from interfuse.ir.graph import Graph, Input
from interfuse.ir.layout import Layout, contiguous
from interfuse.tune.trial import codes, made_up


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (quantised, {0}),
        (lambda x: quantised(x)[0].reshape(8, 4).to(torch.int32), {0}),
        (lambda x: (x / x.sum()).to(torch.float8_e5m2), {0}),
        (lambda x: x.cumsum(-1).long(), {0}),
        (lambda x: (x * 3).to(torch.int8), set()),  # no reduction: exact
        (lambda x: torch.softmax(x, -1).argmax(-1), set()),
        (lambda x: x > x.mean(), set()),
        (lambda x: (x > x.mean()).to(torch.int8), set()),
        (lambda x: x.to(torch.int32).sum(), set()),
        (lambda x: quantised(x)[0].to(torch.float32), set()),
    ],
)
def test_codes_are_what_is_rounded_behind_a_reduction(function: object, want: set[int]) -> None:
    found = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        found.append(codes(import_graph(gm, inputs, "graph")))
        return gm.forward

    from torch._dynamo.backends.common import aot_autograd

    torch.compile(function, backend=aot_autograd(fw_compiler=backend))(torch.randn(4, 8))  # type: ignore[arg-type]
    assert [set(c) for c in found] == [want]


def test_inputs_that_are_others_agree() -> None:
    """One way to run a region may read a value, another what was rounded or moved of it."""
    x = b.placeholder("x", F32, (4, 6))
    narrow = b.cast(x, BF16)
    turned = b.apply("copy", b.permute(narrow, (1, 0)))
    tail = b.take_slice(turned, (2, 0), (4, 4))
    y = b.placeholder("y", F32, (4, 6))
    nodes = (turned, x, tail, y, narrow)
    layouts = [contiguous(n.shape) for n in nodes[:-1]] + [Layout((1, 4))]
    graph = Graph(tuple(map(Input, nodes, layouts)), (), ())
    given = dict(zip(nodes, made_up(graph, torch.device("cpu")), strict=True))
    assert torch.equal(given[narrow], given[x].bfloat16())
    assert torch.equal(given[narrow].float(), given[x])
    assert torch.equal(given[turned], given[narrow].t())
    assert torch.equal(given[tail], given[turned][2:])
    assert given[narrow].stride() == (1, 4)
    assert given[turned].is_contiguous()
    assert not torch.equal(given[y].bfloat16().float(), given[y])


def test_inputs_that_are_known_are_what_they_are() -> None:
    place = b.iota(4)
    later = b.apply("gt", b.broadcast(place, (4, 4)), b.broadcast(b.reshape(place, (4, 1)), (4, 4)))
    mask = b.apply("where", later, b.like(-math.inf, b.cast(later, F32)), b.like(0.0, b.cast(later, F32)))
    nodes = (mask, b.cast(mask, BF16), b.apply("copy", place))
    graph = Graph(tuple(Input(n, contiguous(n.shape)) for n in nodes), (), ())
    wide, narrow, places = made_up(graph, torch.device("cpu"))
    want = torch.full((4, 4), -math.inf).triu(1)
    assert torch.equal(wide, want)
    assert torch.equal(narrow, want.bfloat16())
    assert places.tolist() == [0, 1, 2, 3]
