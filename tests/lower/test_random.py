"""Random regions, lowered for both targets and run on the null device, mean what their nodes mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from tests import null_device, targets
from tests.strategies import KINDS, arrays_for, regions


def lowered(inputs: list[Node], outputs: list[Node], target: Target) -> tuple[Kernel, tuple[Node, ...]]:
    return lower(
        "kernel", Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)}), target
    )


@pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(region=regions())
def test_random_regions(target: Target, region: tuple[list[Node], list[Node]]) -> None:
    inputs, outputs = region
    outputs = list(dict.fromkeys(o for o in outputs if o not in inputs))
    if not outputs:
        return
    kernel, reads = lowered(inputs, outputs, target)
    for kind in KINDS:
        arrays = arrays_for(inputs, kind)
        got = null_device.run(kernel, [arrays[r].ravel() for r in reads], [math.prod(o.shape) for o in outputs])
        # The null device computes in the stated types, as evaluate does: they differ by the order of sums alone.
        exact = evaluate(outputs, arrays, wide=True)
        for array, node, same, wide in zip(got, outputs, evaluate(outputs, arrays), exact, strict=True):
            if not node.dtype.is_float:
                np.testing.assert_array_equal(array.reshape(node.shape), same)
                continue
            a, b = array.reshape(node.shape).astype(np.float64), same.astype(np.float64)
            scale = np.nanmax(np.abs(np.where(np.isfinite(b), b, 0)), initial=0.0)
            with np.errstate(invalid="ignore"):
                off = np.abs(b - wide)  # what rounding did to the evaluator, which sums in another order
            theirs = 4 * np.max(np.where(np.isfinite(off), off, 0), initial=0.0)
            np.testing.assert_allclose(
                a, b, rtol=max(1e-5, 4 * node.dtype.ulp), atol=max(1e-5, 4 * node.dtype.ulp) * scale + theirs + 1e-30
            )
