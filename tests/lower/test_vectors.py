"""Rows that begin at any element, maps that end at any. In: rows of many widths, maps of many sizes. Out: which are
walked in whole vectors.
"""

from __future__ import annotations

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, I8, DType
from interfuse.ir.index import Dim
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Role
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests.emit.triton_cases import odd_map
from tests.symbolic import BATCH, LENGTH, Region


def _largest(dtype: DType, cols: int, stride: int = 0, target: Target = GPU, more: Node | None = None) -> Kernel:
    """x less the largest element of its row; `more` is added to each row."""
    x = b.placeholder("x", dtype, (200, cols))
    wide = b.cast(x, F32) if dtype.is_narrow else x
    wide = wide if more is None else b.apply("add", wide, b.expand(b.cast(more, F32), wide.shape))
    out = b.apply("sub", wide, b.expand(b.reduce("max", wide, (1,), keepdims=True), wide.shape))
    out = b.cast(out, dtype) if dtype.is_narrow else out
    inputs = frozenset((x,) if more is None else (x, more))
    layouts = {n: contiguous(n.shape) for n in (*inputs, out)} | ({x: Layout((stride, 1))} if stride else {})
    return lower("k", Work((out,), inputs, layouts), target)[0]


@pytest.mark.parametrize(("dtype", "vector"), ((F32, 1), (F16, 8), (BF16, 8)))
def test_odd_rows_of_narrow_elements_are_walked_in_vectors(dtype: DType, vector: int) -> None:
    col = _largest(dtype, 50257).axes[-1]
    assert (col.vector, str(col.origin)) == (vector, "row * 50257" if vector > 1 else "0")


@pytest.mark.parametrize(
    ("cols", "vector"), ((4095, 2), (4093, 4), (4085, 8), (4096, 1), (4080, 1), (3001, 1), (2047, 1))
)
def test_odd_rows_that_fill_their_tile_are_held_in_vectors(cols: int, vector: int) -> None:
    kernel = _largest(F16, cols)
    assert kernel.axes[-1].role is Role.TILE and kernel.axes[-1].vector == vector
    assert _largest(F32, cols).axes[-1].vector == 1
    weights = b.placeholder("w", F16, (1, cols))
    assert _largest(F16, cols, more=weights).axes[-1].vector == vector, "what rows share is read by itself"
    assert _largest(F16, cols, stride=cols + 3).axes[-1].vector < max(2, vector), "rows that lie otherwise"


def test_scans_of_odd_rows_are_held_in_vectors() -> None:
    for cols, vector in ((3001, 4), (769, 4), (1023, 2), (3000, 1)):
        x = b.placeholder("x", F16, (200, cols))
        out = b.scan("cumsum", b.cast(x, F32), 1)
        kernel, _ = lower("k", Work((out,), frozenset((x,)), {n: contiguous(n.shape) for n in (x, out)}), GPU)
        assert kernel.axes[-1].vector == vector


@pytest.mark.parametrize("cols", (50256, 131072), ids=("aligned", "power"))
def test_other_rows_are_not(cols: int) -> None:
    assert _largest(F16, cols).axes[-1].vector == 1


def test_all_rows_must_lie_alike() -> None:
    assert _largest(F16, 50257, stride=50257 + 8).axes[-1].vector == 8
    assert _largest(F16, 50257, stride=50258).axes[-1].vector == 1
    weights = b.placeholder("w", F16, (1, 50257))
    assert _largest(F16, 50257, more=weights).axes[-1].vector == 1


def test_moments_and_cpus_walk_from_the_first_element() -> None:
    assert _largest(F32, 50257, target=CPU).axes[-1].vector == 1
    x = b.placeholder("x", F32, (200, 50257))
    out = b.reduce("variance", x, (1,), correction=1)
    kernel, _ = lower("k", Work((out,), frozenset((x,)), {n: contiguous(n.shape) for n in (x, out)}), GPU)
    assert kernel.family == "row, streamed" and kernel.axes[-1].vector == 1


def _map(dtype: DType, shape: tuple[Dim, ...], to: DType | None = None, region: Region | None = None) -> Axis:
    inputs, outputs = region or odd_map(dtype, shape, to)
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    kernel, _ = lower("k", Work(tuple(outputs), frozenset(inputs), layouts), GPU)
    assert kernel.family == "map" and kernel.reduction_order == ""
    return kernel.axes[-1]


@pytest.mark.parametrize(
    ("shape", "dtype", "to", "vector"),
    (
        ((363, 4257), F16, F16, 8),
        ((363, 4257), F16, F32, 4),
        ((363, 4257), BF16, I8, 8),
        ((363, 4257), F32, F32, 1),
        ((363, 4258), F16, F16, 8),
        ((363, 4256), F16, F16, 1),
        ((3, 101), F16, F16, 1),
        ((BATCH, LENGTH), F16, F16, 8),
        ((BATCH, 64), F16, F16, 1),
    ),
    ids=str,
)
def test_maps_that_may_end_within_a_vector(shape: tuple[Dim, ...], dtype: DType, to: DType, vector: int) -> None:
    assert _map(dtype, shape, to).vector == vector


def test_what_a_map_reads_elsewhere_is_read_element_by_element() -> None:
    x = b.placeholder("x", F16, (100005,))
    assert _map(F16, (), region=([x], [b.cast(b.take_slice(x, (1,), (100003,)), F32)])).vector == 4
