"""Bounds of integers, against the values that numpy gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import BOOL, F32, I8, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node
from interfuse.passes.bounds import DEEP, OPPOSITE, bounds, compared

OPS = ("add", "sub", "mul", "minimum", "maximum")


@st.composite
def integers(draw: st.DrawFn) -> Node:
    """A few operators on positions and constants."""
    dtype = draw(st.sampled_from((I64, I32, I8, U8)))

    def leaf() -> Node:
        if draw(st.booleans()):
            return b.cast(b.iota(6), dtype)
        return b.broadcast(b.constant(draw(st.integers(0 if dtype is U8 else -100, 100)), dtype), (6,))

    node = leaf()
    for _ in range(draw(st.integers(0, 4))):
        node = b.apply(draw(st.sampled_from(OPS)), node, leaf())
    return node


@given(integers())
def test_values_lie_within(node: Node) -> None:
    found = bounds(node)
    if found is not None:
        (values,) = evaluate([node], {})
        assert found[0] <= values.min()
        assert values.max() <= found[1]


@given(integers(), st.sampled_from(sorted(OPPOSITE)), st.integers(0, 100))
def test_what_is_known_holds(node: Node, op: str, value: int) -> None:
    asked = b.apply(op, node, b.broadcast(b.constant(value, node.dtype), (6,)))
    known = compared(asked)
    if known is not None:
        (values,) = evaluate([asked], {})
        assert (values == known).all()


@pytest.mark.parametrize(
    ("value", "dtype", "expected"), [(100, I8, None), (20, I8, (20, 25)), (250, I64, (250, 255)), (250, U8, (250, 255))]
)
def test_what_wraps_has_no_bounds(value: int, dtype: DType, expected: tuple[int, int] | None) -> None:
    place = b.cast(b.iota(6), dtype)
    found = b.apply("add", place, b.broadcast(b.constant(value, dtype), (6,)))
    if expected is None:
        found = b.apply("add", found, b.broadcast(b.constant(value, dtype), (6,)))
    assert bounds(found) == expected


def test_movements_are_looked_through() -> None:
    turned = b.permute(b.expand(b.reshape(b.iota(4), (1, 4)), (3, 4)), (1, 0))
    assert bounds(turned) == (0, 3)


def test_inputs_and_floats_have_none() -> None:
    x = b.placeholder("x", I64, (4,))
    assert bounds(x) is None
    assert bounds(b.apply("add", x, b.iota(4))) is None
    assert bounds(b.placeholder("y", F32, (4,))) is None
    assert bounds(b.placeholder("z", BOOL, (4,))) is None
    assert compared(b.apply("eq", b.placeholder("y", F32, (4,)), b.placeholder("z", F32, (4,)))) is None


def test_long_chains_are_left_soon() -> None:
    node = b.iota(4)
    for _ in range(DEEP + 40):
        node = b.apply("maximum", node, b.apply("minimum", node, b.iota(4)))
    assert bounds(node) is None
