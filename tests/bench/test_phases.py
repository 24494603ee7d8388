"""Phase twins. In: functions whose kernels pass over rows or columns. Out: the same passes without arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bench.cpu import phase_twin
from bench.phases import bare
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.lower.kernel import Kernel, Let, Load, Loop, Store
from interfuse.plan.plan import KernelStep


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


X, R, W = torch.randn(6, 4096), torch.randn(6, 4096), torch.randn(4096)
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), (X,), lambda x: x),
    "layer_norm": (lambda x, r, w: F.layer_norm(x + r, (4096,), w), (X, R, W), lambda x, r, w: x + r + w),
    "second first": (lambda x, w: F.layer_norm(w * 2 + x, (4096,)), (X, W), lambda x, w: x + w),
    "columns": (lambda x: x.var(0, correction=0), (X,), lambda x: x.sum(0)),
}


def kernel_of(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Kernel:
    backend = Backend(read("no-race"))
    torch.compile(lambda *a: function(*a), backend=backend, dynamic=False)(*inputs)
    plan = backend.compiled[0].plan
    assert plan is not None
    return next(s.kernel for c in plan.regions[0].candidates for s in c.steps if isinstance(s, KernelStep))


def passes(kernel: Kernel) -> list[list[tuple[type, str, str]]]:
    """The loads and stores of each loop, in order."""
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    return [[(type(s), s.param, str(s.index)) for s in loop.body if isinstance(s, (Load, Store))] for loop in loops]


@pytest.mark.parametrize("case", CASES)
def test_a_twin_passes_over_the_same_bytes_and_only_adds(case: str) -> None:
    function, inputs, adds = CASES[case]
    kernel = kernel_of(function, inputs)
    twin = bare(kernel)
    assert passes(twin) == passes(kernel)
    assert len(passes(twin)) >= (3 if case == "softmax" else 2 if case == "layer_norm" else 1)
    loops = [s for s in twin.body if isinstance(s, Loop)]
    assert {s.op for loop in loops for s in loop.body if isinstance(s, Let)} <= {"add"}
    run = phase_twin(function, inputs)
    assert run is not None
    run()
    out = run.args[0][-1]  # type: ignore[attr-defined]
    torch.testing.assert_close(out, adds(*inputs), rtol=1e-4, atol=1e-4)


def test_a_scan_has_none() -> None:
    assert phase_twin(lambda x: x.cumsum(-1), (X,)) is None
