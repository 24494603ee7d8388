"""Reductions in parts. In: regions with few long reductions. Out: kernels that follow each other and mean the same."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I64
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower import split as module
from interfuse.lower.domain import Domain
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Load, Reduce, walk
from interfuse.lower.split import Parts, parts_of, split
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests import null_device, online, parts, targets
from tests.emit import triton_cases as cases
from tests.judge import judge_region

TARGETS = {"cpu": CPU, "gpu": GPU, "gpu-streamed": targets.GPUS["gpu-streamed"]}


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few elements, so that short rows are cut."""
    monkeypatch.setattr(module, "PARTED", 0)
    monkeypatch.setattr(module, "PART", 128)


def run(region: parts.Region, target: Target, arrays: dict[Node, np.ndarray]) -> list[np.ndarray]:
    def on_null(kernel: Kernel, given: list[np.ndarray], outputs: tuple[Node, ...]) -> list[np.ndarray]:
        return null_device.run(kernel, given, [math.prod(n.shape) for n in outputs])

    return parts.in_order(region, target, arrays, on_null)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("name", "shape"), parts.CUT)
def test_parts_mean_what_the_whole_means(name: str, shape: str, target: Target) -> None:
    sizes, axis = parts.SHAPES[shape]
    for dtype in (F32, F16, I64) if name == "every" else (F32,) if name == "places" else (F32, F16):
        region = parts.REGIONS[name](dtype, sizes, axis)
        if name == "places" and "odd" in shape:
            assert not parts.works(region, target), "no kernel joins places of parts of two lengths"
            continue
        for data in online.DATA.values() if dtype is F32 else (online.DATA["random"],):
            array = (data(sizes, online.axes_of(axis)[-1]) * (1 if dtype.is_float else 9)).astype(dtype.numpy)
            verdict = judge_region(region[1], {region[0][0]: array}, run(region, target, {region[0][0]: array}))
            assert verdict.ok, verdict.note


def test_equal_elements_have_no_variance_and_their_own_mean() -> None:
    for sizes, axis in parts.SHAPES.values():
        region = online.moments(F32, sizes, axis)
        for value in (0.1, 88.7, -127.3, 1e5):
            mean, variance, normal = run(region, CPU, {region[0][0]: np.full(sizes, value, np.float32)})
            np.testing.assert_array_equal(mean, np.float32(value))
            np.testing.assert_array_equal(variance, 0)
            np.testing.assert_array_equal(normal, 0)


def test_the_first_of_equal_elements_is_found() -> None:
    region = parts.places(F32, (1, 960), 1)
    x = np.zeros((1, 960), np.float32)
    x[0, [400, 700]] = 1, 1
    largest, smallest, _ = run(region, GPU, {region[0][0]: x})
    assert (largest[0], smallest[0]) == (400, 0)


def test_what_is_left_is_few_kernels() -> None:
    x = b.placeholder("x", F32, (960,))
    assert len(parts.works(([x], [b.reduce("sum", x, (0,))]), CPU)) == 2, "parts, and what joins them"
    assert len(parts.works(online.softmax(F32, (3, 960), 1), CPU)) == 3, "and the rows"
    assert len(parts.works(online.softmax(F32, (3, 967), 1), CPU)) == 4, "and the elements past the last part"


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (Domain(200, 1 << 20, True), "rows for every unit"),
        (Domain(1, 64, True, 1 << 20), "columns for every unit"),
        (Domain(1, 40, True), "short"),
    ],
)
def test_what_keeps_the_device_busy_stays_whole(domain: Domain, why: str) -> None:
    assert parts_of(domain, GPU) is None, why


def test_parts_depend_on_sizes_alone() -> None:
    for cols in (1 << 20, 1000000, 1000003, 961):
        found = parts_of(Domain(2, cols, True), replace(CPU, programs=2))
        assert found is not None and found.count * found.width + found.rest == cols and found.rest < found.width
    assert parts_of(Domain(1, 1 << 24, True), GPU).count == 512  # type: ignore[union-attr]


def test_parts_whose_moments_are_wanted_are_held() -> None:
    group = Domain(128, 1 << 17, True)
    assert parts_of(group, GPU) == Parts(4, 1 << 15, 0) and parts_of(group, GPU, moments=True) == Parts(16, 1 << 13, 0)
    for long in (Domain(16, 1 << 20, True), Domain(128, 1 << 17, True, 2)):
        assert parts_of(long, GPU, moments=True) == parts_of(long, GPU), "too many to join, or columns"


def test_scans_stay_whole() -> None:
    x = b.placeholder("x", F32, (2, 960))
    assert not parts.works(([x], [b.scan("cumsum", x, 1)]), CPU)


def test_a_few_rows_are_joined_by_every_program_that_needs_them() -> None:
    inputs, outputs = cases.odd_region(F16, 8, 1 << 18)
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    works = split(Work((outputs[0],), frozenset(inputs), layouts), GPU)
    kernel, _ = lower("k", works[-1], GPU)
    assert len(works) == 2 and kernel.family == "map" and [a.name for a in kernel.axes] == ["part", "row", "col"]
    assert [s.op for s in walk(kernel.body) if isinstance(s, Reduce)] == ["max", "sum"]
    assert isinstance(kernel.body[0], Load) and kernel.body[0].param == "x", "on its way before the parts"
    assert len(split(Work((outputs[0],), frozenset(inputs), layouts), CPU)) == 3


@pytest.mark.parametrize(("channels", "image"), ((3, 320), (40, 24)), ids=("one a program", "several"))
def test_groups_are_joined_by_every_program_that_needs_them(channels: int, image: int) -> None:
    region = cases.groups_region(F32, 20, channels, image)
    works = parts.works(region, GPU)
    kernel, _ = lower("k", works[-1], GPU)
    assert len(works) == 2 and kernel.family == "map"
    assert isinstance(kernel.body[0], Load) and kernel.body[0].param == "x", "on its way before the parts"
    gain = np.random.default_rng(5).standard_normal((20, channels)).astype(np.float32)
    for make in online.DATA.values():
        given = {region[0][0]: make((20, channels * image), 1).astype(np.float32), region[0][1]: gain}
        verdict = judge_region(region[1], given, run(region, GPU, given))
        assert verdict.ok, verdict.note
