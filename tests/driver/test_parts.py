"""Reductions in parts from the front door: values against eager, the same bits on any number of threads, the count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.knobs import override
from interfuse.base.record import Record
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.plan.plan import Candidate, KernelStep
from interfuse.run.program import Program
from tests.judge import judge


def _norm_backward(g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.ops.aten.native_layer_norm_backward(g, x, (96,), mean, rstd, w, w, [True] * 3)


def _with_columns(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A result, and the sums of its columns."""
    return y, y.sum(0)


def _saved(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A gradient, and what a layer norm of x saves for its backward pass."""
    _, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, weight, 1e-5)
    return torch.randn_like(x), x, mean, rstd, weight


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "sum": (lambda x: x.sum(), lambda: (torch.randn(1 << 18),)),
    "odd mean": (lambda x: x.mean(), lambda: (torch.randn(250007) + 3,)),
    "half": (lambda x: x.mean(), lambda: (torch.randn(300, 1000).half(),)),
    "norm": (lambda x: x / x.norm(), lambda: (torch.randn(300, 1003),)),
    "loss": (F.mse_loss, lambda: (torch.randn(300, 1003), torch.randn(300, 1003))),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (torch.randn(2, 131072) * 3,)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda: (torch.randn(2, 131071),)),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (torch.randn(3, 65536) + 100,)),
    "columns": (lambda x: (x.var(0), x.mean(0)), lambda: (torch.randn(30001, 9) + 5,)),
    "bias": (lambda g: g.sum(0), lambda: (torch.randn(8000, 48),)),
    "norm backward": (_norm_backward, lambda: _saved(torch.randn(301, 96) + 2, torch.randn(96))),
    "half norm backward": (_norm_backward, lambda: _saved(torch.randn(4, 80, 96).half(), torch.randn(96).half())),
    "rows and columns": (lambda x: _with_columns(torch.softmax(x, -1)), lambda: (torch.randn(500, 77),)),
    "bias gradient": (lambda y, g: _with_columns(torch.where(y > 0, g, 0)), lambda: tuple(torch.randn(2, 900, 48))),
    "batch": (lambda x: torch.var_mean(x, (0, 2, 3)), lambda: (torch.randn(9, 16, 40, 41) + 5,)),
    "batch in half": (lambda x: x.float().sum((0, 2)).half(), lambda: (torch.randn(40, 33, 128).half(),)),
    "batch norm": (
        lambda x: (x - x.mean((0, 2, 3), True)) * torch.rsqrt(x.var((0, 2, 3), keepdim=True) + 1e-5),
        lambda: (torch.randn(9, 16, 40, 41) + 5,),
    ),
    "groups apart": (lambda x: torch.var_mean(x, (1, 3)), lambda: (torch.randn(3, 5000, 5, 3) + 5,)),
    "places": (lambda x: (x.argmax(), x.max()), lambda: (torch.randn(1 << 18),)),
    "questions": (lambda x: ((x > 4).any(), (x < 9).all()), lambda: (torch.randn(1 << 18),)),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    with override(cache_dir=tmp_path / "cache", race=False):
        yield
    torch.set_num_threads(threads)


def in_parts(f: Callable[..., Any], *given: torch.Tensor) -> tuple[Program, Candidate]:
    """The program of `f` in which its region runs in parts, and the candidate that does."""
    backend = Backend(read(None, {}))
    torch.compile(f, backend=backend, dynamic=False)(*given)
    found = backend.compiled[-1]
    assert found.plan is not None
    (region,) = found.plan.regions
    at = next(k for k, c in enumerate(region.candidates) if c.label.endswith("in parts"))
    plan = replace(found.plan, regions=(replace(region, chosen=at),))
    return Program(plan, found.stages.launchers, Record(), guarded=False), region.candidates[at]


@pytest.mark.parametrize("name", CASES)
def test_values_beside_eager(name: str) -> None:
    f, make = CASES[name]
    given = make()
    program, _ = in_parts(f, *given)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        verdict = judge(f, given, program)
        assert verdict.ok, verdict.note
        results.append(program(*given))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other)), "bits depend on the number of threads"


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["sum", "norm", "softmax", "logsumexp", "layer norm", "columns", "places"])
def test_special_values_stand_where_eagers_do(name: str, special: float) -> None:
    f, make = CASES[name]
    (x,) = make()
    program, _ = in_parts(f, x)
    x.view(-1)[[5, x.numel() // 3]] = special
    verdict = judge(f, (x,), program)
    assert verdict.ok, verdict.note
    rows = x.fill_(special)
    verdict = judge(f, (rows,), program)
    assert verdict.ok, verdict.note


def test_every_launch_and_byte_is_counted() -> None:
    x = torch.randn(2, 131072)
    _, found = in_parts(lambda x: torch.softmax(x, -1), x)
    assert found.launches == len(found.steps) == 3
    parts, joins, rows = found.steps
    assert isinstance(parts, KernelStep) and isinstance(joins, KernelStep) and isinstance(rows, KernelStep)
    partial = sum(4 * int(n.size) for n in parts.outputs)  # type: ignore[arg-type]
    kept = sum(4 * int(n.size) for n in joins.outputs)  # type: ignore[arg-type]
    whole = 4 * x.numel()
    assert partial < whole / 1000
    assert found.bytes == (whole + partial) + (partial + kept) + (whole + kept + whole)
