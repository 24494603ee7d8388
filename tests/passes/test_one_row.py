"""Products of one row are spelled as sums on a GPU alone, near float64, with what stands beside them in one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, F64, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.graph import Graph, Input, Output
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, topological
from interfuse.ir.verify import verify
from interfuse.passes.one_row import one_row


def _product(rows: int, dtype: DType, bias: bool, turned: bool) -> tuple[list[Node], Node]:
    x = b.placeholder("x", dtype, (rows, 40))
    w = b.placeholder("w", dtype, (40, 12) if turned else (12, 40))
    added = [b.placeholder("bias", dtype, (12,))] if bias else []
    return [x, w, *added], b.linear(x, b.permute(w, (1, 0)) if turned else w, *added)


def _spelled(inputs: list[Node], out: Node, device: str = "cuda:0") -> Node:
    given = tuple(Input(n, contiguous(n.shape)) for n in inputs)
    graph = one_row(Graph(given, (), (Output(out, contiguous(out.shape)),), device=device))
    verify(graph)
    (output,) = graph.outputs
    assert output.node is not None
    return output.node


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
@pytest.mark.parametrize("dtype", (F16, BF16, F32, F64), ids=str)
def test_a_product_of_one_row_is_a_sum(dtype: DType, bias: bool, turned: bool) -> None:
    inputs, out = _product(1, dtype, bias, turned)
    spelled = _spelled(inputs, out)
    assert not any(n.op == "linear" for n in topological((spelled,)))
    assert (spelled.shape, spelled.dtype) == (out.shape, out.dtype)
    rng = np.random.default_rng(3)
    values = {n: rng.standard_normal(n.shape).astype(n.dtype.numpy) for n in inputs}
    (got,), (exact,) = evaluate((spelled,), values), evaluate((out,), values, wide=True)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2 * dtype.ulp, atol=64 * 40 * F32.ulp)


def test_other_products_and_other_devices_stay() -> None:
    for rows, device in ((1, "cpu"), (2, "cuda:0")):
        inputs, out = _product(rows, F16, True, False)
        assert _spelled(inputs, out, device) is out
