"""Lowered kernels on the null device against the tensor IR's own meaning, for both targets; and what is refused, and
why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build as b
from interfuse.ir.dtypes import C64, F16, F32, F64, I64, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.index import at_sizes, coefficient, sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Load, Loop, Reduce, Role, Store, walk
from interfuse.lower.printer import show
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from tests import null_device, symbolic, targets
from tests.judge import judge_region

TARGETS = pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)
Maker = Callable[[], tuple[list[Node], list[Node]]]


def _in(name: str, *shape: int, dtype: DType = F32) -> Node:
    return b.placeholder(name, dtype, shape)


def _wide(value: float, like: Node) -> Node:
    return b.broadcast(b.constant(value, like.dtype), like.shape)


def _along(op: str, x: Node, axis: int, **attrs: float) -> Node:
    return b.expand(b.reduce(op, x, (axis,), keepdims=True, **attrs), x.shape)


def _row_wise(op: str, x: Node, **attrs: float) -> Node:
    return _along(op, x, len(x.shape) - 1, **attrs)


def softmax(x: Node, axis: int | None = None) -> Node:
    axis = len(x.shape) - 1 if axis is None else axis
    e = b.apply("exp", b.apply("sub", x, _along("max", x, axis)))
    return b.apply("div", e, _along("sum", e, axis))


def layer_norm(x: Node, weight: Node, bias: Node) -> Node:
    centred = b.apply("sub", x, _row_wise("mean", x))
    variance = _row_wise("variance", x, correction=0)
    y = b.apply("mul", centred, b.apply("rsqrt", b.apply("add", variance, _wide(1e-5, x))))
    return b.apply("add", b.apply("mul", y, b.broadcast(weight, x.shape)), b.broadcast(bias, x.shape))


def flat_map() -> tuple[list[Node], list[Node]]:
    x, y = _in("x", 3, 5, 7), _in("y", 3, 5, 7)
    return [x, y], [b.apply("mul", b.apply("add", x, y), _wide(0.5, x))]


def bias_map() -> tuple[list[Node], list[Node]]:
    x, bias = _in("x", 4, 6, 33), _in("bias", 33)
    return [x, bias], [b.apply("tanh", b.apply("add", x, b.broadcast(bias, x.shape)))]


def channel_map() -> tuple[list[Node], list[Node]]:
    x, s = _in("x", 2, 3, 4, 5), _in("s", 3, 1, 1)
    return [x, s], [b.apply("mul", x, b.broadcast(s, x.shape))]


def transposed_map() -> tuple[list[Node], list[Node]]:
    x, y = _in("x", 8, 17), _in("y", 17, 8)
    return [x, y], [b.apply("add", b.permute(x, (1, 0)), y)]


def transposed_output() -> tuple[list[Node], list[Node]]:
    x = _in("x", 8, 17)
    return [x], [b.permute(b.apply("neg", x), (1, 0)), b.apply("abs", x)]


def sliced_map() -> tuple[list[Node], list[Node]]:
    x = _in("x", 6, 20)
    left, right = b.take_slice(x, (0, 0), (6, 10)), b.take_slice(x, (0, 10), (6, 10))
    return [x], [b.apply("mul", b.apply("sigmoid", left), right)]


def two_outputs() -> tuple[list[Node], list[Node]]:
    x, r, w, bias = _in("x", 4, 33), _in("r", 4, 33), _in("weight", 33), _in("bias", 33)
    s = b.apply("add", x, r)
    return [x, r, w, bias], [layer_norm(s, w, bias), s]


def softmax_rows() -> tuple[list[Node], list[Node]]:
    x, mask = _in("x", 2, 3, 5, 17), _in("mask", 2, 1, 1, 17)
    return [x, mask], [softmax(b.apply("add", b.apply("mul", x, _wide(0.125, x)), b.broadcast(mask, x.shape)))]


def heads_last() -> tuple[list[Node], list[Node]]:
    x, y = _in("x", 2, 3, 5, 17), _in("y", 2, 5, 51)
    turned = b.permute(b.reshape(y, (2, 5, 3, 17)), (0, 2, 1, 3))
    z = b.apply("mul", x, turned)
    return [x, y], [b.apply("copy", b.permute(b.apply("sub", z, _row_wise("sum", z)), (0, 2, 3, 1)))]


def statistics() -> tuple[list[Node], list[Node]]:
    x = _in("x", 5, 40)
    return [x], [b.reduce("mean", x, (1,)), b.reduce("variance", x, (1,), correction=1), b.reduce("max", x, (1,))]


def places() -> tuple[list[Node], list[Node]]:
    x = _in("x", 5, 40)
    same = b.expand(b.take_slice(x, (0, 2), (5, 1)), x.shape)
    small = b.reduce("argmin", b.apply("abs", x), (1,))
    return [x], [b.reduce("argmax", x, (1,)), small, b.reduce("argmax", same, (1,)), softmax(x)]


def column_softmax() -> tuple[list[Node], list[Node]]:
    x, bias = _in("x", 2, 21, 35), _in("bias", 35)
    y = b.apply("add", x, b.broadcast(bias, x.shape))
    return [x, bias], [softmax(y, 1), b.reduce("max", y, (1,))]


def column_statistics() -> tuple[list[Node], list[Node]]:
    x = _in("x", 40, 19, dtype=F16)
    wide = b.cast(x, F32)
    found = [b.reduce("mean", wide, (0,)), b.reduce("variance", wide, (0,), correction=1), b.reduce("sum", wide, (0,))]
    return [x], [*found, b.reduce("argmax", wide, (0,))]


def leading_axes() -> tuple[list[Node], list[Node]]:
    x, w = _in("x", 3, 4, 5, 6), _in("w", 6)
    total = b.reduce("sum", b.apply("mul", x, b.broadcast(w, x.shape)), (0, 1), keepdims=True)
    return [x, w], [b.apply("sub", x, b.expand(total, x.shape)), b.apply("exp", b.reshape(total, (5, 6)))]


def scans(axis: int, reverse: bool) -> Maker:
    def maker() -> tuple[list[Node], list[Node]]:
        x, w = _in("x", 3, 40, 19), _in("w", 19)
        y = b.apply("mul", x, b.broadcast(w, x.shape))
        found = [b.scan(op, y, axis, reverse) for op in ("cumsum", "cummax", "cummin")]
        total = _along("sum", y, axis)
        found.append(b.scan("cumprod", b.apply("tanh", b.apply("add", y, total)), axis, reverse))
        return [x, w], [b.apply("mul", found[0], _wide(0.5, x)), *found[1:], softmax(found[0], axis)]

    maker.__name__ = f"scans_{axis}{'_reverse' if reverse else ''}"
    return maker


def scan_of_one_value() -> tuple[list[Node], list[Node]]:
    x = _in("x", 5, 40)
    same = b.expand(b.take_slice(x, (0, 2), (5, 1)), x.shape)
    return [x], [b.scan("cumsum", same, 1), b.scan("cummax", b.broadcast(b.iota(40), x.shape), 1)]


def two_axis_reduction() -> tuple[list[Node], list[Node]]:
    x = _in("x", 3, 4, 5)
    total = b.reduce("sum", x, (1, 2), keepdims=True)
    return [x], [b.apply("div", x, b.expand(total, x.shape))]


def apart(*axes: int) -> Maker:
    """Statistics of batch and group norms: over dimensions apart, beside what is normalised."""

    def maker() -> tuple[list[Node], list[Node]]:
        x, w = _in("x", 3, 4, 5, 6), _in("w", 4, 1, 1)
        y = b.apply("add", x, b.broadcast(w, x.shape))
        mean, spread = (b.reduce(op, y, axes, keepdims=True, **more) for op, more in STATISTICS)
        scale = b.apply("rsqrt", b.apply("add", spread, _wide(1e-5, spread)))
        normal = b.apply("mul", b.apply("sub", y, b.expand(mean, x.shape)), b.expand(scale, x.shape))
        return [x, w], [normal, b.reduce("max", y, axes), b.reshape(mean, b.reduce("max", y, axes).shape)]

    maker.__name__ = f"apart_{'_'.join(map(str, axes))}"
    return maker


STATISTICS: tuple[tuple[str, dict[str, int]], ...] = (("mean", {}), ("variance", {"correction": 0}))


def whole_reduction() -> tuple[list[Node], list[Node]]:
    x = _in("x", 6, 7)
    return [x], [b.reduce("sum", b.apply("mul", x, x), (0, 1))]


def flattened_rows() -> tuple[list[Node], list[Node]]:
    x, w = _in("x", 2, 3, 16), _in("w", 16)
    return [x, w], [b.reshape(layer_norm(x, w, w), (6, 16))]


def half_rows() -> tuple[list[Node], list[Node]]:
    x = _in("x", 3, 24, dtype=F16)
    y = softmax(b.cast(x, F32))
    return [x], [b.cast(b.rounded(y, F16), F16)]


def positions() -> tuple[list[Node], list[Node]]:
    x = _in("x", 3, 12)
    column = b.broadcast(b.iota(12), x.shape)
    keep = b.apply("lt", column, b.broadcast(b.constant(7, I64), x.shape))
    return [x], [b.apply("where", keep, x, _wide(-1.0, x))]


def one_element() -> tuple[list[Node], list[Node]]:
    x = _in("x", dtype=F64)
    return [x], [b.apply("exp", x)]


def row_values_everywhere() -> tuple[list[Node], list[Node]]:
    x = _in("x", 4, 19)
    return [x], [b.apply("copy", _row_wise("max", x)), b.apply("add", x, x)]


def one_column_everywhere() -> tuple[list[Node], list[Node]]:
    x = _in("x", 4, 19)
    return [x], [b.apply("neg", b.expand(b.take_slice(x, (0, 3), (4, 1)), (4, 19)))]


def positions_in_every_pass() -> tuple[list[Node], list[Node]]:
    x = _in("x", 3, 21)
    return [x], [b.apply("mul", softmax(b.broadcast(b.cast(b.iota(21), F32), x.shape)), x)]


MAKERS: list[Maker] = [
    row_values_everywhere,
    one_column_everywhere,
    positions_in_every_pass,
    flat_map,
    bias_map,
    channel_map,
    transposed_map,
    transposed_output,
    sliced_map,
    two_outputs,
    softmax_rows,
    heads_last,
    statistics,
    places,
    column_softmax,
    column_statistics,
    leading_axes,
    *(scans(axis, reverse) for axis in (0, 1, 2) for reverse in (False, True)),
    scan_of_one_value,
    two_axis_reduction,
    *(apart(*axes) for axes in ((0, 2, 3), (0, 2), (1, 3), (0, 3))),
    whole_reduction,
    flattened_rows,
    half_rows,
    positions,
    one_element,
]


def lowered(inputs: list[Node], outputs: list[Node], target: Target) -> tuple[Kernel, tuple[Node, ...]]:
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts), target)


@TARGETS
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_kernels_mean_what_the_nodes_mean(maker: Maker, target: Target) -> None:
    inputs, outputs = maker()
    rng = np.random.default_rng(5)
    arrays = {i: rng.standard_normal(i.shape).astype(i.dtype.numpy) for i in inputs}
    kernel, reads = lowered(inputs, outputs, target)
    got = null_device.run(kernel, [arrays[r].ravel() for r in reads], [math.prod(o.shape) for o in outputs])
    for array, node, exact in zip(got, outputs, evaluate(outputs, arrays, True), strict=True):
        np.testing.assert_allclose(
            array.reshape(node.shape).astype(np.float64), exact, rtol=2e-3 if node.dtype is F16 else 2e-5, atol=2e-6
        )


@TARGETS
def test_a_norm_of_equal_elements_is_zero(target: Target) -> None:
    x, w = _in("x", 4, 37), _in("w", 37)
    kernel, reads = lowered([x, w], [layer_norm(x, w, w)], target)
    rows = np.repeat(np.asarray([0.1, 88.7, -127.3, 1e5], np.float32), 37)
    (got,) = null_device.run(kernel, [rows if r is x else np.ones(37, np.float32) for r in reads], [4 * 37])
    np.testing.assert_array_equal(got, 1)


@TARGETS
def test_strided_buffers(target: Target) -> None:
    x = _in("x", 4, 6)
    y = b.apply("neg", x)
    layouts = {x: Layout((1, 4), 3), y: Layout((8, 1))}
    kernel, _ = lower("kernel", Work((y,), frozenset((x,)), layouts), target)
    buffer = np.arange(27, dtype=np.float32)
    (got,) = null_device.run(kernel, [buffer], [32])
    seen = np.lib.stride_tricks.as_strided(buffer[3:], (4, 6), (4, 16))
    np.testing.assert_array_equal(np.lib.stride_tricks.as_strided(got, (4, 6), (32, 4)), -seen)
    assert np.isnan(got.reshape(4, 8)[:, 6:]).all(), "gaps of the output's layout stay unwritten"


def test_roles_are_all_that_differs_between_targets() -> None:
    inputs, outputs = two_outputs()
    cpu, _ = lowered(inputs, outputs, replace(CPU, short_row=0))
    gpu, _ = lowered(inputs, outputs, GPU)
    assert [a.role for a in cpu.axes] == [Role.GRID, Role.SERIAL] and [a.role for a in gpu.axes] == [
        Role.GRID,
        Role.TILE,
    ]
    # On a CPU mean and variance of a long row are carried by one loop; a short row is read again, as a GPU's registers.
    short, _ = lowered(inputs, outputs, CPU)
    assert [sum(isinstance(s, Loop) for s in kernel.body) for kernel in (cpu, short, gpu)] == [2, 3, 3]
    assert [p.name for p in cpu.params if p.mode == "scratch"] == ["add_row"] and not [
        p for p in gpu.params if p.mode == "scratch"
    ]


def test_a_long_row_is_streamed() -> None:
    x = _in("x", 2, 1 << 17)
    for target, axis in ((CPU, Axis("col", 1 << 17, Role.SERIAL, 16)), (GPU, Axis("col", 1 << 17, Role.SERIAL, 8192))):
        kernel, _ = lowered([x], [softmax(x)], target)
        assert kernel.family == "row, streamed" and kernel.axes[-1] == axis
        assert not [p for p in kernel.params if p.mode == "scratch"]
        phases = [loop.body for loop in kernel.body if isinstance(loop, Loop)]
        assert [sum(isinstance(s, Load) for s in phase) for phase in phases] == [1, 1], "once to reduce, once to write"
        assert [loop.backwards for loop in kernel.body if isinstance(loop, Loop)] == [False, True]


def test_a_row_that_keeps_too_much_is_streamed() -> None:
    inputs, outputs = two_outputs()
    kernel, _ = lowered(inputs, outputs, replace(CPU, scratch_bytes=64))
    assert kernel.family == "row, streamed" and not [p for p in kernel.params if p.mode == "scratch"]


def test_a_row_is_read_once() -> None:
    inputs, outputs = two_outputs()
    kernel, _ = lowered(inputs, outputs, CPU)
    loads = [s.param for loop in kernel.body if isinstance(loop, Loop) for s in loop.body if isinstance(s, Load)]
    assert loads.count("x") == loads.count("r") == 1, "later phases read the scratch row"


def test_a_cheap_value_of_one_load_is_computed_again() -> None:
    x = _in("x", 4, 40)
    kernel, _ = lowered([x], [b.reduce("variance", x, (1,), correction=0)], CPU)
    assert not [p for p in kernel.params if p.mode == "scratch"]


def nested(rows: int, blocks: int, cols: int) -> tuple[list[Node], list[Node]]:
    x = _in("x", rows, blocks * cols)
    parts = b.reshape(b.apply("sub", x, _along("max", x, 1)), (rows, blocks, cols))
    return [x], [b.apply("sub", parts, _along("max", parts, 2))]


def test_rows_and_blocks_of_them_are_reduced_in_one_gpu_kernel() -> None:
    kernel, _ = lowered(*nested(5, 6, 16), GPU)
    assert [(a.name, a.block) for a in kernel.axes] == [("row", 1), ("span", 8), ("col", 16)]
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    (got,) = null_device.run(kernel, [x.ravel()], [480])
    whole = (x - x.max(1, keepdims=True)).reshape(5, 6, 16)
    np.testing.assert_array_equal(got, (whole - whole.max(2, keepdims=True)).ravel())


@pytest.mark.parametrize(
    ("shape", "target"), [((5, 6, 16), CPU), ((5, 6, 12), GPU), ((5, 2048, 16), GPU)], ids=("cpu", "odd", "long")
)
def test_rows_and_blocks_that_no_program_holds_are_refused(shape: tuple[int, int, int], target: Target) -> None:
    with pytest.raises(UnsupportedError, match="reductions of"):
        lowered(*nested(*shape), target)


def test_a_flat_map_has_one_axis_and_a_bias_two() -> None:
    assert [a.extent for a in lowered(*flat_map(), CPU)[0].axes] == [105]
    assert [a.extent for a in lowered(*bias_map(), CPU)[0].axes] == [24, 33]
    assert lowered(*bias_map(), GPU)[0].axes == (Axis("row", 24, Role.GRID, 32), Axis("col", 33, Role.GRID, 64))


def test_short_rows_share_a_program_on_a_gpu() -> None:
    for rows, together in ((10000, 16), (1000, 8), (100, 8)):
        x = _in("x", rows, 64)
        kernel, _ = lowered([x], [softmax(x)], GPU)
        assert kernel.axes[0].block == together and kernel.axes[1] == Axis("col", 64, Role.TILE, 64)


def test_a_map_has_larger_tiles_where_all_is_under_way_at_once_and_smaller_ones_where_it_is_little() -> None:
    for size, found in ((4096, (512, 8)), (2048 * 4096, (4096, 4)), (4096 * 4096, (2048, 8))):
        x = _in("x", size)
        kernel, _ = lowered([x], [b.apply("exp", x)], GPU)
        assert (kernel.axes[0].block, kernel.warps) == found


def test_few_rows_are_spread_over_the_units_of_a_gpu() -> None:
    for rows, found in ((64, (1, 4)), (1 << 16, (2, 2))):
        x = _in("x", rows, 512)
        kernel, _ = lowered([x], [softmax(x)], GPU)
        assert (kernel.axes[0].block, kernel.warps) == found


def _stores(kernel: Kernel) -> list[Store]:
    return [
        s for loop in kernel.body for s in (loop.body if isinstance(loop, Loop) else (loop,)) if isinstance(s, Store)
    ]


def test_a_trailing_transpose_is_stored_through() -> None:
    inputs, outputs = transposed_output()
    kernel, _ = lowered(inputs, outputs, CPU)
    assert len({s.param for s in _stores(kernel)}) == 2
    assert sum(isinstance(s, Load) for loop in kernel.body if isinstance(loop, Loop) for s in loop.body) == 1


def _refusals() -> dict[str, tuple[list[Node], list[Node], str]]:
    x, four, c, empty = _in("x", 8, 16), _in("f", 2, 3, 4, 5), _in("c", 4, dtype=C64), _in("e", 0, 4)
    square = _in("s", 8, 8)
    scanned = b.scan("cumsum", square, 1)
    return {
        "columns elsewhere": ([four], [b.reduce("sum", four, a) for a in ((0, 2), (0, 2, 3))], "different shapes"),
        "two shapes": ([x], [b.reduce("sum", x, (1,)), b.reduce("sum", x, (0, 1))], "different shapes"),
        "scans both ways": ([x], [b.apply("add", b.scan("cumsum", x, 1), b.scan("cumsum", x, 1, True))], "in reverse"),
        "scans across": ([x], [b.scan("cumsum", b.scan("cumsum", x, 1), 0)], "different shapes"),
        "scan out of order": ([square], [b.apply("add", b.permute(scanned, (1, 0)), scanned)], "another order"),
        "empty": ([empty], [b.apply("neg", empty)], "empty"),
        "nothing to reduce": ([empty], [b.reduce("sum", b.permute(empty, (1, 0)), (1,))], "empty"),
        "a reduced input without elements": ([empty], [b.reduce("sum", empty, (0,))], "empty"),
        "complex": ([c], [c], "complex"),
        "sizes": ([x], [b.apply("neg", x), b.apply("neg", b.take_slice(x, (0, 0), (8, 8)))], "different sizes"),
    }


@TARGETS
@pytest.mark.parametrize("name", list(_refusals()))
def test_refusals_say_why(name: str, target: Target) -> None:
    inputs, outputs, words = _refusals()[name]
    with pytest.raises(UnsupportedError, match=words):
        lowered(inputs, outputs, target)


def test_a_result_wanted_in_another_order_than_its_rows_is_refused() -> None:
    x = _in("x", 8, 8)
    s = softmax(x)
    with pytest.raises(UnsupportedError, match="another order"):
        lowered([x], [b.apply("add", b.permute(s, (1, 0)), s)], CPU)


@TARGETS
@pytest.mark.parametrize("value", [0.37, 1e4, -3.3e-5])
def test_a_norm_of_equal_elements_is_nought(target: Target, value: float) -> None:
    x, w = _in("x", 3, 1000), _in("w", 1000)
    y = layer_norm(x, w, w)
    kernel, reads = lowered([x, w], [y], target)
    arrays = {x: np.full(3000, value, np.float32), w: np.ones(1000, np.float32)}
    (got,) = null_device.run(kernel, [arrays[r] for r in reads], [3000])
    np.testing.assert_allclose(got, 1.0, atol=1e-6)


@TARGETS
def test_a_mean_beside_a_variance_is_as_exact_as_one_alone(target: Target) -> None:
    x = _in("x", 4, 4096)
    outputs = [b.reduce("mean", x, (1,)), b.reduce("variance", x, (1,), correction=1)]
    kernel, _ = lowered([x], outputs, target)
    # Elements on a coarse grid: distances from any mean round the same way, which must not leak into it.
    array = np.random.default_rng(3).standard_normal((4, 4096)).astype(np.float16).astype(np.float32)
    mean, variance = null_device.run(kernel, [array.ravel()], [4, 4])
    wide = array.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=0, atol=6e-9)
    np.testing.assert_allclose(variance, wide.var(1, ddof=1), rtol=3e-7)


# --- sizes that change between calls


@TARGETS
@pytest.mark.parametrize("name", list(symbolic.EVERY))
def test_one_kernel_serves_every_size(name: str, target: Target) -> None:
    inputs, outputs = symbolic.EVERY[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), target)
    for sizes in symbolic.sizes_of(name):
        arrays = symbolic.arrays(inputs, sizes)
        counts = [symbolic.count(o, sizes) for o in outputs]
        got = null_device.run(kernel, [arrays[r].ravel() for r in reads], counts, sizes)
        shaped = [g.reshape(symbolic.shape_of(o, sizes)) for g, o in zip(got, outputs, strict=True)]
        verdict = judge_region(outputs, arrays, shaped, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


def test_tiles_are_as_wide_as_columns_of_the_example() -> None:
    inputs, outputs = symbolic.CASES["inner"]()
    for width, block in ((3, 128), (192, 256), (50_000, 2048)):
        kernel, reads = symbolic.lowered((inputs, outputs), GPU, {"s0": 2, "s1": width})
        row, col = kernel.axes
        assert (row.block, col.block) == (max(1, GPU.tile_elements // block), block)
        for sizes in symbolic.SIZES:
            arrays = symbolic.arrays(inputs, sizes)
            counts = [symbolic.count(o, sizes) for o in outputs]
            (got,) = null_device.run(kernel, [arrays[r].ravel() for r in reads], counts, sizes)
            verdict = judge_region(outputs, arrays, [got.reshape(symbolic.shape_of(outputs[0], sizes))], symbols=sizes)
            assert verdict.ok, (sizes, verdict.note)


@TARGETS
def test_a_growing_batch_costs_rows_no_index_arithmetic(target: Target) -> None:
    kernel, _ = symbolic.lowered(symbolic.CASES["norm_rows"](), target)
    assert kernel.symbols == ("s0", "s1")
    row, col = kernel.axes
    accesses = [s for loop in kernel.body if isinstance(loop, Loop) for s in loop.body if isinstance(s, (Load, Store))]
    wanted = {row.symbol * 19 + col.symbol, col.symbol}
    assert {a.index for a in accesses if kernel.param(a.param).mode != "scratch"} == wanted


@pytest.mark.parametrize("name", ["flat", "bias", "inner", "two_inner", "norm_rows", "columns"])
def test_lanes_keep_one_stride(name: str) -> None:
    kernel, _ = symbolic.lowered(symbolic.CASES[name](), CPU)
    lane = next(a.symbol for a in kernel.axes if a.block > 1)
    bodies = [s.body if isinstance(s, Loop) else (s,) for s in kernel.body]
    steps = {coefficient(s.index, lane) for body in bodies for s in body if isinstance(s, (Load, Store))}
    assert steps <= {0, 1}


def test_symbols_are_those_that_the_kernel_uses() -> None:
    assert symbolic.lowered(symbolic.CASES["inner"](), CPU)[0].symbols == ("s0", "s1")
    x = b.placeholder("x", F32, (4, symbolic.LENGTH))
    assert symbolic.lowered(([x], [b.apply("neg", x)]), CPU)[0].symbols == ("s1",)


@TARGETS
def test_a_length_that_changes_is_streamed(target: Target) -> None:
    for name in symbolic.LONG:
        kernel, _ = symbolic.lowered(symbolic.LONG[name](), target)
        assert kernel.family.endswith("streamed") and not any(p.mode == "scratch" for p in kernel.params), name


def test_a_length_that_stays_below_a_bound_is_held_on_a_gpu() -> None:
    x = b.placeholder("x", F32, (4, sym("s1", 2, 1000)))
    kernel, _ = symbolic.lowered(([x], [b.apply("sub", x, b.expand(b.reduce("mean", x, (1,), True), x.shape))]), GPU)
    assert kernel.family == "row, resident" and kernel.axes[-1].block == 1024


EXAMPLE = {"s0": 3, "s1": 40}


@pytest.mark.parametrize("name", symbolic.HELD)
def test_a_length_like_the_example_is_held_and_a_longer_one_is_not(name: str) -> None:
    inputs, outputs = symbolic.LONG[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), GPU, EXAMPLE)
    assert kernel.axes[-1].role is Role.TILE and kernel.axes[-1].block == 128
    assert kernel.beyond is not None and kernel.beyond.family.endswith("streamed")
    assert [(p.dtype, p.shape, p.mode) for p in kernel.params] == [
        (p.dtype, p.shape, p.mode) for p in kernel.beyond.params
    ]
    for sizes in symbolic.LENGTHS:
        held = all(at_sizes(a.extent, sizes) <= a.block for a in kernel.tiles)
        arrays = symbolic.arrays(inputs, sizes)
        counts = [symbolic.count(o, sizes) for o in outputs]
        form = kernel if held else kernel.beyond
        got = null_device.run(form, [arrays[r].ravel() for r in reads], counts, sizes)
        shaped = [g.reshape(symbolic.shape_of(o, sizes)) for g, o in zip(got, outputs, strict=True)]
        verdict = judge_region(outputs, arrays, shaped, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


def test_a_length_is_held_only_where_the_example_may_be() -> None:
    region = symbolic.LONG["long_norm"]()
    for example in ({}, {"s0": 4}, {"s1": 1 << 20}):
        assert symbolic.lowered(region, GPU, example)[0].beyond is None
    assert symbolic.lowered(region, CPU, EXAMPLE)[0].beyond is None
    kernel, _ = symbolic.lowered(region, GPU, {"s0": 4, "s1": 5000})
    assert kernel.axes[-1].block == 8192 and "where s1 > 8192: row, streamed" in show(kernel)


@TARGETS
def test_sizes_that_only_turn_out_equal_are_refused(target: Target) -> None:
    x = b.placeholder("x", F32, (4, symbolic.LENGTH))
    with pytest.raises(UnsupportedError, match=r"different sizes: \[8, s1 \* 4\]"):
        y = b.placeholder("y", F32, (8,))
        symbolic.lowered(([x, y], [b.apply("neg", x), b.apply("neg", y)]), target)


@pytest.mark.parametrize(("rows", "cols", "first"), ((16, 4096, True), (4096, 4096, False), (16, 8192, False)))
def test_a_gpu_reads_all_of_few_rows_before_it_waits_for_their_sum(rows: int, cols: int, first: bool) -> None:
    x, w = b.placeholder("x", F32, (rows, cols)), b.placeholder("w", F32, (cols,))
    total = b.spread_over(b.reduce("sum", b.apply("mul", x, x), (1,)), x, (1,))
    out = b.apply("mul", b.apply("mul", x, b.apply("rsqrt", total)), b.broadcast(w, x.shape))
    kernel, _ = lower("k", Work((out,), frozenset((x, w)), {n: contiguous(n.shape) for n in (x, w, out)}), GPU)
    body = walk(kernel.body)
    weight = next(k for k, s in enumerate(body) if isinstance(s, Load) and s.param == "w")
    assert (weight < next(k for k, s in enumerate(body) if isinstance(s, Reduce))) == first
