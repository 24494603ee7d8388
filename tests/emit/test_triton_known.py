"""Divisions and conversions to 8 bits that the text spells shorter, and where it must not."""

from __future__ import annotations

import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F8E4M3, F8E5M2, F32, F64, I8, DType
from interfuse.ir.node import Node
from tests import symbolic
from tests.targets import GPUS


def text_of(inputs: list[Node], *outputs: Node) -> str:
    return emit(symbolic.lowered((inputs, list(outputs)), GPUS["gpu"])[0]).text


def rows(dtype: DType = F32) -> Node:
    return b.placeholder("x", dtype, (64, 1000))


def over(x: Node, y: Node) -> Node:
    return b.apply("div", x, b.broadcast(y, x.shape))


def test_a_divisor_that_a_row_shares_is_inverted_once() -> None:
    for cols, spelled in ((100, "divided_lanes"), (4096, "divided"), (40000, "divided_lanes")):
        x = b.placeholder("x", F32, (64, cols))
        found = text_of([x], over(x, b.reduce("sum", x, (1,), keepdims=True)))
        assert f"= {spelled}(" in found, "a branch where a program has one divisor, and no loop around it"


def test_a_divisor_of_each_element_is_divided_by() -> None:
    x, y = rows(), b.placeholder("y", F32, (64, 1000))
    assert "tl.div_rn(x, y)" in text_of([x, y], b.apply("div", x, y))
    wide = rows(F64)
    assert "divided" not in text_of([wide], over(wide, b.reduce("sum", wide, (1,), keepdims=True)))


@pytest.mark.parametrize(
    ("by", "spelled"),
    (
        (8.0, "x * 0.125"),
        (-0.5, "x * (-2.0)"),
        (3.0, "tl.div_rn(x, 3.0)"),
        (2.0**-127, "tl.div_rn(x, "),
        (0.0, "div_rn"),
    ),
)
def test_a_power_of_two_is_multiplied_by(by: float, spelled: str) -> None:
    x = rows()
    assert spelled in text_of([x], b.apply("div", x, b.like(by, x)))


def clamped(x: Node, most: float) -> Node:
    return b.apply("minimum", b.apply("maximum", x, b.like(-most, x)), b.like(most, x))


def test_clamped_codes_need_no_look_at_what_overflows() -> None:
    x = rows()
    for dtype, most in ((F8E4M3, 448.0), (F8E5M2, 57344.0)):
        assert f"to_{dtype.name}" not in text_of([x], b.cast(clamped(x, most), dtype))
        assert f"to_{dtype.name}" in text_of([x], b.cast(clamped(x, most + 1), dtype))
        assert f"to_{dtype.name}" in text_of([x], b.cast(b.apply("minimum", x, b.like(most, x)), dtype))
    assert ".to(tl.int32).to(tl.int8)" in text_of([x], b.cast(b.apply("rint", clamped(x, 127)), I8))
    assert ".to(tl.int32)" not in text_of([x], b.cast(b.apply("rint", clamped(x, 128)), I8))
