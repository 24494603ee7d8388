"""Index expressions against plain integer arithmetic. In: random expressions. Out: values, intervals, text that
agree.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.ir import index
from interfuse.ir.index import Dim, Expr, const, sym

ROW, J, K = sym("i", 0, 40), sym("j", -9, 9), sym("big", 0, 2**40)
SYMBOLS = (ROW, J, K)

BINARY = {
    "add": (index.add, lambda a, b: a + b),
    "mul": (index.mul, lambda a, b: a * b),
    "min": (index.minimum, min),
    "max": (index.maximum, max),
    "sub": (lambda a, b: index.wrap(a) - b, lambda a, b: a - b),
}
DIVISIONS = {"floordiv": (index.floordiv, lambda a, b: a // b), "mod": (index.mod, lambda a, b: a % b)}


@st.composite
def _values(draw: st.DrawFn) -> dict[str, int]:
    return {s.name: draw(st.one_of(st.integers(s.lo, s.hi), st.sampled_from((s.lo, s.hi)))) for s in SYMBOLS}


@st.composite
def _pairs(draw: st.DrawFn, depth: int = 3) -> tuple[Dim, object]:
    """An expression, and a function that works the same value out with Python's integers."""
    kind = draw(st.sampled_from(("leaf", "binary", "division", "symbolic division"))) if depth else "leaf"
    if kind == "leaf":
        if draw(st.booleans()):
            s = draw(st.sampled_from(SYMBOLS))
            return s, lambda v: v[s.name]
        n = draw(st.integers(-12, 12))
        return (n if draw(st.booleans()) else const(n)), lambda v: n
    a, fa = draw(_pairs(depth - 1))
    if kind == "binary":
        make, plain = BINARY[draw(st.sampled_from(sorted(BINARY)))]
        b, fb = draw(_pairs(depth - 1))
        return make(a, b), lambda v: plain(fa(v), fb(v))
    make, plain = DIVISIONS[draw(st.sampled_from(sorted(DIVISIONS)))]
    if kind == "division":
        n = draw(st.integers(1, 24))
        return make(a, n), lambda v: plain(fa(v), n)
    b, fb = draw(_pairs(depth - 1))
    b = index.maximum(b, 1)
    return make(a, b), lambda v: plain(fa(v), max(fb(v), 1))


@settings(max_examples=400, deadline=None)
@given(_pairs(), _values())
def test_every_constructor_means_integer_arithmetic(pair, values):
    e, plain = pair
    assert index.evaluate(e, values) == plain(values)


@settings(max_examples=300, deadline=None)
@given(_pairs(), _values())
def test_intervals_hold_the_value(pair, values):
    e = index.wrap(pair[0])
    got = index.evaluate(e, values)
    assert e.lo <= -index.INF or e.lo <= got
    assert e.hi >= index.INF or got <= e.hi


@settings(max_examples=300, deadline=None)
@given(_pairs(), _values())
def test_text_reads_back_as_python(pair, values):
    spelled = index.text(pair[0], lambda name: f"v_{name}")
    names = {f"v_{k}": v for k, v in values.items()}
    assert eval(spelled, {"min": min, "max": max}, names) == index.evaluate(pair[0], values)


@settings(max_examples=200, deadline=None)
@given(_pairs(), _pairs(2), _values())
def test_substitute_means_evaluating_the_replacement(pair, other, values):
    e, by = pair[0], other[0]
    inner = index.evaluate(by, values)
    assert index.evaluate(index.substitute(e, {J: by}), values) == index.evaluate(e, {**values, "j": inner})


@settings(max_examples=200, deadline=None)
@given(_pairs(), _values(), st.integers(-50, 50))
def test_coefficient_is_the_slope(pair, values, step):
    for s in SYMBOLS:
        k = index.coefficient(pair[0], s)
        if k is not None:
            moved = {**values, s.name: values[s.name] + step}
            assert index.evaluate(pair[0], moved) - index.evaluate(pair[0], values) == k * step


@settings(max_examples=200, deadline=None)
@given(_pairs(2), _pairs(2))
def test_equal_sums_and_products_are_one_object(a, b):
    assert index.add(a[0], b[0]) is index.add(b[0], a[0])
    assert index.mul(a[0], b[0]) is index.mul(b[0], a[0])
    assert index.minimum(a[0], b[0]) is index.minimum(b[0], a[0])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_delinearize_undoes_linear(shape, data):
    shape = tuple(shape)
    flat = sym("f", 0, math.prod(shape) - 1)
    parts = index.delinearize(flat, shape)
    at = data.draw(st.integers(0, flat.hi))
    numbers = [index.evaluate(p, {"f": at}) for p in parts]
    assert all(0 <= n < d for n, d in zip(numbers, shape, strict=True))
    assert sum(n * s for n, s in zip(numbers, index.contiguous_strides(shape), strict=True)) == at
    assert flat.hi == 0 or index.linear(parts, index.contiguous_strides(shape)) is flat


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_linear_then_delinearize_gives_the_indices_back(shape):
    shape = tuple(shape)
    at = tuple(sym(f"a{k}", 0, d - 1) if d > 1 else const(0) for k, d in enumerate(shape))
    back = index.delinearize(index.linear(at, index.contiguous_strides(shape)), shape)
    assert back == at


def test_sizes_past_two_to_the_31_stay_exact():
    n = sym("n", 0, 2**33)
    e = index.linear((n, const(2**20 + 1)), (2**21, 3))
    assert index.evaluate(e, {"n": 2**33}) == 2**54 + 3 * (2**20 + 1)
    assert e.hi == 2**54 + 3 * (2**20 + 1)
    assert index.product((2**20, 2**20)) == 2**40


def test_an_unknown_bound_stays_unknown():
    free = sym("free")
    assert (free - 5).hi >= index.INF
    assert index.floordiv(free - 5, 7).hi >= index.INF
    assert (const(3) - free).lo <= -index.INF
    assert index.mod(free - 5, free + 1).hi >= index.INF
    assert index.mod(5, free + 1).hi == 5


def test_simplifications_that_codegen_counts_on():
    assert (ROW * 8 + J) // 8 is index.add(ROW, J // 8)
    assert (ROW * 8 + sym("r", 0, 7)) % 8 is sym("r", 0, 7)
    assert (ROW // 4) * 4 + ROW % 4 is ROW
    assert (ROW // 4) * 12 + (ROW % 4) * 3 is index.mul(ROW, 3)
    assert ROW // 2 // 3 is ROW // 6
    assert 4 - ROW is index.add(index.mul(ROW, -1), 4)
    assert index.minimum(ROW, 41) is ROW
    assert (ROW * 2) * (J * 3) is index.mul(index.mul(ROW, J), 6)
    assert str(ROW - 1) == "i - 1"


def test_an_empty_dimension_has_no_index():
    assert index.delinearize(ROW, (3, 0)) == (ROW, const(0))


@pytest.mark.parametrize("f", [index.floordiv, index.mod])
@pytest.mark.parametrize("n", [0, -3])
def test_a_divisor_must_be_positive(f, n):
    with pytest.raises(ValueError, match="must be positive"):
        f(ROW, n)


def test_unwrap_and_symbols():
    assert index.unwrap(const(4)) == 4
    assert index.unwrap(ROW) is ROW
    assert index.symbols(ROW * J + index.minimum(K, 3)) == {ROW, J, K}
    assert isinstance(index.wrap(3), Expr)


# --- shapes with sizes that change between calls

N, M = sym("n", 1, 40), sym("m", 1)
_sizes = st.fixed_dictionaries({"n": st.integers(1, 7), "m": st.integers(1, 7)})
_dims = st.sampled_from((1, 2, 3, N, M, N + 1, M * 2, N * M, 4))
_shapes = st.lists(_dims, min_size=1, max_size=4).map(tuple)


def _flat(shape: tuple[Dim, ...]) -> Expr:
    return sym("f", 0, index.wrap(index.product(shape)).hi - 1)


@settings(max_examples=300, deadline=None)
@given(_shapes, _sizes, st.data())
def test_delinearize_takes_sizes_that_change(shape, sizes, data):
    flat, dims = _flat(shape), [index.evaluate(d, sizes) for d in shape]
    at = data.draw(st.integers(0, math.prod(dims) - 1))
    parts = index.delinearize(flat, shape)
    numbers = [index.evaluate(p, {**sizes, "f": at}) for p in parts]
    assert all(0 <= n < d for n, d in zip(numbers, dims, strict=True))
    assert index.evaluate(index.linear(parts, index.contiguous_strides(shape)), {**sizes, "f": at}) == at


@settings(max_examples=300, deadline=None)
@given(st.permutations((2, 3, N, M, N + 1)), st.permutations(range(5)), _sizes, st.data())
def test_views_of_moved_dimensions_mean_integer_arithmetic(shape, order, sizes, data):
    moved = tuple(shape[p] for p in order)
    flat = _flat(tuple(shape))
    at = data.draw(st.integers(0, math.prod(index.evaluate(d, sizes) for d in shape) - 1))
    parts = index.delinearize(flat, tuple(shape))
    place = index.linear(tuple(parts[p] for p in order), index.contiguous_strides(moved))
    plain = np.arange(math.prod(index.evaluate(d, sizes) for d in shape))
    plain = plain.reshape([index.evaluate(d, sizes) for d in moved]).transpose(np.argsort(order))
    assert index.evaluate(place, {**sizes, "f": at}) == plain.ravel()[at]
    joined = (index.unwrap(index.product(moved[:2])), *moved[2:])
    for view in (moved, joined):
        again = index.linear(index.delinearize(place, view), index.contiguous_strides(view))
        assert index.evaluate(again, {**sizes, "f": at}) == plain.ravel()[at]


@settings(max_examples=300, deadline=None)
@given(_pairs(2), st.sampled_from((N, M, N + 1, M * 3, N * M)), _values(), _sizes)
def test_division_by_a_size_means_integer_division(pair, size, values, sizes):
    e, plain = pair
    known, n = {**values, **sizes}, index.evaluate(size, sizes)
    for whole, number in ((e, plain(values)), (e + size * 5, plain(values) + 5 * n)):
        assert index.evaluate(index.floordiv(whole, size), known) == number // n
        assert index.evaluate(index.mod(whole, size), known) == number % n
        joined = index.floordiv(whole, size) * size * 7 + index.mod(whole, size) * 7
        assert index.evaluate(joined, known) == number * 7


def test_positions_in_shapes_with_sizes_join_again():
    heads = (N, 12, M, 32)
    for shape in ((N, M, 384), (4, M, N, 8), (1, N, 6), (N, M + 1, 8), heads):
        flat = _flat(shape)
        assert index.linear(index.delinearize(flat, shape), index.contiguous_strides(shape)) is flat
    n, h, m, c = index.delinearize(_flat(heads), heads)
    place = index.linear((n, m, h, c), index.contiguous_strides((N, M, 12, 32)))
    assert index.delinearize(place, (N, M, 384)) == (n, m, h * 32 + c)
    assert index.mod(index.mod(N, M) + M * 3, M) is index.mod(N, M)
    assert index.floordiv(index.mod(N, M), M) is const(0)
    assert index.floordiv(index.mod(N, M) * 12 + sym("r", 0, 11), M * 12) is const(0)


def test_what_is_less_than_a_step_has_no_say_in_a_division() -> None:
    row, col = sym("row", 0, 1023), sym("col", 0, 127)
    flat = row * 128 + col
    assert index.floordiv(flat, 1024) is index.floordiv(row, 8)
    assert index.mod(flat, 1024) is index.add(index.mul(index.mod(row, 8), 128), col)


def test_two_digits_become_one() -> None:
    col = sym("col", 0, 32 * 56 * 56 - 1)
    digits = index.delinearize(col, (32, 56, 56))
    assert index.linear(digits, (802816, 56, 1)) is index.floordiv(col, 3136) * 802816 + index.mod(col, 3136)
