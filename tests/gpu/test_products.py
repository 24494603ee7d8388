"""Products of a few rows on a GPU. In: rows, matrices, what follows. Out: the contract's values from one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.ir.dtypes import F16
from interfuse.ir.dtypes import F32 as NODE_F32
from interfuse.lower.target import GPU
from tests import few
from tests.emit import triton_cases as cases
from tests.judge import judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted", "no_gradients"),
]


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate) * (x @ up)


def biased(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, bias)) + added


def halved(x: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, both).chunk(2, -1)
    return F.silu(gate) * up


def shared(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.t() @ w)


def cell(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, into: torch.Tensor, back: torch.Tensor) -> Any:
    keep, new, candidate, out = (x @ into + h @ back).chunk(4, -1)
    c = torch.sigmoid(keep) * c + torch.sigmoid(new) * torch.tanh(candidate)
    return torch.sigmoid(out) * torch.tanh(c), c


def _chosen(f: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Callable[..., Any], list[str]]:
    backend = Backend(read(None, {"race": False}))
    run = torch.compile(f, backend=backend, dynamic=False)
    run(*inputs)
    assert not [e.facts for r in backend.records for e in r.of("fallback")]
    return run, [r.choice.label for c in backend.compiled if c.plan for r in c.plan.regions]


def _made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("rows", (1, 5, 8, 16))
@pytest.mark.parametrize(("features", "common"), ((4096, 2048), (5000, 1032)))
def test_values(features: int, common: int, rows: int, dtype: torch.dtype) -> None:
    x = _made(rows, common, dtype=dtype)
    gate, up = (_made(common, features, dtype=dtype) * 0.05 for _ in range(2))
    run, labels = _chosen(gated, x, gate, up)
    assert labels == ["fused: product"]
    assert judge(gated, (x, gate, up), run).ok
    inputs = x, gate.t().contiguous(), _made(features, dtype=dtype), _made(rows, features, dtype=dtype)
    run, labels = _chosen(biased, *inputs)
    assert labels == ["fused: product" if rows > 1 else "fused: row, resident"]
    assert judge(biased, inputs, run).ok


def normed(x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gated(F.rms_norm(x, (x.shape[-1],), w), gate, up)


@pytest.mark.parametrize("rows", (1, 16))
def test_rows_are_normalised_while_their_products_begin(rows: int) -> None:
    x, w = _made(rows, 2048, dtype=torch.float16), _made(2048, dtype=torch.float16)
    gate, up = (_made(2048, 8192, dtype=torch.float16) * 0.05 for _ in range(2))
    run, labels = _chosen(normed, x, w, gate, up)
    assert labels == ["fused: product, in parts"]
    for _ in range(3):
        x.normal_()
        assert judge(normed, (x, w, gate, up), run).ok


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("dot", (16, 64))
@pytest.mark.parametrize(("rows", "features"), ((1, 130), (16, 130), (20, 300), (50, 300), (100, 300)))
def test_more_rows_and_features_that_come_first(rows: int, features: int, dot: int, turned: bool) -> None:
    for region in (few.gated, few.residual):
        inputs, outputs = region(F16, (rows, features, 200), turned)
        kernel, reads = cases.lowered(inputs, outputs, target=replace(GPU, programs=1, dot=dot))
        arrays = few.values(inputs, special=True)
        cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads], "cuda"))


@pytest.mark.parametrize("f", (gated, biased))
def test_many_rows_are_raced(f: Callable[..., Any]) -> None:
    x, (w, v) = _made(32, 2048, dtype=torch.float16), (_made(16384, 2048, dtype=torch.float16) * 0.05 for _ in "wv")
    bias, added = (_made(*shape, dtype=torch.float16) for shape in ((16384,), (32, 16384)))
    inputs = (x, w.t(), v.t()) if f is gated else (x, w, bias, added)
    backend = Backend(read(None, {"race": True}))
    run = torch.compile(f, backend=backend, dynamic=False)
    run(*inputs)
    (race,) = [e.facts for r in backend.records for e in r.of("race")]
    assert {"fused: product"} < set(race["times"]), "both are right"
    assert judge(f, inputs, run).ok


F32 = torch.float32
SCALES = ((1.0, 1.0), (1e-38, 1.0), (1e-30, 1e-8), (1e30, 1e5), (1e37, 1e-3))


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize(
    ("rows", "features", "common"),
    ((8, 4096, 1024), (100, 770, 130), (1000, 768, 770), (1024, 3072, 256)),
)
def test_tensor_cores_multiply_f32(rows: int, features: int, common: int, turned: bool) -> None:
    """Of any size and sign, constant ones too: no less exact than the library, which multiplies them as they are."""
    w, bias, added = _made(features, common, dtype=F32), _made(features, dtype=F32), _made(rows, features, dtype=F32)
    w, some = w.t().contiguous().t() if turned else w, _made(rows, common, dtype=F32)
    run, labels = _chosen(biased, some, w, bias, added)
    assert labels in (["fused: product"], ["fused: product, in parts"])
    for x_scale, w_scale in SCALES:
        for x in (some, torch.full_like(some, 0.3)):
            inputs = x * x_scale, w * w_scale, bias * x_scale * w_scale, added
            assert judge(biased, inputs, run).ok, (x_scale, w_scale)


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("dot", (16, 64))
@pytest.mark.parametrize(("units", "sizes"), ((132, (2, 1024, 514)), (132, (70, 130, 130)), (1, (130, 70, 130))))
def test_what_is_no_number_stays_where_it_is_in_f32(units: int, sizes: few.Sizes, dot: int, turned: bool) -> None:
    for region in (few.gated, few.residual, few.halves):
        inputs, outputs = region(NODE_F32, sizes, turned)
        kernel, reads = cases.lowered(inputs, outputs, target=replace(GPU, programs=units, dot=dot, splits=True))
        assert kernel.family == "product"
        arrays = few.values(inputs, special=True)
        cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads], "cuda"))


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
def test_what_is_no_number_stays_where_it_is_in_parts(turned: bool) -> None:
    few.check_parts((70, 130, 512), turned, "cuda")


def test_neither_side_may_lie_along_what_they_share() -> None:
    x, w = _made(768, 1024, dtype=F32), _made(768, 512, dtype=F32)
    run, labels = _chosen(shared, x, w)
    assert labels[0].startswith("fused: product") and judge(shared, (x, w), run).ok


def test_where_fewer_digits_may_be_taken_the_library_multiplies() -> None:
    before, inputs = torch.get_float32_matmul_precision(), (_made(1024, 768, dtype=F32), _made(512, 768, dtype=F32))
    try:
        torch.set_float32_matmul_precision("high")
        assert _chosen(F.linear, *inputs)[1] == ["library: linear"]
    finally:
        torch.set_float32_matmul_precision(before)
    torch._dynamo.reset()
    assert _chosen(F.linear, *inputs)[1][0].startswith("fused: product")


def test_what_is_no_number_stays_in_its_row() -> None:
    x, w = _made(3, 512, dtype=torch.float16), _made(4000, 512, dtype=torch.float16)
    bias, added = _made(4000, dtype=torch.float16), _made(3, 4000, dtype=torch.float16)
    x[0, 3], x[2, 5], w[7, 9] = float("inf"), float("nan"), float("inf")
    run, _ = _chosen(biased, x, w, bias, added)
    assert judge(biased, (x, w, bias, added), run).ok


@pytest.mark.parametrize("rows", (1, 4))
def test_the_halves_of_a_product_are_one_kernel(rows: int) -> None:
    x, both = _made(rows, 1024, dtype=torch.float16), _made(6000, 1024, dtype=torch.float16) * 0.05
    run, labels = _chosen(halved, x, both)
    assert len(labels) == 1 and labels[0].startswith("fused")
    assert judge(halved, (x, both), run).ok


def test_the_gates_of_a_cell_are_one_kernel() -> None:
    x, h, c = (_made(3, 32, dtype=torch.float32) for _ in range(3))
    into, back = (_made(32, 128, dtype=torch.float32) * 0.1 for _ in range(2))
    run, labels = _chosen(cell, x, h, c, into, back)
    assert len(labels) == 1 and labels[0].startswith("fused")
    assert judge(cell, (x, h, c, into, back), run).ok
