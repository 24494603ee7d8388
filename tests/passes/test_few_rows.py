"""Products of few rows are spelled as sums on a GPU alone, near float64, with what stands beside them in one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, F64, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.graph import Graph, Input, Output
from interfuse.ir.index import sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, topological
from interfuse.ir.verify import verify
from interfuse.passes.few_rows import few_rows


def _product(rows: int, dtype: DType, bias: bool, turned: bool) -> tuple[list[Node], Node]:
    x = b.placeholder("x", dtype, (rows, 40))
    w = b.placeholder("w", dtype, (40, 12) if turned else (12, 40))
    added = [b.placeholder("bias", dtype, (12,))] if bias else []
    return [x, w, *added], b.linear(x, b.permute(w, (1, 0)) if turned else w, *added)


def _spelled(inputs: list[Node], out: Node, device: str = "cuda:0") -> Node:
    given = tuple(Input(n, contiguous(n.shape)) for n in inputs)
    graph = few_rows(Graph(given, (), (Output(out, contiguous(out.shape)),), device=device))
    verify(graph)
    (output,) = graph.outputs
    assert output.node is not None
    return output.node


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
@pytest.mark.parametrize(
    ("rows", "dtype"), ((1, F16), (1, BF16), (1, F32), (1, F64), (2, F16), (5, BF16), (16, F16)), ids=str
)
def test_a_product_of_few_rows_is_a_sum(rows: int, dtype: DType, bias: bool, turned: bool) -> None:
    inputs, out = _product(rows, dtype, bias, turned)
    spelled = _spelled(inputs, out)
    assert not any(n.op == "linear" for n in topological((spelled,)))
    assert (spelled.shape, spelled.dtype) == (out.shape, out.dtype)
    rng = np.random.default_rng(3)
    values = {n: rng.standard_normal(n.shape).astype(n.dtype.numpy) for n in inputs}
    (got,), (exact,) = evaluate((spelled,), values), evaluate((out,), values, wide=True)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2 * dtype.ulp, atol=64 * 40 * F32.ulp)


def test_a_small_product_is_a_sum_and_a_larger_one_is_not() -> None:
    shapes = ((64, 128, 128, True), (64, 128, 129, False), (64, 32, 128, False), (3, 32, 64, True), (3, 32, 65, False))
    for rows, features, deep, small in shapes:
        x, w = b.placeholder("x", F32, (rows, deep)), b.placeholder("w", F32, (features, deep))
        product = b.linear(x, w)
        assert (_spelled([x, w], product) is not product) == small


def test_other_products_and_other_devices_stay() -> None:
    for rows, dtype, device in ((1, F16, "cpu"), (17, F16, "cuda:0"), (2, F64, "cuda:0")):
        inputs, out = _product(rows, dtype, True, False)
        assert _spelled(inputs, out, device) is out
    x, w = b.placeholder("x", F16, (sym("s0", 1, 16), 40)), b.placeholder("w", F16, (12, 40))
    product = b.linear(x, w)
    assert _spelled([x, w], product) is product, "rows that may be many"
