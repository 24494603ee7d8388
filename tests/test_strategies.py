"""The random regions themselves. In: regions(). Out: they are right graphs, of every sort that was promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import BOOL, F32, I64
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import topological
from interfuse.ir.verify import check_node
from tests.strategies import KINDS, arrays_for, regions


@settings(max_examples=150)
@given(regions(), st.sampled_from(KINDS))
def test_regions_verify_and_evaluate(region, kind):
    inputs, outputs = region
    nodes = topological(outputs)
    for node in nodes:
        check_node(node)
    assert inputs
    assert len(set(outputs)) == len(outputs)
    assert set(inputs) == {n for n in nodes if n.op == "input"}
    assert not set(inputs) & set(outputs)
    for node, got in zip(outputs, evaluate(outputs, arrays_for(inputs, kind)), strict=True):
        assert got.shape == node.shape
        assert got.dtype == node.dtype.numpy


def _sorts(outputs) -> set[str]:
    """Everything about one region that the strategy promises to bring up now and then."""
    nodes = topological(outputs)
    found = {n.op for n in nodes} | {f"{n.dtype} output" for n in outputs}
    found |= {f"{n.dtype} input" for n in nodes if n.op == "input"}
    if len({o.shape for o in outputs}) > 1:
        found.add("outputs of two shapes")
    return found | {f"{len(n.shape)} dimensions" for n in nodes if n.op == "input"}


def test_every_promised_sort_occurs():
    seen: set[str] = set()

    @settings(max_examples=700, database=None)
    @given(regions())
    def collect(region):
        seen.update(_sorts(region[1]))

    collect()
    types = ("f32", "f16", "bf16", "i64", "i32", "bool")
    assert seen >= {
        "outputs of two shapes",
        "1 dimensions",
        "2 dimensions",
        "3 dimensions",
        "permute",
        "expand",
        "reshape",
        *(f"{t} input" for t in types),
        *(f"{t} output" for t in types),
        "sum",
        "max",
        "min",
        "mean",
        "variance",
        "any",
        "all",
        "where",
        "round",
        "cast",
        "exp",
        "rsqrt",
        "div",
        "lt",
        "not",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_data_repeats_and_differs_by_seed(kind):
    inputs = [b.placeholder("x", F32, (2, 33)), b.placeholder("n", I64, (7,)), b.placeholder("t", BOOL, (40,))]
    one, again, other = arrays_for(inputs, kind), arrays_for(inputs, kind), arrays_for(inputs, kind, seed=1)
    assert all(np.array_equal(one[x], again[x], equal_nan=x.dtype.is_float) for x in inputs)
    assert kind == "constant" or any(not np.array_equal(one[x], other[x]) for x in inputs)


def test_special_data_is_special():
    x = b.placeholder("x", F32, (9, 33))
    data = arrays_for([x], "special")[x]
    assert np.isnan(data).any()
    assert np.isinf(data).any()
    assert (data == 0).any()


def test_unknown_data_kind():
    with pytest.raises(ValueError, match="there is no kind of data 'odd'"):
        arrays_for([], "odd")
