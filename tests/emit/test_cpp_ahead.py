"""Rows in two passes in C++. In: kernels that read a row while they write one. Out: values, bits, which do so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from interfuse.build import compilers
from interfuse.capture.torch_types import to_torch
from interfuse.emit import cpp, cpp_passes, cpp_weights
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
    monkeypatch.setattr(cpp_passes, "FETCH_FROM", 0)
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


def test_lines_come_into_the_second_level_cache_first_and_then_into_the_first() -> None:
    for dtype, far, near in ((F32, 4096, 512), (BF16, 8192, 1024)):
        kernel, _ = _kernel(norm(dtype, 2048, 4096))
        code = cpp.emit(kernel, "avx512", _outs(kernel))
        for name in ("x_ptr", "r_ptr"):
            assert code.count(f"prefetch<2>({name} + row * 4096 + col + {far}, col)") == 1
            assert code.count(f"prefetch({name} + row * 4096 + col + {near}, col)") == 1


def test_only_what_waits_in_scratch_is_read_ahead() -> None:
    for name in REGIONS:
        kernel, _ = _kernel(REGIONS[name](F32, 2048, 4096))
        assert _ahead(kernel) and _ahead(kernel, streamed=False), "whether its results go past the caches or not"
        assert not _ahead(_kernel(REGIONS[name](F32, 16, 4096))[0]), "it lies in the caches"
    x = b.placeholder("x", F32, (2048, 4096))
    assert not _ahead(_kernel(([x], [b.apply("sub", x, _along("mean", x))]))[0]), "the row is read again"


def _softmax(x: Node) -> Node:
    weight = b.apply("exp", b.apply("sub", x, _along("max", x)))
    return b.apply("div", weight, _along("sum", weight))


def softmax(dtype: DType, rows: Dim, cols: int) -> Region:
    """Softmax of one input."""
    x = b.placeholder("x", dtype, (rows, cols))
    return [x], [b.cast(_softmax(b.cast(x, F32)), dtype)]


def scores(dtype: DType, rows: Dim, cols: int) -> Region:
    """Softmax of a scaled sum, times the weight of each column, with the sum beside it."""
    inputs, x, w = _start(dtype, rows, cols)
    x = b.apply("mul", x, _number(0.5, x))
    return inputs, [b.cast(b.apply("mul", _softmax(x), w), dtype), b.cast(x, dtype)]


def _weighs(kernel: Kernel, level: str = "avx512") -> bool:
    return "weights.add(" in cpp.emit(kernel, level)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "cols"), [(softmax, 1025), (softmax, 4999), (scores, 1152)])
@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_weighed_in_blocks(level: str, name: Callable[[DType, Dim, int], Region], cols: int) -> None:
    inputs, outputs = name(F32, ROWS, cols)
    kernel, reads = _kernel((inputs, outputs))
    assert _weighs(kernel, level)
    for rows in (0, 1, 3, 7):
        rng = np.random.default_rng(rows)
        given = {n: rng.normal(-3, 10, (rows, cols) if len(n.shape) > 1 else (cols,)) for n in inputs}
        tensors = {n: torch.from_numpy(x).float() for n, x in given.items()}
        arrays = [tensors[n] for n in reads]
        got = launch(kernel, arrays, level, (rows,), _outs(kernel))
        assert all(map(torch.equal, got, launch(kernel, arrays, level, (rows,)))), "past the caches or not"
        if rows:
            values = {n: t.numpy() for n, t in tensors.items()}
            verdict = judge_region(outputs, values, [g.view(rows, cols) for g in got], symbols={"rows": rows})
            assert verdict.ok, verdict.note


@pytest.mark.parametrize("level", LEVELS)
def test_weights_of_infinities_and_nan(level: str) -> None:
    cols, inf, nan = 2100, float("inf"), float("nan")
    x = torch.randn(12, cols, generator=torch.Generator().manual_seed(0))
    x[0], x[1] = -inf, -3.4e38
    x[2, 7], x[3, 2099], x[4, 2098] = inf, inf, nan
    x[5, :2000], x[6, 100:] = -inf, -inf
    x[7], x[8, 5] = 3.4e38, 3.4e38
    x[9] = torch.linspace(-200, 0, cols)  # some weights are subnormal
    x[10, ::2], x[11] = -3.4e38, 0
    kernel, _ = _kernel(softmax(F32, 12, cols))
    assert _weighs(kernel)
    (got,) = launch(kernel, [x], level)
    wanted = torch.softmax(x.double(), -1).float()
    torch.testing.assert_close(got.view_as(x), wanted, rtol=2e-5, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_no_shares(level: str) -> None:
    cols, inf, nan = 1300, float("inf"), float("nan")
    x = torch.randn(8, cols, generator=torch.Generator().manual_seed(0))
    x[0], x[1, 7], x[2, 1299], x[3, 7], x[3, 900], x[4, 1:] = -inf, nan, inf, inf, nan, -inf
    node = b.placeholder("x", F32, (8, cols))
    weight = b.apply("exp", b.apply("sub", node, _along("max", node)))
    total = _along("sum", weight)
    above = b.apply("div", weight, b.apply("add", total, _number(1, node)))
    known = b.apply("mul", weight, b.apply("where", b.apply("gt", total, _number(2, node)), node, _number(1, node)))
    exact = (x.double() - x.double().amax(1, keepdim=True)).exp()
    sums = exact.sum(1, keepdim=True)
    for y, wanted in ((above, exact / (1 + sums)), (known, exact * torch.where(sums > 2, x, 1))):
        kernel, _ = _kernel(([node], [y]))
        assert _weighs(kernel)
        (got,) = launch(kernel, [x], level)
        torch.testing.assert_close(got.view_as(x), wanted.float(), rtol=2e-5, atol=1e-30, equal_nan=True)


def test_a_row_that_comes_alone_has_the_bits_that_it_has_among_others() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)).repeat(64, 1)
    many, one = (_kernel(softmax(F32, rows, 4096))[0] for rows in (64, 1))
    (got,), (alone,) = launch(many, [x]), launch(one, [x[:1]])
    assert "#pragma omp" in cpp.emit(many, "avx512") and "#pragma omp" not in cpp.emit(one, "avx512")
    assert torch.equal(got.view_as(x), alone.expand_as(x))


def test_only_exponentials_of_distances_from_the_maximum_are_weighed() -> None:
    x = b.placeholder("x", F32, (64, 4096))
    apart = b.apply("sub", x, _along("max", x))
    weight, top = b.apply("exp", apart), b.reduce("max", x, (1,))
    plain = b.apply("div", weight, _along("sum", weight))
    assert _weighs(_kernel(([x], [plain]))[0])
    assert not _weighs(_kernel(([x], [plain, top]))[0]), "the maximum is a result"
    least = b.apply("exp", b.apply("sub", x, _along("min", x)))
    assert not _weighs(_kernel(([x], [b.apply("div", least, _along("sum", least))]))[0])
    assert not _weighs(_kernel(([x], [b.apply("div", weight, _along("max", weight))]))[0])
    squares = b.apply("mul", weight, weight)
    assert not _weighs(_kernel(([x], [b.apply("div", weight, _along("sum", squares))]))[0])
    assert not _weighs(_kernel(softmax(BF16, 64, 4096))[0]), "it gains nothing"
    cols = cpp_weights.WEIGHED_FROM
    assert not _weighs(_kernel(softmax(F32, 64, cols))[0]) and _weighs(_kernel(softmax(F32, 64, cols + 1))[0])
