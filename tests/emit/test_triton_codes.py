"""Divisions by what a row's largest element tells: where limits and tests are left out, and where they must stay."""

from __future__ import annotations

import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F8E4M3, F32, I8, DType
from interfuse.ir.node import Node
from tests.emit import triton_cases as cases
from tests.emit.code_cases import COLS, codes


def text_of(*outputs: Node, cols: int = COLS) -> str:
    inputs = [b.placeholder("x", F32, (64, cols)), b.placeholder("y", F32, (64, cols))]
    used = [i for i in inputs if any(i in b_inputs(o) for o in outputs)]
    return emit(cases.lowered(used, list(outputs))[0]).text


def b_inputs(node: Node) -> set[Node]:
    """Everything that a node is made of."""
    return {node}.union(*(b_inputs(i) for i in node.inputs))


def rows(name: str = "x", cols: int = COLS) -> Node:
    return b.placeholder(name, F32, (64, cols))


@pytest.mark.parametrize("least", (0.0, 1e-4))
def test_a_row_over_its_largest_element_needs_one_test(least: float) -> None:
    text = text_of(codes(rows(), I8, least))
    assert "= codes_within(x, div, (-127.0), 127.0)" in text
    assert "divided(" not in text and text.count("libdevice.nearbyint") == 1 and ".to(tl.int8))" not in text
    text = text_of(codes(rows(), F8E4M3, least))
    assert "= divided_within(x, div, (-448.0), 448.0)" in text and "to_f8e4m3" not in text


def test_what_has_all_digits_is_rounded_once() -> None:
    """Not so what was read, is half of that, or is the larger of that and 0: it may lie halfway between two codes."""
    x, y = rows(), rows("y")
    normed = b.apply("mul", b.apply("mul", x, y), y)
    assert "= codes_near(mul_2, div, (-127.0), 127.0)" in text_of(codes(normed, I8))
    half, zero = (b.broadcast(b.constant(n, F32), x.shape) for n in (0.5, 0.0))
    for plain in (x, b.apply("mul", x, half), b.apply("maximum", x, zero), b.apply("mul", x, y)):
        text = text_of(codes(plain, I8))
        assert "codes_within(" in text and "codes_near(" not in text


def test_wider_limits_are_limits_too() -> None:
    assert "codes_within(x, div, (-128.0), 127.0)" in text_of(codes(rows(), I8, clamp=(-128.0, 127.0)))


@pytest.mark.parametrize(
    ("dtype", "clamp"),
    (
        (I8, (-100.0, 127.0)),
        (I8, (-127.0, 100.0)),
        (I8, (-127.0, 128.0)),
        (I8, (-200.0, 127.0)),
        (F8E4M3, (-1e3, 448.0)),
    ),
)
def test_other_limits_stay(dtype: DType, clamp: tuple[float, float]) -> None:
    assert "_within" not in text_of(codes(rows(), dtype, clamp=clamp))


def test_the_largest_element_of_something_else_tells_nothing() -> None:
    assert "_within" not in text_of(codes(rows(), I8, by=rows("y")))


def test_a_rounded_scale_may_be_too_small() -> None:
    x = rows()
    top = b.reduce("max", b.apply("abs", x), (1,), True)
    scale = b.rounded(b.apply("div", top, b.like(127.0, top)), BF16)
    near = b.apply("div", x, b.expand(scale, x.shape))
    near = b.apply("minimum", b.apply("maximum", near, b.like(-127.0, x)), b.like(127.0, x))
    assert "_within" not in text_of(b.cast(b.apply("rint", near), I8))


def test_what_is_seen_in_between_stays() -> None:
    x = rows()
    coded = codes(x, I8)
    assert "_within" not in text_of(coded, b.apply("add", coded.inputs[0], b.like(1.0, x)))


def test_rows_that_share_a_program_have_no_test() -> None:
    assert "_within" not in text_of(codes(rows(cols=100), I8), cols=100)
