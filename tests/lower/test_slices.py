"""Slices of reductions. In: what is read of reductions. Out: reductions of slices, with the values of before."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import REDUCES
from interfuse.lower.domain import inside
from interfuse.lower.slices import slices_first

X = b.placeholder("x", F32, (4, 6, 5))
Y = b.placeholder("y", F32, (4, 1, 5))
BIAS = b.placeholder("bias", F32, (6,))
INPUTS = frozenset((X, Y, BIAS))


def _total() -> Node:
    """[4, 6]: a product summed over its last axis, and a bias."""
    total = b.reduce("sum", b.apply("mul", X, b.expand(Y, X.shape)), (2,))
    return b.apply("add", total, b.broadcast(BIAS, total.shape))


def _same(before: tuple[Node, ...], after: tuple[Node, ...]) -> None:
    values = {
        n: np.random.default_rng(k).standard_normal(n.shape).astype(np.float32) for k, n in enumerate((X, Y, BIAS))
    }
    for one, other in zip(evaluate(before, values), evaluate(after, values), strict=True):
        np.testing.assert_array_equal(one, other)


def _reduced(roots: tuple[Node, ...]) -> list[tuple[object, ...]]:
    return [n.shape for n in topological(roots) if n.op in REDUCES]


def test_the_halves_of_a_sum_are_two_sums() -> None:
    total = _total()
    one, two = (b.take_slice(total, (0, k), (4, 3)) for k in (0, 3))
    before = (b.apply("mul", b.apply("tanh", one), two),)
    after = slices_first(before, INPUTS)
    assert _reduced(before) == [(4, 6)] and _reduced(after) == [(4, 3), (4, 3)]
    moved = [n.inputs[0].op for n in topological(after) if n.op == "slice"]
    assert set(moved) <= {"input", "reshape", "expand"}, "slices go up to what is read"
    _same(before, after)


@pytest.mark.parametrize("steps", ((1, 2), (-1, -2), (2, 1)), ids=str)
def test_slices_of_any_step(steps: tuple[int, int]) -> None:
    total = b.reduce("max", b.apply("sub", X, b.expand(Y, X.shape)), (1,))
    starts = tuple(3 if s < 0 else 0 for s in steps)
    before = (b.take_slice(total, starts, (2, 2), steps),)
    after = slices_first(before, INPUTS)
    assert _reduced(after) == [(2, 2)]
    _same(before, after)


def test_a_sum_is_whole_where_it_is_wanted_whole_or_slices_are_more() -> None:
    total = _total()
    half = b.take_slice(total, (0, 0), (4, 3))
    for roots in (
        (half, total),
        (half, b.permute(total, (1, 0))),
        tuple(b.take_slice(total, (0, k), (4, 3)) for k in (0, 2, 3)),
        (half, b.reduce("sum", total, (1,))),
        (b.take_slice(b.apply("exp", X), (0, 0, 0), (4, 3, 5)),),
    ):
        assert slices_first(roots, INPUTS) == roots
    first = b.take_slice(b.apply("exp", total), (0, 0), (4, 4))
    roots = (first, b.take_slice(total, (0, 3), (4, 3)))
    assert slices_first(roots, INPUTS) == roots, "both need more than the sum has"


def test_a_sum_that_is_wanted_whole_is_summed_once_whatever_slices_a_sum_of_it_has() -> None:
    total = _total()
    both = b.reduce("sum", b.apply("exp", total), (0,))
    halves = tuple(b.take_slice(both, (k,), (3,)) for k in (0, 3))
    assert sorted(_reduced(slices_first(halves, INPUTS))) == [(3,), (3,), (4, 3), (4, 3)]
    after = slices_first((*halves, total), INPUTS)
    assert sorted(_reduced(after)) == [(3,), (3,), (4, 6)]
    _same((*halves, total), after)


def test_what_is_there_is_not_looked_into() -> None:
    total = _total()
    roots = (b.apply("tanh", b.take_slice(total, (0, 0), (4, 3))),)
    assert slices_first(roots, frozenset((total,))) == roots


def test_inputs_stay_whatever_made_them() -> None:
    made = b.apply("exp", b.apply("mul", X, b.expand(Y, X.shape)))
    total = b.reduce("sum", b.apply("tanh", made), (2,))
    after = slices_first((b.take_slice(total, (0, 0), (4, 3)),), frozenset((made,)))
    assert _reduced(after) == [(4, 3)]
    assert [n.op for n in inside(after, frozenset((made,)))] == ["slice", "tanh", "sum"], "made once"


def test_long_chains_of_element_wise_work() -> None:
    x: Node = X
    for _ in range(3000):
        x = b.apply("sin", x)
    before = (b.take_slice(b.reduce("sum", x, (2,)), (0, 0), (4, 3)),)
    after = slices_first(before, INPUTS)
    assert _reduced(after) == [(4, 3)]
    _same(before, after)
