"""Sizes that change between calls, on a GPU: one compile, one kernel for all sizes, values inside the contract."""

from __future__ import annotations

import pytest
import torch

from interfuse.lower.target import GPU
from tests import symbolic
from tests.driver.test_dynamic import Feed, compiled, families, holds
from tests.emit import triton_cases as cases
from tests.judge import judge_region

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted", "no_gradients"),
]


def test_batch_and_length_change_without_another_compile() -> None:
    model = Feed().eval().cuda()
    fast, backend = compiled(model)
    for batch, length in ((2, 16), (3, 7), (13, 11), (31, 2), (2, 127)):
        holds(model, fast, torch.randn(batch, length, 12, device="cuda"))
    (found,) = families(backend)
    assert found["add+layer_norm+amax"] == "row, resident"


def test_rows_of_a_changing_width() -> None:
    def f(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = x + r
        return torch.nn.functional.layer_norm(s, (s.shape[-1],), w), torch.softmax(s, -1), s.var(-1), s.argmax(-1)

    fast, backend = compiled(f)
    for rows, cols in ((300, 1000), (5, 7), (170, 1024), (20, 1025), (3, 50000), (2000, 333)):
        shapes = ((rows, cols), (rows, cols), (cols,))
        holds(f, fast, *(torch.randn(*s, device="cuda") for s in shapes))
    (plan,) = [c.plan for c in backend.compiled]
    assert plan is not None and all(any(c.family.startswith("row") for c in r.candidates) for r in plan.regions)


@pytest.mark.parametrize("example", ({}, {"s0": 2, "s1": 30}), ids=("streamed", "held"))
@pytest.mark.parametrize("name", list(symbolic.EVERY))
def test_one_kernel_serves_every_size(name: str, example: dict[str, int]) -> None:
    inputs, outputs = symbolic.EVERY[name]()
    kernel, order = symbolic.lowered((inputs, outputs), GPU, example)
    assert (kernel.beyond is not None) == (bool(example) and name in symbolic.HELD)
    for sizes in symbolic.sizes_of(name):
        arrays = symbolic.arrays(inputs, sizes)
        shapes = [symbolic.shape_of(n, sizes) for n in outputs]
        got = cases.run(kernel, [arrays[n] for n in order], "cuda", [sizes[s] for s in kernel.symbols], shapes)
        verdict = judge_region(outputs, arrays, got, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)
