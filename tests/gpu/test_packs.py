"""Packs on a GPU: values, one launch, tables under the user's own CUDA graph, streams and several calls in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.driver.made import adam
from tests.judge import judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted", "no_gradients"),
]
SHAPES = ((64, 128), (128,), (300, 7), (3, 5), (1024, 1024), (17,), (1,), (0, 4))


def compiled(f: Callable[..., Any]) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read(None, {}))
    return torch.compile(f, backend=backend, dynamic=False), backend


def whole(backend: Backend) -> None:
    assert not [e.facts for r in backend.records for e in r.of("fallback")]
    assert any(r.choice.note for c in backend.compiled if c.plan for r in c.plan.regions)


def state(lists: int) -> tuple[list[torch.Tensor], ...]:
    return tuple([torch.rand(s, device="cuda") for s in SHAPES] for _ in range(lists))


def features(xs: Any, bs: Any) -> Any:
    return [torch.relu(x + b) for x, b in zip(xs, bs, strict=True)]


def fed(count: int, dtype: torch.dtype = torch.float32) -> Any:
    widths = [8 + 8 * (k % 4) + (k % 3 == 0) for k in range(count)]
    xs = [torch.randn(300, w, device="cuda", dtype=dtype) for w in widths]
    return xs, [torch.randn(w, device="cuda", dtype=dtype) for w in widths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_features(dtype: torch.dtype) -> None:
    run, backend = compiled(features)
    assert judge(features, fed(26, dtype), run).ok
    whole(backend)


@pytest.mark.parametrize(
    "f",
    [
        lambda xs: [x.to(torch.bfloat16) for x in xs],
        lambda xs: [torch.softmax(x, -1) for x in xs],
        lambda xs: [(x * x).sum(-1) for x in xs],
        lambda xs: [x.sum(0) for x in xs],
    ],
)
def test_values_beside_eager(f: Callable[..., Any]) -> None:
    run, _ = compiled(f)
    xs = [torch.randn(40 + k, 16 * k + 16, device="cuda") for k in range(9)]
    assert judge(f, (xs,), run).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parts_of_a_joined_value(dtype: torch.dtype) -> None:
    def side_by_side(xs: Any, bs: Any) -> Any:
        return torch.cat(features(xs, bs), 1)

    run, backend = compiled(side_by_side)
    assert judge(side_by_side, fed(26, dtype), run).ok
    whole(backend)
    (made,) = backend.compiled
    assert made.plan is not None and sum(r.choice.launches for r in made.plan.regions) == 1


def test_an_optimiser_step_in_place() -> None:
    run, backend = compiled(adam)
    assert judge(adam, state(4), run).ok
    whole(backend)


def test_addresses_that_change_reach_the_kernel() -> None:
    run, backend = compiled(features)
    kept = []
    for _ in range(20):
        given = fed(24)
        kept.append((run(*given), features(*given)))
    torch.cuda.synchronize()
    for got, expected in kept:
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
    whole(backend)


def test_streams_have_tables_of_their_own() -> None:
    run, _ = compiled(features)
    given = fed(24)
    expected = features(*given)
    run(*given)
    streams = [torch.cuda.Stream() for _ in range(3)]
    got = []
    torch.cuda.synchronize()
    for _ in range(10):
        for s in streams:
            with torch.cuda.stream(s):
                got.append(run(*given))
    torch.cuda.synchronize()
    for outs in got:
        assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))


def test_many_captures_of_one_model() -> None:
    """A graph may hold several calls, each with addresses of its own, and no call of them may fall back."""
    run, backend = compiled(features)
    given = fed(24)
    run(*given)
    torch.cuda.synchronize()
    expected, graphs = features(*given), []
    for _ in range(3):
        graph, kept = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            kept += [run(*given) for _ in range(6)]
        graphs.append((graph, kept))
    for graph, kept in graphs:
        graph.replay()
        torch.cuda.synchronize()
        for outs in kept:
            assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))
    whole(backend)


def test_captured_in_a_graph_of_the_users() -> None:
    run, backend = compiled(features)
    given = fed(24)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run(*given)
    torch.cuda.synchronize()
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = run(*given)
        graphs.append((graph, outs))
    run(*fed(24))  # another table meanwhile
    for k in range(3):
        for part in (*given[0], *given[1]):
            part.add_(0.1 * k)
        for graph, outs in graphs:
            graph.replay()
            torch.cuda.synchronize()
            for a, b in zip(outs, features(*given), strict=True):
                assert torch.equal(a, b)
    whole(backend)
