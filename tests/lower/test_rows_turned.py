"""Rows that one kernel reduces and another turns. In: norms beside a transpose. Out: two kernels, or none."""

from __future__ import annotations

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.early import early
from interfuse.lower.families import lower
from interfuse.lower.kernel import Load, Reduce, walk
from interfuse.lower.rows_turned import rows_turned
from interfuse.lower.target import CPU, GPU
from interfuse.lower.work import Work
from tests import online
from tests.emit import triton_cases as cases


def _work(inputs: list[Node], outputs: list[Node]) -> Work:
    return Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)})


@pytest.mark.parametrize("before", (False, True))
def test_rows_are_reduced_and_then_turned(before: bool) -> None:
    inputs, outputs = cases.turned_norm_region(F16, 2048, 4096, before)
    one, two = cases.first_and_turned((inputs, outputs), GPU)
    (first, _), (last, reads) = (lower("k", w, GPU) for w in (one, two))
    assert {p.dtype for p in first.params if p.mode == "out"} == {F32}, "a mean and a variance a row"
    assert last.family == "map" and not any(isinstance(s, Reduce) for s in walk(last.body))
    last = early(last, reads, two)
    assert last.awaits == ("mean", "variance") and isinstance(last.body[0], Load)
    assert last.body[0].param == "x", "what a cache has is on its way before the first kernel has ended"


def test_what_else_rows_give_is_the_first_kernels() -> None:
    inputs, outputs = cases.turned_region(F16, 256, 512, False)
    one, two = rows_turned(_work(inputs, outputs), GPU)
    assert two.outputs == (outputs[0],) and one.outputs[2:] == tuple(outputs[1:])


def test_no_two_kernels() -> None:
    many = cases.turned_norm_region(F16, 32768, 4096, False)
    assert rows_turned(_work(*many), GPU) == (), "a cache does not keep so many rows"
    assert rows_turned(_work(*cases.turned_norm_region(F16, 2048, 4096, False)), CPU) == ()
    assert rows_turned(_work(*online.moments(F16, (64, 512), 1)), GPU) == (), "nothing lies across"
    x = b.placeholder("x", F32, (64, 512))
    scan = b.apply("copy", b.permute(b.scan("cumsum", x, 1), (1, 0)))
    assert rows_turned(_work([x], [scan]), GPU) == ()
    total = b.reduce("sum", x, (1,))
    turned = b.apply("copy", b.permute(b.apply("mul", x, b.expand(b.reshape(total, (64, 1)), x.shape)), (1, 0)))
    assert rows_turned(_work([x], [turned, total]), GPU) == (), "what is given is a result as well"
