"""Schedules: a kernel's own gives it again, others give the same values, and what an axis cannot have is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.schedule import Schedule, distance, neighbours, schedule_of
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests import null_device, targets
from tests.lower.test_families import MAKERS, Maker, _in, column_softmax, softmax, softmax_rows, two_outputs

TARGETS = pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)
ROOMY = replace(GPU, row_elements=4)
"""A GPU whose rows are streamed in steps as wide as usual."""


def _lowered(
    inputs: list[Node], outputs: list[Node], target: Target, schedule: Schedule | None = None
) -> tuple[Kernel, tuple[Node, ...]]:
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts), target, schedule=schedule)


@TARGETS
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_a_kernels_own_schedule_gives_it_again(maker: Maker, target: Target) -> None:
    kernel, _ = _lowered(*maker(), target)
    schedule = schedule_of(kernel, target.backend)
    assert _lowered(*maker(), target, schedule)[0] == kernel
    assert _lowered(*maker(), target, Schedule.from_json(schedule.to_json()))[0] == kernel


@pytest.mark.parametrize("target", (CPU, GPU, ROOMY), ids=("cpu", "gpu", "streamed"))
@pytest.mark.parametrize("maker", (softmax_rows, column_softmax, two_outputs), ids=lambda m: m.__name__)
def test_every_schedule_gives_the_same_values(maker: Maker, target: Target) -> None:
    inputs, outputs = maker()
    rng = np.random.default_rng(5)
    arrays = {i: rng.standard_normal(i.shape).astype(i.dtype.numpy) for i in inputs}
    exact = evaluate(outputs, arrays, True)
    own, _ = _lowered(inputs, outputs, target)
    found = neighbours(own, target.backend, target.lanes)
    assert found[0] == schedule_of(own, target.backend) and len(set(found)) == len(found)
    assert len(found) > 4 or target.backend == "cpp"
    for schedule in (*found, Schedule(streamed=True), Schedule(streamed=False)):
        try:
            kernel, reads = _lowered(inputs, outputs, target, schedule)
        except UnsupportedError:
            assert target is CPU and schedule.streamed is False, schedule  # a scratch row a column is more than it has
            continue
        got = null_device.run(kernel, [arrays[r].ravel() for r in reads], [math.prod(o.shape) for o in outputs])
        for array, node, wanted in zip(got, outputs, exact, strict=True):
            np.testing.assert_allclose(array.reshape(node.shape), wanted, rtol=2e-5, atol=2e-6, err_msg=str(schedule))


@pytest.mark.parametrize("maker", (softmax_rows, column_softmax), ids=lambda m: m.__name__)
@pytest.mark.parametrize("target", (GPU, ROOMY), ids=("held", "streamed"))
def test_what_orders_sums_is_in_the_key_of_their_bits(maker: Maker, target: Target) -> None:
    own, _ = _lowered(*maker(), target)
    keys: dict[str, Schedule] = {}
    for schedule in neighbours(own, "triton", 32):
        kernel, _ = _lowered(*maker(), target, schedule)
        plain = replace(schedule, stages=None)  # when a step is fetched changes no sum
        assert keys.setdefault(kernel.reduction_order, plain) == plain


@pytest.mark.parametrize(
    ("target", "schedule", "why"),
    [
        (GPU, Schedule((("col", 32),)), "col cannot be taken 32 at once"),
        (GPU, Schedule((("row", 3),)), "row cannot be taken 3 at once"),
        (GPU, Schedule((("line", 4),)), "names other axes than row, col"),
        (GPU, Schedule(warps=3), "a program has 1, 2, 4, 8, 16, 32 warps"),
        (CPU, Schedule((("row", 4),)), "row cannot be taken 4 at once"),
        (replace(CPU, scratch_bytes=0), Schedule(streamed=False), None),
    ],
    ids=lambda v: str(v) if isinstance(v, Schedule) else None,
)
def test_what_an_axis_cannot_have_is_refused(target: Target, schedule: Schedule, why: str | None) -> None:
    x = _in("x", 8, 64)
    if why is None:
        assert _lowered([x], [softmax(x)], target, schedule)[0].family == "row, resident"
        return
    with pytest.raises(UnsupportedError, match=why):
        _lowered([x], [softmax(x)], target, schedule)


def test_a_row_wider_than_any_program_cannot_be_held() -> None:
    x = _in("x", 2, 1 << 17)
    with pytest.raises(UnsupportedError, match="holds what does not fit on chip"):
        _lowered([x], [softmax(x)], GPU, Schedule(streamed=False))
    y = _in("y", 2, 1 << 15)
    held, _ = _lowered([y], [softmax(y)], GPU, Schedule(streamed=False, warps=32))
    assert held.family == "row, resident" and held.warps == 32
    assert _lowered([y], [softmax(y)], GPU)[0].family == "row, streamed"


def test_text_and_distance() -> None:
    one = Schedule((("row", 4), ("col", 1024)), 8, 3, True)
    assert str(one) == "row 4, col 1024, 8 warps, 3 stages, streamed" and str(Schedule()) == "as the family chooses"
    assert distance(one, one) == 0
    assert distance(one, Schedule((("row", 1), ("col", 2048)), 16, 2, True)) == 2 + 1 + 1 + 1
