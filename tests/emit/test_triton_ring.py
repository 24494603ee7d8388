"""Kernels whose rows go by way of a ring. In: regions, small rings. Out: the contract's values, by tests/gluon.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.emit import triton_ring
from interfuse.emit.triton import emit
from interfuse.ir.dtypes import BF16, F16, F32, DType
from interfuse.lower.kernel import Kernel
from interfuse.lower.ring import FAMILY, STEP_BYTES, WORDS_BYTES
from interfuse.lower.target import GPU, Target
from tests import gluon, golden, rings, strategies
from tests.judge import judge_region

PROGRAMS = 2


def small(steps: int) -> Target:
    """A GPU of few units whose programs have a ring of so many steps."""
    return replace(GPU, programs=PROGRAMS, ring=WORDS_BYTES + steps * STEP_BYTES)


def run(kernel: Kernel, inputs: list[np.ndarray], text: str = "", late: bool = True) -> list[np.ndarray]:
    """What the kernel writes, or another `text` of it, `late` or as soon as it can; outputs begin full of sevens."""
    source = emit(kernel)
    assert kernel.family == FAMILY and source.grid >= 2 * PROGRAMS, "each program takes blocks in turn"
    outs = [np.full(p.shape, 7, p.dtype.numpy) for p in kernel.params if p.mode == "out"]
    gluon.launch(text or source.text, source.entry, [*inputs, *outs], PROGRAMS, kernel.warps, late)
    return outs


@pytest.mark.parametrize("kind", ("random", "special"))
@pytest.mark.parametrize(("dtype", "cols", "steps"), ((F16, 1024, 6), (BF16, 512, 3), (F32, 768, 9)))
@pytest.mark.parametrize("region", rings.REGIONS)
def test_values(
    region: Callable[[DType, int, int], rings.Region], dtype: DType, cols: int, steps: int, kind: str
) -> None:
    inputs, outputs = region(dtype, 640, cols)
    kernel, reads = rings.lowered((inputs, outputs), small(steps * (2 if region is rings.residual else 1)))
    rng = np.random.default_rng(3)
    values = {n: strategies._floats(kind, n.dtype, n.shape, rng).astype(n.dtype.numpy) for n in inputs}
    for late in (True, False):
        assert judge_region(outputs, values, run(kernel, [values[n] for n in reads], late=late)).ok


def test_every_barrier_is_needed() -> None:
    """Without any one of the lines that wait or arrive, somebody waits for ever, reads what is not there, or arrives
    too often. Who turns rows need not wait for chunks, since who reduces them did, but to see what is there.
    """
    inputs, outputs = rings.norm(F16, 1536, 256)
    kernel, reads = rings.lowered((inputs, outputs), small(14))
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(n.shape).astype(n.dtype.numpy) for n in reads]
    wanted, lines = run(kernel, given), emit(kernel).text.splitlines()
    places = [k for k, line in enumerate(lines) if re.match(r" +(mbarrier\.(wait|arrive)|async_copy\.mbarrier)", line)]
    assert len(places) == 9
    found = []
    for k in places:
        text = "\n".join([*lines[:k], re.match(" *", lines[k])[0] + "pass", *lines[k + 1 :]])  # type: ignore[index]
        try:
            same = all(np.array_equal(*run(kernel, given, text, late), *wanted) for late in (True, False))
        except AssertionError:
            same = False
        found += [k] if same else []
    turning = next(k for k, line in enumerate(lines) if line.startswith("def turn_rows"))
    assert len(found) <= 1 and all(k > turning and "full" in lines[k] for k in found), [lines[k] for k in found]


def test_layer_norm_written_across(request: pytest.FixtureRequest) -> None:
    golden.check(request, emit(rings.lowered(rings.norm(F16, 32768, 4096), replace(GPU, ring=227 << 10))[0]).text)


def test_what_gluon_has_no_word_for() -> None:
    kernel, _ = rings.lowered(rings.norm(F16, 320, 1024), small(3))
    with pytest.raises(UnsupportedError, match="nowhere"):
        triton_ring._words("x = tl.nowhere(1)", "TURNED")
    assert "gl." in emit(kernel).text and " tl." not in emit(kernel).text
