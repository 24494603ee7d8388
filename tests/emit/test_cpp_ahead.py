"""Rows in two passes in C++. In: kernels that read a row while they write one. Out: values, bits, which do so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from interfuse.build import compilers
from interfuse.capture.torch_types import to_torch
from interfuse.emit import cpp, cpp_facts
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32, F64, DType
from interfuse.ir.index import Dim, sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import CPU
from interfuse.lower.work import Work
from tests.emit.test_cpp import launch
from tests.judge import judge_region

Region = tuple[list[Node], list[Node]]
ROWS = sym("rows", 0)
LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]


def _start(dtype: DType, rows: Dim, cols: int) -> tuple[list[Node], Node, Node]:
    """Two inputs and a weight, the sum of the inputs, and the weight of each element."""
    inputs = [b.placeholder("x", dtype, (rows, cols)), b.placeholder("r", dtype, (rows, cols))]
    weight = b.placeholder("weight", dtype, (cols,))
    x, r, w = (b.cast(n, F32) if dtype.is_narrow else n for n in (*inputs, weight))
    return [*inputs, weight], b.apply("add", x, r), b.broadcast(w, inputs[0].shape)


def _along(op: str, x: Node, **attrs: float) -> Node:
    return b.expand(b.reduce(op, x, (1,), keepdims=True, **attrs), x.shape)


def _number(value: float, x: Node) -> Node:
    return b.broadcast(b.constant(value, x.dtype), x.shape)


def norm(dtype: DType, rows: Dim, cols: int) -> Region:
    """LayerNorm of a sum, with the means beside it."""
    inputs, x, w = _start(dtype, rows, cols)
    root = b.apply("rsqrt", b.apply("add", _along("variance", x, correction=0), _number(1e-5, x)))
    normal = b.apply("mul", b.apply("mul", b.apply("sub", x, _along("mean", x)), root), w)
    return inputs, [b.cast(normal, dtype), b.reduce("mean", x, (1,))]


def root_mean_square(dtype: DType, rows: Dim, cols: int) -> Region:
    """RMSNorm of a sum, with the sum beside it."""
    inputs, x, w = _start(dtype, rows, cols)
    mean = b.apply("div", _along("sum", b.apply("mul", x, x)), _number(cols, x))
    normal = b.apply("mul", b.apply("mul", x, b.apply("rsqrt", b.apply("add", mean, _number(1e-6, x)))), w)
    return inputs, [b.cast(normal, dtype), b.cast(x, dtype)]


def largest(dtype: DType, rows: Dim, cols: int) -> Region:
    """Each element of a sum less the row's largest and its smallest."""
    inputs, x, w = _start(dtype, rows, cols)
    y = b.apply("tanh", x)
    return inputs, [
        b.cast(b.apply("mul", b.apply("sub", b.apply("sub", y, _along("max", y)), _along("min", y)), w), dtype)
    ]


REGIONS: dict[str, Callable[[DType, Dim, int], Region]] = {f.__name__: f for f in (norm, root_mean_square, largest)}

CASES = (
    ("norm", 1100),
    ("norm", 4999),
    *((n, cols) for n in ("root_mean_square", "largest") for cols in (2, 64, 1101)),
)


def _kernel(region: Region) -> tuple[Kernel, Sequence[Node]]:
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts), CPU)


def _outs(kernel: Kernel) -> frozenset[str]:
    return frozenset(p.name for p in kernel.params if p.mode == "out" and len(p.shape) > 1)


def _ahead(kernel: Kernel, streamed: bool = True) -> bool:
    return "rows_ahead<" in cpp.emit(kernel, "avx512", _outs(kernel) if streamed else frozenset())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small kernels are written as large ones, for more threads than some have rows."""
    monkeypatch.setattr(cpp_facts, "FETCH_FROM", 0)
    monkeypatch.setattr(cpp, "PARALLEL_FROM", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "cols"), CASES)
@pytest.mark.parametrize(("dtype", "level"), [*((F32, level) for level in LEVELS), (F64, LEVELS[0]), (BF16, LEVELS[0])])
def test_rows_read_ahead_give_the_same_bits(
    dtype: DType, level: str, name: str, cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs = region = REGIONS[name](dtype, ROWS, cols)
    kernel, reads = _kernel(region)
    assert _ahead(kernel)
    for rows in (0, 1, 2, 3, 7):
        rng = np.random.default_rng(rows)
        given = {n: rng.normal(3, 1, (rows, cols) if len(n.shape) > 1 else (cols,)) for n in inputs}
        tensors = {n: torch.from_numpy(x).to(to_torch(dtype)) for n, x in given.items()}
        arrays = [tensors[n] for n in reads]
        got = launch(kernel, arrays, level, (rows,), _outs(kernel))
        cached = launch(kernel, arrays, level, (rows,))
        with monkeypatch.context() as patch:
            patch.setattr(cpp, "two_passes", lambda *_: None)
            plain = launch(kernel, arrays, level, (rows,))
        assert all(torch.equal(g, p) and torch.equal(c, p) for g, c, p in zip(got, cached, plain, strict=True))
        if rows and dtype is not F64:
            values = {n: t.double().numpy().astype(n.dtype.numpy) for n, t in tensors.items()}
            shaped = [g.view(rows, cols) if len(o.shape) > 1 else g for g, o in zip(got, outputs, strict=True)]
            verdict = judge_region(outputs, values, shaped, symbols={"rows": rows})
            assert verdict.ok, verdict.note


def test_only_what_waits_in_scratch_is_read_ahead() -> None:
    for name in REGIONS:
        kernel, _ = _kernel(REGIONS[name](F32, 2048, 4096))
        assert _ahead(kernel)
        much = name == "largest"
        assert _ahead(kernel, streamed=False) == much, "what the caches hold is read and written in turns"
        assert not _ahead(_kernel(REGIONS[name](F32, 16, 4096))[0]), "it lies in the caches"
    x = b.placeholder("x", F32, (2048, 4096))
    assert not _ahead(_kernel(([x], [b.apply("sub", x, _along("mean", x))]))[0]), "the row is read again"
    e = b.apply("exp", b.apply("sub", x, _along("max", x)))
    assert not _ahead(_kernel(([x], [b.apply("div", e, _along("sum", e))]))[0]), "three passes"
