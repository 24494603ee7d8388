"""Domains walked in the order of memory. In: regions over channels-last and transposed buffers. Out: their meaning, and
families that read side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower, walked
from interfuse.lower.kernel import Load, Store, walk
from interfuse.lower.split import split
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests import null_device, strategies, targets
from tests.judge import judge_region

Region = tuple[list[Node], list[Node]]
SHAPE = (2, 6, 4, 5)


def channels_last(shape: tuple[int, ...]) -> Layout:
    """[batch, channels, ...] with the channels last in memory."""
    _, channels, *image = shape
    inner = [channels * math.prod(image[k + 1 :]) for k in range(len(image))]
    return Layout((channels * math.prod(image), 1, *inner))


def norm(axes: tuple[int, ...], shape: tuple[int, ...] = SHAPE, groups: int = 0) -> Region:
    """Elements normalised over axes, of the channels in groups where there are some, and their largest."""
    x, w = b.placeholder("x", F32, shape), b.placeholder("w", F32, (shape[1], 1, 1))
    y = b.apply("mul", x, b.broadcast(w, shape))
    y = b.reshape(y, (shape[0], groups, shape[1] // groups, *shape[2:])) if groups else y
    mean = b.expand(b.reduce("mean", y, axes, keepdims=True), y.shape)
    variance = b.expand(b.reduce("variance", y, axes, keepdims=True, correction=0), y.shape)
    scale = b.apply("rsqrt", b.apply("add", variance, b.broadcast(b.constant(1e-5, F32), y.shape)))
    normal = b.reshape(b.apply("mul", b.apply("sub", y, mean), scale), shape)
    return [x, w], [normal, b.reduce("max", y, axes)]


def scan(axis: int) -> Region:
    """A running sum along an axis, in reverse."""
    x = b.placeholder("x", F32, SHAPE)
    return [x], [b.scan("cumsum", x, axis, True)]


def scaled() -> Region:
    """Element-wise work with a number a channel, and a sum of two images beside it."""
    x, y, w = b.placeholder("x", F32, SHAPE), b.placeholder("y", F32, SHAPE), b.placeholder("w", F32, (6, 1, 1))
    return [x, y, w], [b.apply("mul", x, b.broadcast(w, SHAPE)), b.apply("add", x, y)]


REGIONS = {
    "scaled": scaled(),
    "channels": norm((1,)),
    "batch": norm((0, 2, 3)),
    "image": norm((2, 3)),
    "groups": norm((2, 3, 4), groups=3),
    "running": scan(1),
    "running down": scan(2),
}


def work_of(region: Region) -> Work:
    inputs, outputs = region
    layouts = {n: channels_last(n.shape) if n.shape == SHAPE else contiguous(n.shape) for n in (*inputs, *outputs)}
    return Work(tuple(outputs), frozenset(inputs), layouts, tuple(outputs))


def in_memory(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The elements as they lie in a buffer."""
    order = np.argsort([-int(s) for s in layout.strides], kind="stable")  # type: ignore[arg-type]
    return array.transpose(order).ravel()


def back(flat: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The array whose elements lie so in a buffer."""
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(int(s) * flat.itemsize for s in layout.strides))  # type: ignore[arg-type]


def check(region: Region, works: tuple[Work, ...], target: Target) -> None:
    inputs, outputs = region
    rng = np.random.default_rng(2)
    arrays = {n: rng.standard_normal(n.shape).astype(np.float32) for n in inputs}
    whole = work_of(region)
    held = {n: in_memory(a, whole.layouts[n]) for n, a in arrays.items()}
    for work in works:
        kernel, reads = lower("kernel", work, target)
        got = null_device.run(kernel, [held[r] for r in reads], [math.prod(o.shape) for o in work.outputs])
        held |= zip(work.outputs, got, strict=True)
    for node, exact in zip(outputs, evaluate(outputs, arrays, True), strict=True):
        found = back(held[node], node.shape, whole.layouts[node])
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)
@pytest.mark.parametrize("name", REGIONS)
def test_kernels_mean_what_the_nodes_mean(name: str, target: Target) -> None:
    check(REGIONS[name], (work_of(REGIONS[name]),), target)


def in_order(shape: tuple[int, ...], order: Sequence[int]) -> Layout:
    """Dense, with the dimensions lying in this order."""
    steps = [math.prod(shape[k] for k in order[at + 1 :]) for at in range(len(order))]
    return Layout(tuple(steps[order.index(k)] for k in range(len(shape))))


@settings(max_examples=60)
@given(st.data(), strategies.regions(), st.sampled_from(sorted(targets.ALL)))
def test_regions_over_buffers_in_any_order(data: st.DataObject, region: Region, target: str) -> None:
    inputs, outputs = region
    # Mostly one order for all of a rank: then it is walked.
    orders = {len(n.shape): data.draw(st.permutations(range(len(n.shape)))) for n in (*inputs, *outputs)}
    layouts = {}
    for n in (*inputs, *outputs):
        own = data.draw(st.sampled_from((orders[len(n.shape)],) * 4 + (tuple(range(len(n.shape))),)))
        layouts[n] = in_order(n.shape, own)
    outputs = list(dict.fromkeys(outputs))
    rng = np.random.default_rng(7)
    arrays = {n: (rng.standard_normal(n.shape) * 2).astype(n.dtype.numpy) for n in inputs}
    work = Work(tuple(outputs), frozenset(inputs), layouts)
    kernel, reads = lower("kernel", work, targets.ALL[target])
    held = [in_memory(arrays[r], layouts[r]) for r in reads]
    got = null_device.run(kernel, held, [math.prod(o.shape) for o in outputs])
    found = [back(g, o.shape, layouts[o]) for g, o in zip(got, outputs, strict=True)]
    verdict = judge_region(outputs, arrays, found)
    assert verdict.ok, verdict.note


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", ["batch", "image", "groups"])
def test_parts_mean_what_the_whole_means(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interfuse.lower.split.PARTED", 0)
    monkeypatch.setattr("interfuse.lower.split.PART", 16)
    works = split(work_of(REGIONS[name]), target)
    assert len(works) > 1
    check(REGIONS[name], works, target)


@pytest.mark.parametrize(
    ("name", "kinds", "inner"),
    [
        ("channels", ["row", "row", "col"], 1),
        ("batch", ["col", "col", "inner"], 6),
        ("image", ["row", "col", "inner"], 6),
    ],
)
def test_what_lies_last_in_memory_is_walked_last(name: str, kinds: list[str], inner: int) -> None:
    domain = walked(work_of(REGIONS[name]), GPU)
    assert [d.kind for d in domain.digits] == kinds and domain.inner == inner


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_element_wise_work_is_one_walk_through_memory(target: Target) -> None:
    kernel, _ = lower("kernel", work_of(REGIONS["scaled"]), target)
    accesses = [s for s in walk(kernel.body) if isinstance(s, (Load, Store))]
    assert {str(s.index) for s in accesses} == {"row * 6 + col", "col"}
    inputs, outputs = REGIONS["scaled"]
    both = Work((outputs[1],), frozenset(inputs[:2]), work_of(REGIONS["scaled"]).layouts)
    assert lower("kernel", both, target)[0].axes[0].extent == math.prod(SHAPE)


def test_groups_of_channels_are_columns_apart() -> None:
    domain = walked(work_of(REGIONS["groups"]), GPU)
    assert [(d.kind, d.size) for d in domain.digits] == [("row", 2), ("col", 20), ("row", 3), ("col", 2)]


def test_accesses_in_two_orders_leave_the_domain_as_it_is() -> None:
    inputs, outputs = REGIONS["channels"]
    layouts = dict(work_of(REGIONS["channels"]).layouts) | {outputs[0]: contiguous(SHAPE)}
    domain = walked(Work(tuple(outputs), frozenset(inputs), layouts, tuple(outputs)), GPU)
    assert (domain.rows, domain.cols, domain.inner, domain.parts) == (2, 6, 20, ())
