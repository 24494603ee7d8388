"""Largest elements of rows that are scaled. In: norms in front of 8-bit codes. Out: one pass, the same values."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, I8
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.factors import largest_first
from interfuse.lower.families import lower
from interfuse.lower.kernel import Loop, Reduce
from interfuse.lower.target import CPU, GPU
from interfuse.lower.work import Work
from tests.emit.code_cases import codes, normed

X, W = b.placeholder("x", F32, (9, 4096)), b.placeholder("w", F32, (4096,))


def _passes(outputs: list[Node], target=GPU) -> list[int]:  # type: ignore[no-untyped-def]
    """The reductions of each pass over a row."""
    inputs = frozenset((X, W))
    kernel, _ = lower("k", Work(tuple(outputs), inputs, {n: contiguous(n.shape) for n in (*inputs, *outputs)}), target)
    return [sum(isinstance(s, Reduce) for s in loop.body) for loop in kernel.body if isinstance(loop, Loop)]


def test_a_norm_and_the_scale_of_its_codes_are_reduced_in_one_pass() -> None:
    assert _passes([codes(normed(X, W), I8)]) == [2, 0]
    assert _passes([codes(normed(X), I8, least=1e-4)]) == [2, 0], "without weights"
    assert len(_passes([codes(normed(X, W), I8)], CPU)) == 3
    work = Work((codes(normed(X, W), I8),), frozenset((X, W)), {n: contiguous(n.shape) for n in (X, W)})
    layouts = {**work.layouts, work.outputs[0]: contiguous(X.shape)}
    text = emit(lower("k", Work(work.outputs, work.inputs, layouts), GPU)[0]).text
    assert "total, top = tl.reduce((power, size), 0, plus_and_max)" in text
    assert "codes_near(mul, div, (-127.0), 127.0)" in text and text.count("tl.reduce(") == 1


def test_the_values_are_the_same() -> None:
    """Rows of infinities, NaN, zeros and subnormals too: rows whose squares are no numbers stay such rows."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((9, 4096)), rng.standard_normal(4096)
    x[1], x[2], x[3, 5], x[4, 7:9], x[5, :9], w[3] = 0, 1e-30, np.nan, (np.inf, -np.inf), np.inf, 0
    x[6], x[7] = 1e25, x[7] * 1e15
    given = {X: x.astype(np.float32), W: w.astype(np.float32)}
    for scaled in (normed(X, W), normed(X)):
        top = b.reduce("max", b.apply("abs", scaled), (1,))
        (one,) = largest_first((top,), frozenset((X, W)))
        assert one is not top
        with np.errstate(all="ignore"):
            (got,), (wanted,) = evaluate([one], given), evaluate([top], given)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ("other", "negative", "columns", "self", "sum"))
def test_what_stays(kind: str) -> None:
    """A factor of something else, one that may be negative, one of columns, a square; and what is no maximum."""
    y = normed(X, W)
    factor = y.inputs[0].inputs[1]
    kept = factor.inputs[0]
    if kind == "other":
        y = b.apply("mul", b.broadcast(W, X.shape), factor)
    elif kind == "negative":
        y = b.apply("mul", X, b.expand(b.apply("neg", kept), X.shape))
    elif kind == "columns":
        y = b.apply("mul", X, b.apply("rsqrt", b.broadcast(b.reduce("sum", b.apply("mul", X, X), (0,)), X.shape)))
    elif kind == "self":
        y = b.apply("mul", y, y)
    largest = b.reduce("sum" if kind == "sum" else "max", b.apply("abs", y), (1,))
    assert largest_first((largest,), frozenset((X, W))) == (largest,)
