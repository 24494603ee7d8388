"""Packs from the front door: values against eager, kernels reused for another count, threads, what the ledger says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.report.gather import gather
from interfuse.report.ledger import ledger
from interfuse.run.launch import Result
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("empty_cache")


def compiled(f: Callable[..., Any]) -> tuple[Callable[..., Any], Backend]:
    backend = Backend(read(None, {}))
    return torch.compile(f, backend=backend, dynamic=False), backend


def launches(backend: Backend) -> int:
    plan = backend.compiled[-1].plan
    assert plan is not None
    assert not [e.facts for r in backend.records for e in r.of("fallback")]
    return sum(r.choice.launches for r in plan.regions)


def features(xs: Sequence[torch.Tensor], bs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.relu(x + b) for x, b in zip(xs, bs, strict=True)]


def inputs(count: int, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    widths = [8 + 5 * (k % 4) for k in range(count)]
    return [torch.randn(30, w).to(dtype) for w in widths], [torch.randn(w).to(dtype) for w in widths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_features_of_every_type(dtype: torch.dtype) -> None:
    run, backend = compiled(features)
    assert judge(features, inputs(26, dtype), run).ok
    assert launches(backend) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda xs: [x.to(torch.bfloat16) for x in xs],
        lambda xs: torch.stack([(x * x).sum() for x in xs]).sum().sqrt(),
        lambda xs: [torch.softmax(x, -1) for x in xs],
        lambda xs: [x.sum(0) for x in xs],
        lambda xs: [(x + xs[0].sum()).tanh() for x in xs],
    ],
)
def test_values_beside_eager(f: Callable[..., Any]) -> None:
    run, _ = compiled(f)
    xs = [torch.randn(5 + k, 8 * k + 3) for k in range(9)]
    assert judge(f, (xs,), run).ok


def side_by_side(xs: Sequence[torch.Tensor], bs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(features(xs, bs), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_parts_of_a_joined_value_are_written_where_they_belong(dtype: torch.dtype) -> None:
    backend = Backend(read(None, {"race": False}))
    run, (xs, bs) = torch.compile(side_by_side, backend=backend), inputs(26, dtype)
    for rows in (30, 71, 2, 50):
        assert judge(side_by_side, ([x.repeat(3, 1)[:rows] for x in xs], bs), run).ok
        assert launches(backend) == 1
    assert len(backend.compiled) == 2  # one for the first size, one for all others


def test_a_joined_value_gets_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its members write parts of one buffer."""
    given, maker = list[tuple[int, ...]](), Result.maker

    def counted(self: Result, pages: Any) -> Any:
        make = maker(self, pages)
        return lambda sizes: (given.append(self.shape), make(sizes))[1]

    monkeypatch.setattr(Result, "maker", counted)
    run, _ = compiled(side_by_side)
    xs, bs = inputs(26)
    run(xs, bs)
    given.clear()
    run(xs, bs)
    assert given == [side_by_side(xs, bs).shape]


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda xs: torch.cat([x.exp() for x in xs], 0), 1),
        (lambda xs: torch.cat([x.exp() for x in xs], 0).sum(), 2),
        (lambda xs: (ys := [x.exp() for x in xs], torch.cat(ys, 0)), 2),  # the parts are wanted themselves
        (lambda xs: torch.cat([x.exp() if k % 2 else x for k, x in enumerate(xs)], 0), 2),  # in two ways
        (lambda xs: torch.cat(xs, 0), 1),
        (lambda xs: torch.cat([x.exp() for x in (*xs, xs[0])], 0), 2),  # one part twice
        (lambda xs: torch.cat([x.exp().t() for x in xs], 1), 2),
        (lambda xs: torch.stack([x.norm() for x in xs]), 1),
        (lambda xs: torch.stack([x.sum(0) for x in xs], 1), 1),
        (lambda xs: torch.cat([x.exp().t().reshape(-1) for x in xs]), 2),
        (lambda xs: torch.cat([x.exp().flip(1).view(-1, 8) for x in xs]), 2),
        (lambda xs: torch.cat([x.exp()[1:] for x in xs]), 3),  # not all that was made
        (lambda xs: torch.stack([(xs[0] * k).exp() for k, _ in enumerate(xs)]), 2),
    ],
)
def test_joined_values_of_other_kinds(f: Callable[..., Any], count: int) -> None:
    backend = Backend(read(None, {"race": False}))
    xs = [torch.randn(3 + k, 16) for k in range(12)]
    assert judge(f, (xs,), torch.compile(f, backend=backend, dynamic=False)).ok
    assert launches(backend) <= count


def test_another_count_builds_no_other_kernel() -> None:
    run, backend = compiled(features)
    run(*inputs(12))
    run(*inputs(26))
    first, second = ([e for e in r.of("kernel") if e.subject.startswith("pack_")] for r in backend.records)
    assert [e.facts["cached"] for e in first] == [False] and [e.facts["cached"] for e in second] == [True]
    assert first[0].facts["key"] == second[0].facts["key"]


def test_a_batch_that_changes_needs_no_new_graph() -> None:
    backend = Backend(read(None, {}))
    run = torch.compile(features, backend=backend, dynamic=True)
    for rows in (30, 7, 1, 64):
        xs, bs = inputs(6)
        xs = [torch.randn(rows, x.shape[1]) for x in xs]
        for got, expected in zip(run(xs, bs), features(xs, bs), strict=True):
            torch.testing.assert_close(got, expected)
    assert launches(backend) == 1 and len(backend.compiled) <= 2


def test_inputs_that_lie_otherwise_than_captured() -> None:
    run, _ = compiled(features)
    xs, bs = inputs(4)
    turned = [x.t().contiguous().t() for x in xs]
    for given in (xs, turned):
        for got, expected in zip(run(given, bs), features(given, bs), strict=True):
            assert torch.equal(got, expected) and got.stride() == expected.stride()


def test_several_threads_run_one_pack() -> None:
    run, _ = compiled(features)
    cases = [inputs(9) for _ in range(4)]
    expected = [features(*c) for c in cases]
    run(*cases[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(20):
            with torch.no_grad():
                got = run(*cases[k])
            wrong.extend(k for a, b in zip(got, expected[k], strict=True) if not torch.equal(a, b))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_pack_that_fails_runs_the_captured_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from interfuse.base.errors import LaunchError
    from interfuse.run import cpu

    def fail(*_: Any) -> None:
        raise LaunchError("made to fail")

    run, backend = compiled(features)
    given = inputs(5)  # compiled by the first call, which finds the launcher broken
    monkeypatch.setattr(cpu.PackLauncher, "at", fail)
    for got, expected in zip(run(*given), features(*given), strict=True):
        assert torch.equal(got, expected)
    assert "made to fail" in next(e for r in backend.records for e in r.of("fallback")).facts["error"]


def test_the_ledger_counts_one_launch_and_the_same_bytes() -> None:
    run, backend = compiled(features)
    given = inputs(26)
    run(*given)
    assert "packed 26 like regions" in " ".join(str(ledger(backend.records)).split())
    counted = gather(backend.records).totals.launches
    assert (counted.before, counted.after) == (52, 1)
    moved = sum(2 * x.nbytes + b.nbytes for x, b in zip(*given, strict=True))
    assert backend.compiled[0].plan.regions[0].choice.bytes == moved  # type: ignore[union-attr]
