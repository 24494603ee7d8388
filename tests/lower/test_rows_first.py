"""Rows that are computed before they are multiplied. In: a norm and what multiplies it. Out: two kernels, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32
from interfuse.ir.layout import contiguous
from interfuse.lower.domain import inside
from interfuse.lower.families import lower
from interfuse.lower.kernel import Load, walk
from interfuse.lower.rows_first import rows_first
from interfuse.lower.target import CPU, GPU
from interfuse.lower.work import Work
from tests import few


def _work(region: few.Region) -> Work:
    inputs, outputs = region
    return Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)})


@pytest.mark.parametrize("rows", (1, 8))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_a_norm_is_computed_once_and_multiplied_as_eager_rounds_it(dtype, rows: int) -> None:  # type: ignore[no-untyped-def]
    works = rows_first(_work(few.normed(dtype, (rows, 512, 256), True)), GPU)
    (first, _), (second, reads) = (lower("k", w, GPU) for w in works)
    assert first.family == "row, resident" and second.family == "product"
    normal, twice = works[0].outputs
    assert normal.dtype is dtype and normal.shape == (rows, 256) and normal in reads
    assert twice in _work(few.normed(dtype, (rows, 512, 256), True)).outputs, "what does not wait goes first"
    assert sum(isinstance(s, Load) for s in walk(second.body)) == 3


def test_a_product_that_rounding_was_left_out_before_is_rounded_all_the_same() -> None:
    """Passes leave out a rounding that nothing discrete sees: what is multiplied is f32 then."""
    x, w = b.placeholder("x", F16, (4, 64)), b.placeholder("w", F16, (32, 64))
    along = b.expand(b.reshape(b.apply("tanh", b.cast(x, F32)), (4, 1, 64)), (4, 32, 64))
    terms = b.apply("mul", along, b.expand(b.reshape(b.cast(w, F32), (1, 32, 64)), (4, 32, 64)))
    out = b.cast(b.reduce("sum", terms, (2,)), F16)
    one, two = rows_first(_work(([x, w], [out])), GPU)
    assert [n.dtype for n in one.outputs] == [F16] and lower("k", two, GPU)[0].family == "product"
    assert not any(n.op == "tanh" for n in inside(two.roots, two.inputs))


def test_nothing_is_cut_where_the_rows_are_there_or_needed_outside_or_nothing_multiplies() -> None:
    assert rows_first(_work(few.gated(F16, (4, 64, 64), False)), GPU) == ()
    work = _work(few.normed(F16, (4, 64, 64), False))
    assert rows_first(work, CPU) == ()
    normal = rows_first(work, GPU)[0].outputs[0]
    layouts = {**work.layouts, normal: contiguous(normal.shape)}
    assert rows_first(replace(work, outputs=(*work.outputs, normal), layouts=layouts), GPU) == ()
    x = b.placeholder("x", F16, (4, 64))
    assert rows_first(_work(([x], [b.cast(b.reduce("sum", b.cast(x, F32), (1,)), F16)])), GPU) == ()
