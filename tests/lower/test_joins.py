"""Joined values in kernels: what they mean on the null device, which part is read where, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.cost.traffic import kernel_bytes
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.index import Expr, floordiv, sym
from interfuse.ir.index import evaluate as evaluate_index
from interfuse.lower.bounds import both, bound, holds, share
from interfuse.lower.kernel import Bound, Kernel, Load, bounds_of, walk
from interfuse.lower.target import CPU, GPU, Target
from tests import joins, null_device, symbolic, targets
from tests.strategies import arrays_for

ROW, COL, S = sym("row", 0, 29), sym("col", 0, 63), sym("s0")
AXES = {ROW: 30, COL: 64}


@pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)
@pytest.mark.parametrize("name", joins.CASES)
def test_kernels_mean_what_the_nodes_mean(name: str, target: Target) -> None:
    inputs, outputs = joins.CASES[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), target)
    arrays = arrays_for(inputs)
    got = null_device.run(kernel, [arrays[r].ravel() for r in reads], [math.prod(o.shape) for o in outputs])
    for array, node, exact in zip(got, outputs, evaluate(outputs, arrays, True), strict=True):
        wide = array.reshape(node.shape).astype(np.float64)
        np.testing.assert_allclose(wide, exact, rtol=max(2e-5, node.dtype.ulp), atol=max(2e-6, node.dtype.ulp))


BOUNDS = (
    (COL, 0, 64, True),
    (COL, 64, 70, False),
    (COL, 0, 32, Bound(COL, None, 32)),
    (COL - 32, 0, 32, Bound(COL, 32, None)),
    (COL // 8, 2, 5, Bound(COL, 16, 40)),
    (COL * 8 + 3, 0, 20, Bound(COL, None, 3)),
    (COL * -1 + 63, 0, 10, Bound(COL, 54, None)),
    (ROW * 64 + COL, 128, 640, Bound(ROW, 2, 10)),
    (ROW * 64 + COL, 100, 640, Bound(ROW * 64 + COL, 100, 640)),
    (COL % 16, 4, 16, Bound(COL % 16, 4, None)),
    (COL // 8 - S, 0, 1, Bound(COL, S * 8, S * 8 + 8)),
    ((COL * 3 + S) // 5, 2, 4, Bound(COL, floordiv(12 - S, 3), floordiv(22 - S, 3))),
)


@pytest.mark.parametrize(("index", "lo", "hi", "wanted"), BOUNDS, ids=lambda v: str(v).replace(" ", ""))
def test_bounds_become_plain(index: Expr, lo: int, hi: int, wanted: Bound | bool) -> None:
    assert bound(index, lo, hi, AXES) == wanted
    for row, col, size in itertools.product(range(30), range(64), (0, 3, 7)):
        at = {"row": row, "col": col, "s0": size}
        inside = wanted
        if isinstance(wanted, Bound):
            found = evaluate_index(wanted.expr, at)
            low = wanted.lo is None or found >= evaluate_index(wanted.lo, at)
            high = wanted.hi is None or found < evaluate_index(wanted.hi, at)
            inside = low and high
        assert inside == (lo <= evaluate_index(index, at) < hi)


def test_what_is_known_decides_a_bound() -> None:
    known = (Bound(COL, 8, 24),)
    assert holds(Bound(COL, None, 24), known) is True and holds(Bound(COL, 4, 30), known) is True
    assert holds(Bound(COL, 24, None), known) is False and holds(Bound(COL, None, 8), known) is False
    assert holds(Bound(COL, 9, None), known) is None and holds(Bound(ROW, 9, None), known) is None
    assert both(known, Bound(COL, 10, None)) == (Bound(COL, 10, 24),)
    assert share(known[0], {"col": 64}, {}) == 0.25 and share(Bound(COL % 16, 4, None), {"col": 64}, {}) == 0.75


def _loads(kernel: Kernel) -> list[tuple[str, str]]:
    return [(s.param, " ".join(map(repr, bounds_of(s)))) for s in walk(kernel.body) if isinstance(s, Load)]


def test_rotary_embedding_is_one_kernel_that_reads_each_element_once() -> None:
    inputs, outputs = joins.CASES["rotary"]()
    for target in (CPU, GPU):
        kernel, _ = symbolic.lowered((inputs, outputs), target)
        elements = 2 * (2 * 3 * 5 * 22) + 2 * (5 * 22)
        assert kernel_bytes(kernel) == 4 * elements and len(_loads(kernel)) == 5


def test_a_part_of_a_wider_buffer_counts_as_it_is_read() -> None:
    x, y = b.placeholder("x", F32, (8, 64)), b.placeholder("y", F32, (8, 16))
    joined = b.concat([b.take_slice(x, (0, 16), (8, 16)), y], 1)
    kernel, _ = symbolic.lowered(([x, y], [joined]), CPU)
    assert kernel_bytes(kernel) == 4 * 8 * (16 + 16 + 32)


def test_on_a_cpu_a_part_is_a_piece_of_the_columns() -> None:
    inputs, outputs = joins.CASES["rotary"]()
    tested = {b.expr for s in walk(symbolic.lowered((inputs, outputs), CPU)[0].body) for b in bounds_of(s)}
    assert [str(e) for e in tested] == ["col"]


def test_many_parts_are_refused() -> None:
    xs = [b.placeholder(f"x{k}", F32, (4, 3)) for k in range(9)]
    with pytest.raises(UnsupportedError, match="joins 9 parts: one kernel takes 8 at most"):
        symbolic.lowered((xs, [b.concat(xs, 1)]), CPU)
    twos = [b.concat(xs[k : k + 6], 1) for k in range(3)]
    with pytest.raises(UnsupportedError, match="joins 18 parts in all"):
        symbolic.lowered((xs, [b.apply("add", b.apply("add", twos[0], twos[1]), twos[2])]), CPU)


@pytest.mark.parametrize("name", ("reflected", "replicated"))
def test_a_gpu_reads_parts_of_one_value_at_one_index(name: str) -> None:
    gpu, cpu = (_loads(symbolic.lowered(joins.CASES[name](), target)[0]) for target in (GPU, CPU))
    assert gpu == [("x", "")] and len(cpu) == (9 if name == "reflected" else 3)


def test_parts_that_no_index_follows_keep_their_bounds() -> None:
    inputs, outputs = joins.CASES["rolled"]()
    assert len(_loads(symbolic.lowered((inputs, outputs), GPU)[0])) == 5


@pytest.mark.parametrize("target", [CPU, GPU], ids=lambda t: t.backend)
def test_parts_in_another_order_are_refused_where_sizes_change(target: Target) -> None:
    """Where each element lies would be worked out by dividing, a few times for every element of every lane."""
    symbolic.lowered(joins.kept_and_multiplied(33), target)
    with pytest.raises(UnsupportedError, match="joined parts are needed in another order than they are made"):
        symbolic.lowered(joins.kept_and_multiplied(S), target)
    (past, new, query), (cache, scores) = joins.kept_and_multiplied(S)
    for alone in (cache, scores):
        symbolic.lowered(([past, new, query], [alone]), target)
