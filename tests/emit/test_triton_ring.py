"""Kernels whose rows go by way of a ring. In: regions, small rings. Out: the values of the contract, by tests/gluon.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, DType
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.ring import CHUNK_BYTES, WORDS_BYTES
from interfuse.lower.target import GPU, Target
from interfuse.lower.work import Work
from tests import gluon, strategies
from tests.emit import triton_cases as cases
from tests.judge import judge_region

Region = tuple[list[Node], list[Node]]

PROGRAMS = 2


def small(chunks: int) -> Target:
    """A GPU of few units whose programs have a ring of so many chunks."""
    return replace(GPU, programs=PROGRAMS, ring=WORDS_BYTES + chunks * CHUNK_BYTES)


def lowered(region: Region, target: Target) -> tuple[Kernel, tuple[Node, ...]]:
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("region", Work(tuple(outputs), frozenset(inputs), layouts, ring=True), target)


def run(kernel: Kernel, inputs: list[np.ndarray], text: str | None = None, programs: int = PROGRAMS) -> list[np.ndarray]:
    """What the kernel writes; its outputs start out full of sevens."""
    source = emit(kernel)
    assert kernel.family == "row, in a ring" and source.grid > programs
    outs = [np.full(p.shape, 7, p.dtype.numpy) for p in kernel.params if p.mode == "out"]
    gluon.launch(text or source.text, source.entry, [*inputs, *outs], programs, kernel.warps)
    return outs


def softmax(dtype: DType, rows: int, cols: int) -> Region:
    """Softmax along rows, written across: two numbers of a row are given."""
    x = b.placeholder("x", dtype, (rows, cols))
    y = b.cast(_softmax(b.cast(x, F32) if dtype.is_narrow else x), dtype) if dtype.is_narrow else _softmax(x)
    return [x], [b.apply("copy", b.permute(y, (1, 0)))]


def _softmax(x: Node) -> Node:
    top = b.reduce("max", x, (1,))
    weights = b.apply("exp", b.apply("sub", x, b.spread_over(top, x, (1,))))
    return b.apply("div", weights, b.spread_over(b.reduce("sum", weights, (1,)), x, (1,)))


def residual(dtype: DType, rows: int, cols: int) -> Region:
    """(x + r) * scale of its row, over the root of the sum of squares, in batches: two tensors go by way of rings."""
    x, r = (b.placeholder(name, dtype, (2, rows // 2, cols)) for name in "xr")
    scale = b.placeholder("scale", F32, (2, rows // 2))
    both = b.apply("add", *(b.cast(n, F32) if dtype.is_narrow else n for n in (x, r)))
    total = b.reduce("sum", b.apply("mul", both, both), (2,))
    root = b.apply("mul", b.apply("rsqrt", b.apply("add", total, b.like(1e-3, total))), scale)
    y = b.apply("mul", both, b.spread_over(root, both, (2,)))
    return [x, r, scale], [b.apply("copy", b.permute(b.cast(y, dtype) if dtype.is_narrow else y, (0, 2, 1)))]


def norm(dtype: DType, rows: int, cols: int) -> Region:
    """LayerNorm with weights, written across."""
    return cases.turned_norm_region(dtype, rows, cols, False)


def statistics(dtype: DType, rows: int, cols: int) -> Region:
    """Softmax, written across, and what a row gives besides."""
    return cases.turned_region(dtype, rows, cols, False)


REGIONS = (norm, softmax, residual, statistics)


@pytest.mark.parametrize("kind", ("random", "special"))
@pytest.mark.parametrize(("dtype", "cols", "chunks"), ((F16, 1024, 4), (BF16, 512, 3), (F32, 768, 5), (F16, 256, 2)))
@pytest.mark.parametrize("region", REGIONS)
def test_values(region: Callable[[DType, int, int], Region], dtype: DType, cols: int, chunks: int, kind: str) -> None:
    inputs, outputs = region(dtype, 320, cols)
    kernel, reads = lowered((inputs, outputs), small(2 * chunks))
    rng = np.random.default_rng(3)
    values = {n: strategies._floats(kind, n.dtype, n.shape, rng).astype(n.dtype.numpy) for n in inputs}
    got = run(kernel, [values[n] for n in reads])
    assert judge_region(outputs, values, got).ok
