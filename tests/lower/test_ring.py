"""Rows that go by way of a ring. In: regions. Out: blocks, chunks and walks that fit it, or why there is no ring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I8, DType
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel, Loop
from interfuse.lower.ring import FAMILY, steps_of
from interfuse.lower.schedule import Schedule, schedule_of
from interfuse.lower.target import GPU, Target
from tests import rings
from tests.emit import triton_cases as cases

HOPPER = replace(GPU, ring=227 << 10)


def _lowered(
    inputs: list[Node], outputs: list[Node], target: Target = HOPPER, schedule: Schedule | None = None
) -> Kernel:
    return rings.lowered((inputs, outputs), target, schedule)[0]


@pytest.mark.parametrize(
    ("dtype", "cols", "block"), ((F16, 4096, 16), (F16, 1024, 32), (F16, 768, 32), (F32, 4096, 8), (F32, 1024, 16))
)
def test_blocks_and_chunks_fit(dtype: DType, cols: int, block: int) -> None:
    kernel = _lowered(*cases.turned_norm_region(dtype, 65536, cols, False))
    row, col = kernel.axes
    step = row.block * col.block * dtype.bytes
    assert kernel.family == FAMILY and row.block == block and cols % (col.block * steps_of(col)) == 0
    assert kernel.ring * steps_of(col) * step <= HOPPER.ring and kernel.ring * steps_of(col) * col.block >= 1.5 * cols
    assert not any(isinstance(s, Loop) and s.backwards for s in kernel.body), "chunks come in one order"


def test_a_schedule_says_the_same_again_and_nothing_else() -> None:
    region = cases.turned_norm_region(F16, 65536, 1024, False)
    kernel = _lowered(*region)
    assert _lowered(*region, schedule=schedule_of(kernel, "triton")) == kernel
    for other in (Schedule(blocks=(("row", 64),)), Schedule(warps=4), Schedule(streamed=True), Schedule(stages=3)):
        with pytest.raises(UnsupportedError, match="a ring"):
            _lowered(*region, schedule=other)


def _across(x: Node, y: Node) -> tuple[list[Node], list[Node]]:
    return [x], [b.apply("copy", b.permute(y, (1, 0)))]


def _over_sum(x: Node) -> Node:
    return b.apply("div", x, b.spread_over(b.reduce("sum", x, (1,)), x, (1,)))


def test_what_takes_fewer_registers_than_moments_has_twice_as_many_rows() -> None:
    x = b.placeholder("x", F32, (65536, 1024))
    assert [a.block for a in _lowered(*_across(x, _over_sum(x))).axes] == [32, 128]


def test_no_ring() -> None:
    norm = cases.turned_norm_region
    x = b.placeholder("x", F32, (65536, 512))
    ranks = b.apply("add", x, b.spread_over(b.cast(b.reduce("argmax", x, (1,)), F32), x, (1,)))
    written = _across(x, _over_sum(x))
    written[1].append(b.apply("mul", x, x))
    bytes_ = b.placeholder("x", I8, (65536, 512))
    for (inputs, outputs), target, why in (
        (norm(F16, 65536, 4096, False), GPU, "no such memory"),
        (norm(F16, 65536, 4096, True), HOPPER, "whole vectors"),
        (norm(F16, 65536, 8192, False), HOPPER, "too long"),
        (norm(F16, 2048, 4096, False), HOPPER, "too few"),
        (norm(F16, 65544, 4096, False), HOPPER, "too short"),
        (norm(F16, 65536, 1000, False), HOPPER, "whole steps"),
        (norm(F16, 65536, 1001, False), HOPPER, "whole vectors"),
        (_across(x, ranks), HOPPER, "places of elements"),
        (([x], [_over_sum(x)]), HOPPER, "nothing lies across"),
        (written, HOPPER, "before all of them is reduced"),
        (_across(bytes_, b.cast(_over_sum(b.cast(bytes_, F32)), I8)), HOPPER, "whole vectors"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            _lowered(inputs, outputs, target)
