"""Indirect loads as kernels, on the null device against the tensor IR's meaning; what they read; what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, I64
from interfuse.lower.canonical import canonical
from interfuse.lower.kernel import Load, Role, operands, walk
from interfuse.lower.target import CPU, GPU, Target
from tests import gathers, null_device, symbolic, targets
from tests.gathers import rows
from tests.judge import judge_region

TARGETS = pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)


@TARGETS
@pytest.mark.parametrize("name", list(gathers.CASES))
def test_kernels_mean_what_the_nodes_mean(name: str, target: Target) -> None:
    region = gathers.CASES[name]()
    kernel, reads = symbolic.lowered(region, target)
    arrays = gathers.arrays(region)
    got = null_device.run(kernel, [arrays[r].ravel() for r in reads], [math.prod(o.shape) for o in region[1]])
    verdict = judge_region(region[1], arrays, [g.reshape(o.shape) for g, o in zip(got, region[1], strict=True)])
    assert verdict.ok, verdict.note


@TARGETS
@pytest.mark.parametrize("name", list(gathers.SYMBOLIC))
def test_one_kernel_serves_every_size(name: str, target: Target) -> None:
    region = gathers.SYMBOLIC[name]()
    kernel, reads = symbolic.lowered(region, target)
    for sizes in symbolic.SIZES:
        if name == "table_of_any_length" and sizes["s1"] == 0:
            continue  # nothing can be picked
        arrays = gathers.arrays(region, sizes)
        counts = [symbolic.count(o, sizes) for o in region[1]]
        got = null_device.run(kernel, [arrays[r].ravel() for r in reads], counts, sizes)
        shaped = [g.reshape(symbolic.shape_of(o, sizes)) for g, o in zip(got, region[1], strict=True)]
        verdict = judge_region(region[1], arrays, shaped, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


@TARGETS
def test_what_lies_outside_is_nan(target: Target) -> None:
    region = gathers.CASES["embedding"]()
    kernel, reads = symbolic.lowered(region, target)
    arrays = gathers.arrays(region)
    arrays[region[0][1]][1, 2] = 30
    (got,) = null_device.run(kernel, [arrays[r].ravel() for r in reads], [670])
    wrong = np.isnan(got.reshape(2, 5, 67))
    assert wrong[1, 2].all() and wrong.sum() == 67


def test_a_row_is_looked_up_once_and_read_in_vectors() -> None:
    kernel, _ = symbolic.lowered(gathers.CASES["embedding"](), CPU)
    assert [a.role for a in kernel.axes] == [Role.GRID, Role.SERIAL]
    (load,) = [s for s in walk(kernel.body) if isinstance(s, Load) and s.picks]
    assert operands(load)[0].axes == ("row",) and load.out.axes == ("row", "col")


def test_positions_that_surely_lie_inside_are_no_lookups() -> None:
    kernel, _ = symbolic.lowered(gathers.CASES["embeddings_and_norm"](), CPU)
    assert {p.value.name for p in kernel.picks} == {"ids", "kind"}


def test_equal_kernels_share_one_form() -> None:
    (one, _), (other, _) = (symbolic.lowered(_renamed(name), GPU) for name in ("ids", "tokens"))
    assert one != other and canonical(one) == canonical(other)


def _renamed(ids: str) -> gathers.Region:
    table, at = b.placeholder("table", F32, (9, 20)), b.placeholder(ids, I64, (4,))
    return [table, at], [b.apply("neg", rows(table, at))]


def test_each_element_is_computed_once() -> None:
    x, few, many = (b.placeholder(n, t, (k, 20)) for n, t, k in (("x", F32, 8), ("few", I64, 8), ("many", I64, 9)))
    computed = b.apply("exp", x)
    symbolic.lowered(([x, few], [b.gather(computed, few, 0)]), CPU)
    with pytest.raises(UnsupportedError, match="more elements than it has: each would be computed again"):
        symbolic.lowered(([x, many], [b.gather(computed, many, 0)]), CPU)


@TARGETS
def test_refusals_say_why(target: Target) -> None:
    x, at = b.placeholder("x", F32, (8, 20)), b.placeholder("at", I64, (8, 1))
    sums = b.reduce("sum", x, (1,), keepdims=True)
    with pytest.raises(UnsupportedError, match="another order than its rows"):
        symbolic.lowered(([x, at], [b.gather(sums, at, 0)]), target)
    with pytest.raises(UnsupportedError, match="the same at every index"):
        symbolic.lowered(([x, at], [b.gather(b.expand(sums, x.shape), at, 1)]), target)
    with pytest.raises(UnsupportedError, match="gathers from joined parts"):
        symbolic.lowered(([x, at], [b.gather(b.concat([x, x], 1), at, 1)]), target)
    with pytest.raises(UnsupportedError, match="another order than it is made"):
        symbolic.lowered(([x, at], [b.gather(b.scan("cumsum", x, 1), b.expand(at, x.shape), 1)]), target)
