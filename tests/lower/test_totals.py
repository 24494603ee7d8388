"""Totals of what rows give. In: a loss of labels. Out: two kernels, of which the first reads the scores once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I64
from interfuse.ir.index import wrap
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Load, Loop, Reduce, Role, walk
from interfuse.lower.target import GPU
from interfuse.lower.totals import totals
from interfuse.lower.work import Work


def _loss(rows: int, cols: int) -> tuple[list[Node], Node]:
    x, label = b.placeholder("x", F16, (rows, cols)), b.placeholder("label", I64, (rows, 1))
    wide = b.cast(x, F32)
    shifted = b.apply("sub", wide, b.expand(b.reduce("max", wide, (1,), keepdims=True), wide.shape))
    total = b.reduce("sum", b.apply("exp", shifted), (1,), keepdims=True)
    log = b.apply("sub", shifted, b.expand(b.apply("log", total), wide.shape))
    return [x, label], b.reduce("sum", b.apply("neg", b.gather(log, label, 1)), (0, 1))


def test_scores_are_read_once_and_errors_summed_after() -> None:
    inputs, loss = _loss(8, 50257)
    layouts = {n: contiguous(n.shape) for n in (*inputs, loss)}
    works = totals(Work((loss,), frozenset(inputs), layouts), GPU)
    assert len(works) == 2
    (first, _), (second, reads) = (lower("k", w, GPU) for w in works)
    assert sum(isinstance(s, Loop) for s in first.body) == 1, "one pass over the scores"
    assert [s.op for s in walk(first.body) if isinstance(s, Reduce)].count("expsum") == 1
    assert sum(isinstance(s, Load) and bool(s.picks) for s in walk(first.body)) == 1
    assert inputs[0] not in reads and np.prod(second.params[0].shape) == 8


@pytest.mark.parametrize(("rows", "kernels"), ((1 << 13, 2), (1 << 14, 3), ((1 << 14) + 8, 2)))
def test_errors_of_many_rows_are_summed_in_parts(rows: int, kernels: int) -> None:
    inputs, loss = _loss(rows, 64)
    works = totals(Work((loss,), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, loss)}), GPU)
    made = [lower("k", w, GPU)[0] for w in works]
    programs = [math.prod(-(-wrap(a.extent).hi // a.block) for a in k.axes if a.role is Role.GRID) for k in made]
    assert programs[1:] == ([rows // 512, 1] if kernels == 3 else [1])


def test_nothing_waits_for_labels_before_the_scores_are_on_their_way() -> None:
    inputs, loss = _loss(8, 50257)
    first = totals(Work((loss,), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, loss)}), GPU)[0]
    body = lower("k", first, GPU)[0].body
    loop = next(k for k, s in enumerate(body) if isinstance(s, Loop))
    told = next(k for k, s in enumerate(body) if isinstance(s, Load) and s.picks)
    label = next(k for k, s in enumerate(body) if isinstance(s, Load) and s.param == "label")
    assert label < loop < told


def test_a_few_long_rows_are_added_up_by_as_many_threads_as_help() -> None:
    x, y = (b.placeholder(name, F32, (2, 20000)) for name in "xy")
    outs = tuple(b.reduce("sum", n, (1,)) for n in (x, y))
    work = Work(outs, frozenset((x, y)), {n: contiguous(n.shape) for n in (x, y, *outs)})
    kernel, _ = lower("k", work, GPU)
    assert kernel.axes[-1] == Axis("col", 20000, Role.TILE, 32768) and kernel.warps == 32
    body = walk(kernel.body)
    assert [type(s) for s in body[:4]] == [Load, Load, Reduce, Reduce], "nothing waits for the first sum"


def test_rows_alone_have_no_totals() -> None:
    x = b.placeholder("x", F32, (8, 64))
    out = b.reduce("sum", x, (1,))
    assert totals(Work((out,), frozenset((x,)), {n: contiguous(n.shape) for n in (x, out)}), GPU) == ()
