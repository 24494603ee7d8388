"""Every rewrite, on an example that it must change, must keep the bits of every value; and near misses stay as they
are.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node
from interfuse.passes.rewrite import rewrite_nodes
from interfuse.passes.simplify import RULES, apply_rules, constant_of, holds

X = b.placeholder("x", F32, (2, 3, 4))


def _c(value: float, dtype: DType = F32) -> Node:
    return b.broadcast(b.constant(value, dtype), (2, 3, 4))


EXAMPLES: dict[str, Node] = {
    "cast_back": b.cast(b.cast(X, F64), F32),
    "cast_known": b.apply("where", b.apply("gt", X, b.cast(b.cast(_c(-7.0), BF16), F32)), X, _c(2.0)),
    "double_permute": b.permute(b.permute(X, (1, 0, 2)), (2, 0, 1)),
    "double_reshape": b.reshape(b.reshape(X, (6, 4)), (24,)),
    "double_expand": b.expand(b.expand(b.take_slice(X, (0, 0, 0), (1, 1, 4)), (2, 1, 4)), (2, 3, 4)),
    "times_one": b.apply("mul", _c(1.0), X),
    "plus_nothing": b.cast(b.apply("add", b.cast(b.apply("gt", X, _c(1.0)), I32), _c(0, I32)), F32),
    "over_one": b.apply("div", X, _c(1.0)),
    "over_power_of_two": b.apply("div", X, _c(-8.0)),
    "small_power": b.apply("pow", X, _c(2.0)),
    "where_known": b.apply("where", b.broadcast(b.constant(False, BOOL), (2, 3, 4)), _c(0.0), X),
}
PLACE = b.expand(b.reshape(b.iota(4), (1, 1, 4)), (2, 3, 4))
NEVER, ALWAYS = {"lt": 0, "le": -1, "gt": 3, "ge": 4, "eq": 7}, {"ne": -1}
"""What a place among four is compared with so that the answer is one for all."""
EXAMPLES |= {
    f"{op}_known": b.apply("where", b.apply(op, PLACE, _c(value, I64)), X, _c(2.0))
    for op, value in (NEVER | ALWAYS).items()
}
EXAMPLES |= {
    f"{op}_{str(neutral).lower()}": b.apply(
        "where", b.apply(op, b.apply("gt", X, _c(1.0)), _c(neutral, BOOL)), X, _c(2.0)
    )
    for op, neutral in (("and", True), ("or", False))
}
UNTOUCHED: dict[str, Node] = {
    "a cast through a narrower type loses bits": b.cast(b.cast(X, F16), F32),
    "a third has other digits in a narrow type": b.cast(_c(1 / 3), BF16),
    "eight bits hold few whole numbers": b.cast(_c(250.0), F8E5M2),
    "a division by three rounds": b.apply("div", X, _c(3.0)),
    "a division by zero is infinite": b.apply("div", X, _c(0.0)),
    "x + 0 turns -0 into 0": b.apply("add", X, _c(0.0)),
    "a place among four may be below three": b.apply("lt", PLACE, _c(3, I64)),
    "bits are no truth values": b.apply("and", PLACE, _c(1, I64)),
    "a power of a half is no square root for -inf": b.apply("pow", X, _c(0.5)),
}


def simplified(node: Node) -> Node:
    return rewrite_nodes((node,), lambda old, new: apply_rules(new))[node]


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {r.name for r in RULES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_rules_match(name: str) -> None:
    assert simplified(EXAMPLES[name]) is not EXAMPLES[name]
    assert (simplified(EXAMPLES[name]).dtype, simplified(EXAMPLES[name]).shape) == (
        EXAMPLES[name].dtype,
        EXAMPLES[name].shape,
    )


@pytest.mark.parametrize("name", UNTOUCHED)
def test_near_misses_stay(name: str) -> None:
    assert simplified(UNTOUCHED[name]) is UNTOUCHED[name]


@pytest.mark.parametrize("name", EXAMPLES)
@given(x=hnp.arrays(np.float32, (2, 3, 4), elements=st.floats(width=32)))
def test_rules_keep_every_bit(name: str, x: np.ndarray) -> None:
    before, after = evaluate([EXAMPLES[name], simplified(EXAMPLES[name])], {X: x})
    both_nan = np.isnan(before) & np.isnan(after)
    assert (both_nan | (before.view(np.uint32) == after.view(np.uint32))).all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_simplifying_again_changes_nothing(name: str) -> None:
    once = simplified(EXAMPLES[name])
    assert simplified(once) is once


@pytest.mark.parametrize(
    ("wide", "narrow", "exact"),
    [
        (F32, F16, True),
        (F32, BF16, True),
        (F16, BF16, False),
        (F64, I32, True),
        (F32, I32, False),
        (F32, I16, True),
        (I64, I32, True),
        (I32, U8, True),
        (U8, I8, False),
        (I8, U8, False),
        (F32, BOOL, True),
        (BOOL, F32, False),
    ],
)
def test_holds(wide: DType, narrow: DType, exact: bool) -> None:
    assert holds(wide, narrow) is exact


def test_constant_of_looks_through_broadcasts() -> None:
    assert constant_of(_c(2.5)) == 2.5
    assert constant_of(X) is None
