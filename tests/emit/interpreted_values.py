"""What Triton kernels compute, under Triton's interpreter. In: kernels and arrays. Out: agreement with float64.

Not collected by itself: tests/emit/test_triton_interpreted.py runs it in a process that has TRITON_INTERPRET set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.base.errors import UnsupportedError
from interfuse.base.record import Record
from interfuse.device.table import find
from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.lower import scan_parts, split
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Reduce, walk
from interfuse.lower.rows_first import rows_first
from interfuse.lower.schedule import Schedule
from interfuse.lower.target import GPU, Target
from interfuse.lower.work import Work
from interfuse.passes.pipeline import PASSES
from interfuse.plan.plan import KernelStep, PackStep
from interfuse.plan.planner import plan
from interfuse.run import gpu
from interfuse.run.gpu_pack import PackLauncher
from interfuse.run.gpu_team import TeamLauncher
from interfuse.run.program import Program
from tests import few, gathers, joins, mixed, online, packs, parts, strategies, symbolic, targets, teams
from tests.emit import code_cases, interpreter
from tests.emit import triton_cases as cases
from tests.judge import judge_region
from tests.kernels import BUILDERS, reference
from tests.lower import test_families
from tests.plan.made import captured

# The interpreter computes masked lanes with NumPy, which warns where a GPU is silent.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module", autouse=True)
def _quicker() -> Iterator[None]:
    with interpreter.quicker():
        yield


def _data(kind: str, shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    return strategies._floats(kind, dtype, shape, np.random.default_rng(seed)).astype(dtype.numpy)


@pytest.mark.parametrize("kind", ("random", "large", "tiny", "constant", "special"))
@pytest.mark.parametrize("cols", (1, 37, 64))
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_sample_kernels(name: str, cols: int, kind: str) -> None:
    for dtype in (F32, F16, F64):
        kernel = BUILDERS[name](3, cols, dtype, "tile")
        inputs = [_data(kind, p.shape, dtype, k) for k, p in enumerate(kernel.params) if p.mode == "in"]
        for got, wanted in zip(cases.run(kernel, inputs), reference(name, inputs), strict=True):
            with np.errstate(all="ignore"):
                held = wanted.astype(dtype.numpy)
            assert cases.misplaced(got, held) == 0
            fine = np.isfinite(wanted) & np.isfinite(held)
            size = np.abs(wanted[fine]).max(initial=0.0) + max(
                np.nanmax(np.abs(i[np.isfinite(i)]), initial=0.0) for i in inputs
            )
            steps = 0.51 if dtype is F16 else 4  # half types are rounded once, from f32
            error = np.abs(got.astype(np.float64)[fine] - wanted[fine])
            floor = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
            assert (error <= floor + steps * dtype.ulp * np.abs(wanted[fine]) + 8 * cols**0.5 * F32.ulp * size).all()


@pytest.mark.parametrize("dtype", (F32, F64, I64, I32, I8, U8, BOOL), ids=str)
def test_every_operator(dtype: DType) -> None:
    cases.check_operators(dtype, "cpu", ulps=4)


@pytest.mark.parametrize("dtype", (F32, F64, I64, I16, U8, BOOL), ids=str)
@pytest.mark.parametrize(("rows", "cols"), ((3, 13), (40, 5), (2, 32)))
def test_reductions(dtype: DType, rows: int, cols: int) -> None:
    cases.check_reductions(dtype, rows, cols, "cpu")


@pytest.mark.parametrize("dtype", (F32, F64, I64, I16, U8, BOOL), ids=str)
def test_streamed_reductions(dtype: DType) -> None:
    cases.check_reductions(dtype, 3, 37, "cpu", targets.GPUS["gpu-streamed"])


@pytest.mark.parametrize("target", targets.GPUS.values(), ids=targets.GPUS)
@pytest.mark.parametrize("dtype", (F32, I64, U8, BOOL), ids=str)
def test_column_reductions(dtype: DType, target: Target) -> None:
    cases.check_reductions(dtype, 19, 37, "cpu", target, axis=0)


@pytest.mark.parametrize("target", targets.GPUS.values(), ids=targets.GPUS)
@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("dtype", (F32, F64, I64, I16), ids=str)
def test_scans(dtype: DType, axis: int, reverse: bool, target: Target) -> None:
    cases.check_scans(dtype, axis, reverse, target, "cpu")


@pytest.mark.parametrize("before", (False, True))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_turned_tiles(dtype: DType, before: bool) -> None:
    inputs, outputs = cases.turned_region(dtype, 35, 150, before)
    kernel, _ = cases.lowered(inputs, outputs, target=replace(GPU, programs=1, lanes=8, tile_elements=256))
    assert [(a.name, a.block) for a in kernel.axes] == [("row", 16), ("col", 64)]
    x = (np.random.default_rng(5).standard_normal(inputs[0].shape) * 2 + 1).astype(dtype.numpy)
    cases.check_region(outputs, {inputs[0]: x}, cases.run(kernel, [x]))


@pytest.mark.parametrize("before", (False, True))
@pytest.mark.parametrize("sizes", ((70, 150), (64, 256)))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
@pytest.mark.parametrize("region", (cases.turned_region, cases.turned_norm_region))
def test_rows_that_are_reduced_and_then_turned(
    region: Callable, dtype: DType, sizes: tuple[int, int], before: bool
) -> None:
    inputs, outputs = region(dtype, *sizes, before)
    rng = np.random.default_rng(5)
    given = {n: (rng.standard_normal(n.shape) * 2 + 1).astype(dtype.numpy) for n in inputs}

    got = parts.in_order(
        (inputs, outputs), GPU, given, lambda k, arrays, _: cases.run(k, arrays), cases.first_and_turned
    )
    cases.check_region(outputs, given, got)


@pytest.mark.parametrize("streamed", (False, True))
@pytest.mark.parametrize("heads", (4, 3))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_heads_behind_the_columns(dtype: DType, heads: int, streamed: bool) -> None:
    inputs, outputs = cases.heads_region(dtype, (2, heads, 3, 70))
    target = replace(GPU, tile_elements=64, row_elements=256) if streamed else GPU
    kernel, _ = cases.lowered(inputs, outputs, target=target)
    assert [(a.name, a.block) for a in kernel.axes] == [
        ("outer", 1),
        ("turn", 1),
        ("row", 4),
        ("col", 64 if streamed else 128),
    ]
    x = (np.random.default_rng(5).standard_normal(inputs[0].shape) * 2 + 1).astype(dtype.numpy)
    cases.check_region(outputs, {inputs[0]: x}, cases.run(kernel, [x]))


@pytest.mark.parametrize("blocks", (4, 3))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_rows_in_blocks(dtype: DType, blocks: int) -> None:
    inputs, outputs = cases.nested_region(dtype, 7, blocks, 32)
    kernel, _ = cases.lowered(inputs, outputs)
    assert [(a.name, a.block) for a in kernel.axes] == [("row", 1), ("span", 4), ("col", 32)]
    rng = np.random.default_rng(5)
    arrays = [(rng.standard_normal(i.shape) * 2 + 1).astype(dtype.numpy) for i in inputs]
    cases.check_region(outputs, dict(zip(inputs, arrays, strict=True)), cases.run(kernel, arrays))


@pytest.mark.parametrize(("heads", "cols"), ((5, 37), (3, 1030)))
def test_rows_that_share_a_mask(heads: int, cols: int) -> None:
    inputs, outputs = cases.masked_softmax_region(F16, (2, heads, 3, cols), (2, 1, 3, cols))
    kernel, _ = cases.lowered(inputs, outputs)
    assert [a.name for a in kernel.axes] == ["outer", "row", "turn", "col"]
    arrays = [np.random.default_rng(5).standard_normal(i.shape).astype(np.float16) for i in inputs]
    cases.check_region(outputs, dict(zip(inputs, arrays, strict=True)), cases.run(kernel, arrays))


@pytest.mark.parametrize("cols", (131, 200, 517))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_odd_rows_in_vectors(dtype: DType, cols: int) -> None:
    """Softmax and a maximum of rows that begin anywhere, their neighbours full of what must not be seen."""
    inputs, outputs = cases.odd_region(dtype, 9, cols)
    kernel, _ = cases.lowered(inputs, outputs, target=replace(GPU, row_elements=32, tile_elements=8))
    assert kernel.axes[-1].vector == (8 if cols % 8 and dtype is F16 else 1)
    x = np.random.default_rng(5).standard_normal((9, cols)).astype(dtype.numpy)
    x[::2] *= 60
    x[3] = np.nan
    x[5, 1:] = -np.inf
    cases.check_region(outputs, {inputs[0]: x}, cases.run(kernel, [x]))


def test_what_is_written_while_weights_are_summed_ends_with_its_row() -> None:
    inputs, (softmax, _) = cases.odd_region(F32, 3, 517)
    twice = b.apply("add", inputs[0], inputs[0])
    kernel, _ = cases.lowered(inputs, [softmax, twice], target=replace(GPU, row_elements=32, tile_elements=8))
    text = emit(kernel).text
    assert "row, streamed" in text and text.count("tl.store(") == 3, "the first walk writes, its last step by itself"
    given, room = torch.randn(3, 517), torch.full((2, 3 * 517 + 600), 7.0)
    softmaxed, doubled = (r[: 3 * 517].view(3, 517) for r in room)
    gpu.load(emit(kernel), kernel)([given, softmaxed, doubled])
    torch.testing.assert_close(softmaxed, given.softmax(1))
    assert torch.equal(doubled, 2 * given) and (room[:, 3 * 517 :] == 7).all()


@pytest.mark.parametrize("aligned", (True, False), ids=("aligned", "anywhere"))
@pytest.mark.parametrize(("dtype", "to"), ((F16, F16), (F32, F16), (F16, F32), (BF16, I8)), ids=str)
def test_maps_that_end_within_a_vector(dtype: DType, to: DType, aligned: bool) -> None:
    for count in (3 * 2048 + 1, 3 * 2048 + 15):
        cases.check_odd_map(dtype, to, count, aligned, "cpu")


@pytest.mark.parametrize("cols", (4093, 4095, 4081))
def test_odd_rows_held_in_vectors(cols: int) -> None:
    cases.check_held_rows(F16, 9, cols, "cpu")


def test_codes_of_rows_over_their_largest_element() -> None:
    code_cases.check(I8, "cpu")
    code_cases.check_normed("cpu")


SIZES = ((1, 24, 200), (1, 77, 130), (3, 33, 70), (16, 64, 64), (7, 140, 65), (2, 16, 16), (17, 70, 65), (70, 33, 130))


@pytest.mark.parametrize("special", (False, True), ids=("numbers", "special"))
@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("region", (few.gated, few.residual, few.halves))
def test_products_of_few_rows(region: Callable[..., few.Region], sizes: few.Sizes, turned: bool, special: bool) -> None:
    """Masks at every end, and rows past the last beside what is no number."""
    inputs, outputs = region(F16, sizes, turned)
    kernel, reads = cases.lowered(inputs, outputs)
    assert (kernel.family == "product") == (sizes[0] > 1 or turned)
    arrays = few.values(inputs, special)
    cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads]))


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("sizes", ((1, 140, 130), (3, 70, 65), (16, 128, 64), (20, 100, 70), (32, 3000, 33)))
@pytest.mark.parametrize("region", (few.gated, few.residual))
def test_features_may_come_first(region: Callable[..., few.Region], sizes: few.Sizes, turned: bool) -> None:
    """Where tensor cores take more rows at once than a product has, they take features as rows."""
    inputs, outputs = region(F16, sizes, turned)
    kernel, reads = cases.lowered(inputs, outputs, target=replace(GPU, programs=1, dot=64))
    if kernel.family != "product":
        assert sizes[0] == 1 and not turned
        return
    assert [a.name for a in kernel.axes] == ["feature", "row", "col"] and kernel.axes[0].block == 64
    arrays = few.values(inputs, special=True)
    cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads]))


@pytest.mark.parametrize("rows", (1, 5))
def test_products_of_rows_that_another_kernel_computes(rows: int) -> None:
    inputs, outputs = few.normed(F16, (rows, 40, 100), True)
    works = rows_first(
        Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)}), GPU
    )
    held = few.values(inputs)
    for work in works:
        kernel, reads = lower("k", work, GPU)
        held |= dict(zip(work.outputs, cases.run(kernel, [held[n] for n in reads]), strict=True))
    cases.check_region(outputs, {n: held[n] for n in inputs}, [held[n] for n in outputs])


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize(("sizes", "units"), (((2, 1024, 514), 132), ((70, 130, 130), 132), ((130, 70, 130), 1)))
@pytest.mark.parametrize("region", (few.gated, few.residual, few.halves))
def test_products_of_split_numbers(
    region: Callable[..., few.Region], sizes: few.Sizes, units: int, turned: bool
) -> None:
    """Masks at every end; what is no number stays in its row and its feature."""
    inputs, outputs = region(F32, sizes, turned)
    kernel, reads = cases.lowered(inputs, outputs, target=replace(GPU, programs=units, splits=True))
    assert kernel.family == "product"
    arrays = few.values(inputs, special=True)
    cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads]))


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
def test_products_in_parts(turned: bool) -> None:
    few.check_parts((70, 130, 512), turned)


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("region", (few.gated, few.residual, few.halves))
def test_small_products(region: Callable[..., few.Region], turned: bool) -> None:
    inputs, outputs = region(F32, (64, 65, 24), turned)
    kernel, reads = cases.lowered(inputs, outputs)
    arrays = few.values(inputs)
    cases.check_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in reads]))


def test_odd_rows_beside_weights() -> None:
    inputs, outputs = cases.normed_region(F16, 5, 77)
    arrays = [np.random.default_rng(k).standard_normal(i.shape).astype(np.float16) for k, i in enumerate(inputs)]
    kernel, reads = cases.lowered(inputs, outputs)
    given = dict(zip(inputs, arrays, strict=True))
    cases.check_region(outputs, given, cases.run(kernel, [given[n] for n in reads]))


@pytest.mark.parametrize("aligned", (True, False))
def test_odd_rows_in_any_buffer(aligned: bool) -> None:
    cases.check_odd_rows(F16, 9, 131, aligned, "cpu", replace(GPU, row_elements=32, tile_elements=8))


@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_a_few_rows_in_two_kernels(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTED", 0)
    monkeypatch.setattr(split, "PART", 128)
    inputs, outputs = cases.odd_region(dtype, 3, 960)
    x = np.random.default_rng(5).standard_normal((3, 960)).astype(dtype.numpy)
    x[1] *= 60
    x[2, 400] = np.inf
    region = inputs, outputs[:1]
    got = parts.in_order(region, GPU, {inputs[0]: x}, lambda k, given, outs: cases.run(k, given))
    cases.check_region(region[1], {inputs[0]: x}, got)


@pytest.mark.parametrize(("channels", "image"), ((3, 320), (40, 24)), ids=("one a program", "several"))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_groups_in_two_kernels(dtype: DType, channels: int, image: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTED", 0)
    monkeypatch.setattr(split, "PART", 128)
    inputs, outputs = cases.groups_region(dtype, 20, channels, image)
    assert len(parts.works((inputs, outputs), GPU)) == 2
    gain = np.random.default_rng(5).standard_normal((20, channels)).astype(np.float32)
    for kind in ("offset", "special"):
        given = {inputs[0]: online.DATA[kind]((20, channels * image), 1).astype(dtype.numpy), inputs[1]: gain}
        got = parts.in_order((inputs, outputs), GPU, given, lambda k, arrays, _: cases.run(k, arrays))
        cases.check_region(outputs, given, got)


@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
def test_moments_of_long_rows_carry_eights(dtype: DType) -> None:
    inputs, outputs = cases.groups_region(dtype, 3, 8, 1 << 14)
    kernel, _ = cases.lowered(inputs, outputs)
    assert kernel.axes[-1].block == 1 << 14 and kernel.warps == 32
    gain = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)
    for kind in ("offset", "special"):
        given = {inputs[0]: online.DATA[kind]((3, 1 << 17), 1).astype(dtype.numpy), inputs[1]: gain}
        cases.check_region(outputs, given, cases.run(kernel, list(given.values())))


@pytest.mark.parametrize("image", (64, 72, 60), ids=("whole", "masked", "one by one"))
@pytest.mark.parametrize("rows", (3, 40), ids=("a row", "several rows"))
def test_weights_of_channels_are_read_once_for_neighbours(rows: int, image: int) -> None:
    x, w = b.placeholder("x", F32, (rows, 6, image)), b.placeholder("w", F32, (6, 1))
    grouped = b.reshape(x, (rows, 2, 3 * image))
    top = b.expand(b.reduce("max", grouped, (2,), keepdims=True), grouped.shape)
    y = b.reshape(b.apply("sub", grouped, top), x.shape)
    out = b.apply("mul", y, b.broadcast(w, x.shape))
    kernel, reads = cases.lowered([x, w], [out])
    assert ("col_piece" in emit(kernel).text) == (image % 8 == 0)
    rng = np.random.default_rng(3)
    arrays = {n: rng.standard_normal(n.shape).astype(np.float32) for n in (x, w)}
    cases.check_region([out], arrays, cases.run(kernel, [arrays[r] for r in reads]))


def test_columns_held_at_once() -> None:
    inputs, outputs = cases.softmax_region(F32, 200, 45, axis=0)
    kernel, _ = cases.lowered(inputs, outputs)
    assert kernel.family == "column" and kernel.axes[-1].block == 256
    x = np.random.default_rng(5).standard_normal((200, 45)).astype(np.float32)
    cases.check_region(outputs, {inputs[0]: x}, cases.run(kernel, [x]))


@pytest.mark.parametrize("dtype", (F32, F64, F16), ids=str)
@pytest.mark.parametrize(("shape", "axis"), (((9, 77), 1), ((2, 50, 9), 1)), ids=("rows", "columns"))
@pytest.mark.parametrize("region", online.REGIONS)
def test_one_pass_keeps_the_contract(region: str, shape: tuple[int, ...], axis: int, dtype: DType) -> None:
    inputs, outputs = online.REGIONS[region](dtype, shape, axis)
    target = replace(targets.GPUS["gpu-streamed"], tile_elements=64)
    kernel, _ = cases.lowered(inputs, outputs, target=target)
    assert {s.op for s in walk(kernel.body) if isinstance(s, Reduce)} >= {"spread" if region == "moments" else "expsum"}
    for make in online.DATA.values():
        array = make(shape, axis).astype(dtype.numpy)
        online.check(outputs, {inputs[0]: array}, cases.run(kernel, [array]))


@pytest.mark.parametrize("cols", (77, 256))
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_sums_of_exponentials_of_a_row_in_one_step(dtype: DType, cols: int) -> None:
    inputs, outputs = online.REGIONS["logsumexp"](dtype, (9, cols), 1)
    kernel, _ = cases.lowered(inputs, outputs)
    assert kernel.family == "row, streamed" and "weighed" not in emit(kernel).text
    for make in online.DATA.values():
        array = make((9, cols), 1).astype(dtype.numpy)
        online.check(outputs, {inputs[0]: array}, cases.run(kernel, [array]))


@pytest.mark.parametrize("shape", ("odd rows", "columns", "apart, the longest first"))
@pytest.mark.parametrize("region", parts.REGIONS)
def test_parts(region: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTED", 0)
    monkeypatch.setattr(split, "PART", 128)
    sizes, axis = parts.SHAPES[shape]
    if (region, shape) not in parts.CUT or (region == "places" and "odd" in shape):
        return  # not cut
    made = parts.REGIONS[region](F32, sizes, axis)
    target = replace(targets.GPUS["gpu-streamed"], tile_elements=256)
    for kind in ("offset", "special"):
        array = online.DATA[kind](sizes, online.axes_of(axis)[-1]).astype(np.float32)
        got = parts.in_order(made, target, {made[0][0]: array}, lambda k, given, _: cases.run(k, given))
        online.check(made[1], {made[0][0]: array}, got)


@pytest.mark.parametrize("rows", (0, 1, 300))
@pytest.mark.parametrize("name", ("layer_norm_backward", "relu_backward"))
def test_rows_and_columns_of_a_growing_batch(name: str, rows: int) -> None:
    def run(k: Kernel, given: list[np.ndarray], to: list[tuple[int, ...]], sizes: dict[str, int]) -> list[np.ndarray]:
        return cases.run(k, given, "cpu", [sizes[s] for s in k.symbols], to)

    verdict = mixed.growing(name, replace(GPU, enough=3), rows, run)
    assert verdict.ok, verdict.note


@pytest.mark.parametrize("shape", ((21, 33), (300, 16)), ids=str)
@pytest.mark.parametrize("name", mixed.REGIONS)
def test_rows_and_columns(name: str, shape: tuple[int, int]) -> None:
    for dtype in (F32, F16):
        region = mixed.REGIONS[name](dtype, *shape)
        for kind in mixed.KINDS if dtype is F32 else ("random",):
            given = mixed.values(region[0], kind)
            got = parts.in_order(region, GPU, given, lambda k, arrays, _: cases.run(k, arrays), mixed.works)
            verdict = judge_region(region[1], given, got)
            assert verdict.ok, f"{dtype} {kind}: {verdict.note}"


@pytest.mark.parametrize(("sizes", "axis"), (((3, 960), 1), ((960, 70), 0)), ids=("rows", "columns"))
def test_scans_in_parts(sizes: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_parts, "ENOUGH", 0)
    monkeypatch.setattr(scan_parts, "ROW", 240)
    x = b.placeholder("x", F32, sizes)
    found = [b.scan("cumsum", x, axis), b.scan("cummin", b.apply("neg", x), axis)]
    array = np.random.default_rng(4).standard_normal(sizes).astype(np.float32)
    got = parts.in_order(([x], found), GPU, {x: array}, lambda k, given, _: cases.run(k, given))
    online.check(found, {x: array}, got)


@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_scans_of_pairs_of_columns(dtype: DType) -> None:
    x = b.placeholder("x", dtype, (150, 133))
    y = b.cast(b.scan("cumsum", b.cast(x, F32), 0), dtype)
    kernel, _ = cases.lowered([x], [y], target=replace(GPU, programs=1))
    assert [(a.name, a.block, a.each) for a in kernel.axes[-2:]] == [("col", 64, 2), ("row", 64, 0)]
    array = np.random.default_rng(4).standard_normal((150, 133)).astype(dtype.numpy)
    cases.check_region([y], {x: array}, cases.run(kernel, [array]))


@pytest.mark.parametrize("source", (F32, F16, I64, I32, U8, BOOL), ids=str)
def test_conversions(source: DType) -> None:
    # The interpreter truncates to bfloat16 and errs in 8-bit floats: those are checked on a GPU.
    cases.check_conversions(source, [t for t in cases.conversions(source, ()) if t is not BF16], "cpu")


@pytest.mark.parametrize("cols", (16, 37))
def test_carried_reductions(cols: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, cols)).astype(np.float32)
    x[1, 3] = np.nan
    y, *results = cases.run(cases.carried(2, cols, F32), [x])
    largest = x.max(1)
    np.testing.assert_array_equal(y, x - largest[:, None])
    for got, wanted in zip(results, (x.sum(1), largest, x.min(1), x.prod(1)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("unit", (1, 16))
@pytest.mark.parametrize("target", targets.GPUS)
@pytest.mark.parametrize("name", sorted(set(packs.CASES) - {"narrow"}))  # the interpreter truncates to bfloat16
def test_packs(name: str, target: str, unit: int) -> None:
    shapes = ((3, 5), (16, 32), (1, 7), (4, 100), (16, 16), (2, 3))
    for packed in packs.packs(name, targets.GPUS[target], unit, shapes):
        launch = PackLauncher(gpu.load(emit(packed.kernel), packed.kernel))
        every = list(range(len(packed.regions)))
        for members in ([], every[:1], every, every[::-1] * 2):
            for k, outs in zip(members, packed.ran(launch, members), strict=True):
                assert judge_region(packed.regions[k][1], packed.arrays(k), outs).ok, packed.regions[k]


@pytest.mark.parametrize("kind", ("random", "constant", "offset", "special"))
@pytest.mark.parametrize(("dtype", "cols"), ((F32, 512), (F16, 768)), ids=str)  # three programs, a lane idle
@pytest.mark.parametrize("region", (online.moments, online.softmax), ids=lambda f: f.__name__)
def test_teams(region: Callable, dtype: DType, cols: int, kind: str) -> None:
    """Two teams take five rows in turn, in two launches; programs go on in any order."""
    inputs, outputs = region(dtype, (5, cols), 1)
    work = teams.work(inputs, outputs)
    assert work is not None
    stages = 2 if kind in ("random", "offset") else 1
    kernel, reads = lower("shared", work, teams.SMALL, schedule=Schedule(stages=stages))
    assert ("row_ahead" in emit(kernel).text) is (stages > 1), "the next row is on its way"
    launch, x = TeamLauncher(gpu.load(emit(kernel), kernel)), online.DATA[kind]((5, cols), 1).astype(dtype.numpy)
    results = []
    for seed in (0, 1):
        outs = [cases.tensor(np.full(o.shape, 7), o.dtype, "cpu") for o in outputs]
        with teams.taking_turns(seed):
            launch((*(cases.tensor(x, dtype, "cpu") for _ in reads), *outs))
        results.append([cases.array(t, o.dtype) for t, o in zip(outs, outputs, strict=True)])
        online.check(outputs, {inputs[0]: x}, results[-1])
    assert all(one.tobytes() == other.tobytes() for one, other in zip(*results, strict=True)), "bits repeat"


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("widths", ((16, 32, 16, 48) * 3, (3, 2, 7, 16, 5, 2, 9, 4, 8, 6), (64,) * 10))
def test_joined_parts_in_one_launch(widths: tuple[int, ...], axis: int) -> None:
    side = 96 if len({*widths}) == 1 else 5  # several programs each
    xs = [torch.randn(*((side, w) if axis else (w, side))) for w in widths]

    def f(*xs: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tanh(x) * 2 for x in xs], axis)

    graph = captured(f, *xs)
    (region,) = plan(graph, GPU, find("H200"), Record()).regions
    (step,) = region.choice.steps
    assert isinstance(step, PackStep)
    assert step.kernel.level is (axis == 1), "neighbours take turns where all have as many programs"
    given, out = {i.node: x for i, x in zip(graph.inputs, xs, strict=True)}, torch.full_like(f(*xs), 77)
    tensors = [t for m in step.members for t in (*(given[n] for n in m.inputs), out)]
    PackLauncher(gpu.load(emit(step.kernel), step.kernel))(tensors, [int(d) for row in step.sizes for d in row])
    torch.testing.assert_close(out, f(*xs))


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("width", (33, 64))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_steps_begin_at_aligned_addresses(dtype: torch.dtype, width: int, axis: int) -> None:
    def steps(x: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for t in range(1, 6):
            hidden = torch.tanh(x.select(axis, t) * 2 + x.select(axis, t - 1) + hidden @ weight)
        return hidden

    x = torch.randn(*((6, 4, width) if axis == 0 else (4, 6, width)), dtype=dtype)
    given = x, torch.randn(4, width, dtype=dtype), (torch.randn(width, width) / 8).to(dtype)
    graph = replace(captured(steps, *given), device="cuda:0")
    for _, run in PASSES:
        graph = run(graph)
    planned = plan(graph, GPU, find("H200"), Record())
    found = [s for r in planned.regions for s in r.candidates[0].steps]
    assert all(isinstance(s, KernelStep) for s in found) and len(found) == 5
    skipped = [s.skipped[k] for s in found for k, n in enumerate(s.inputs) if s.skipped and n is graph.inputs[0].node]
    assert len({*skipped}) == 4 and all(start * dtype.itemsize % 16 == 0 for start in skipped)
    kernels = {s.kernel.name: s.kernel for s in found}
    assert len(kernels) <= (1 if width == 64 else 4 if dtype is torch.float32 else 5)
    launchers = {name: gpu.load(emit(k), k) for name, k in kernels.items()}
    run = Program(replace(planned, graph=replace(graph, device="cpu")), launchers, Record(), guarded=False)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(run(*given)[0], steps(*given), atol=tolerance, rtol=tolerance)


def test_stacked_sums_in_one_launch() -> None:
    xs = [torch.randn(4, 64) for _ in range(12)]

    def f(*xs: torch.Tensor) -> torch.Tensor:
        return torch.stack([(x * x).sum() for x in xs])

    graph = captured(f, *xs)
    (region,) = plan(graph, GPU, find("H200"), Record()).regions
    (step,) = region.choice.steps
    assert isinstance(step, PackStep)
    given, out = {i.node: x for i, x in zip(graph.inputs, xs, strict=True)}, torch.full((12,), 77.0)
    tensors = [t for m in step.members for t in (*(given[n] for n in m.inputs), out)]
    PackLauncher(gpu.load(emit(step.kernel), step.kernel))(tensors, [int(d) for row in step.sizes for d in row])
    torch.testing.assert_close(out, f(*xs))


@pytest.mark.parametrize("blocks", ((1, 16), (4, 8), (8, 1), (2, 64)))
def test_transposed_tiles(blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, bias = rng.standard_normal((19, 10)).astype(np.float32), rng.standard_normal(19).astype(np.float32)
    (y,) = cases.run(cases.transposed(10, 19, F32, *blocks), [x, bias])
    np.testing.assert_array_equal(y, x.T + bias)


@settings(max_examples=60)
@given(
    region=strategies.regions(), kind=st.sampled_from(strategies.KINDS), target=st.sampled_from(sorted(targets.GPUS))
)
def test_random_regions(region: tuple, kind: str, target: str) -> None:
    inputs, outputs = region
    try:
        kernel, reads = cases.lowered(inputs, outputs, target=targets.GPUS[target])
    except UnsupportedError:
        return
    if any(n.dtype is BF16 for n in (*inputs, *outputs)):
        return  # the interpreter truncates to bfloat16
    values = strategies.arrays_for(inputs, kind)
    got = cases.run(kernel, [values[n] for n in reads])
    cases.check_region(outputs, values, got)


@pytest.mark.parametrize("target", targets.GPUS.values(), ids=targets.GPUS)
@pytest.mark.parametrize("name", list(joins.CASES))
def test_joined_parts(name: str, target: Target) -> None:
    inputs, outputs = joins.CASES[name]()
    if any(n.dtype is BF16 for n in inputs):
        return  # the interpreter truncates to bfloat16
    kernel, order = symbolic.lowered((inputs, outputs), target)
    for kind in ("random", "special"):
        arrays = strategies.arrays_for(inputs, kind)
        verdict = judge_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in order]))
        assert verdict.ok, (kind, verdict.note)


@pytest.mark.parametrize("name", list(symbolic.EVERY))
def test_one_kernel_serves_every_size(name: str) -> None:
    inputs, outputs = symbolic.EVERY[name]()
    for called, target in targets.GPUS.items():
        kernel, order = symbolic.lowered((inputs, outputs), target)
        most = 260 if called == "gpu-streamed" else 1 << 20  # many steps of its tiles, where they may hold two elements
        for every in symbolic.sizes_of(name):
            sizes = {s: min(n, most) for s, n in every.items()}
            arrays = symbolic.arrays(inputs, sizes)
            shapes = [symbolic.shape_of(n, sizes) for n in outputs]
            bound = [sizes[s] for s in kernel.symbols]
            got = cases.run(kernel, [arrays[n] for n in order], sizes=bound, shapes=shapes)
            verdict = judge_region(outputs, arrays, got, symbols=sizes)
            assert verdict.ok, (sizes, verdict.note)


def test_tiles_as_wide_as_columns_of_the_example() -> None:
    inputs, outputs = symbolic.CASES["inner"]()
    kernel, order = symbolic.lowered((inputs, outputs), GPU, {"s0": 2, "s1": 30})
    assert kernel.axes[0].block > 1
    for sizes in symbolic.SIZES:
        arrays = symbolic.arrays(inputs, sizes)
        shapes = [symbolic.shape_of(n, sizes) for n in outputs]
        got = cases.run(kernel, [arrays[n] for n in order], sizes=[sizes[s] for s in kernel.symbols], shapes=shapes)
        verdict = judge_region(outputs, arrays, got, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


@pytest.mark.parametrize("name", symbolic.HELD)
def test_lengths_like_the_example_and_longer_ones(name: str) -> None:
    inputs, outputs = symbolic.LONG[name]()
    kernel, order = symbolic.lowered((inputs, outputs), GPU, {"s0": 2, "s1": 30})
    assert kernel.beyond is not None
    for sizes in symbolic.LENGTHS:
        arrays = symbolic.arrays(inputs, sizes)
        shapes = [symbolic.shape_of(n, sizes) for n in outputs]
        got = cases.run(kernel, [arrays[n] for n in order], sizes=[sizes[s] for s in kernel.symbols], shapes=shapes)
        verdict = judge_region(outputs, arrays, got, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


@pytest.mark.parametrize("target", list(targets.GPUS))
@pytest.mark.parametrize("name", list(gathers.CASES))
def test_indirect_loads(name: str, target: str) -> None:
    inputs, outputs = gathers.CASES[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), targets.GPUS[target])
    values = gathers.arrays((inputs, outputs))
    verdict = judge_region(outputs, values, cases.run(kernel, [values[n] for n in reads]))
    assert verdict.ok, verdict.note


@pytest.mark.parametrize("name", list(gathers.SYMBOLIC))
def test_indirect_loads_of_every_size(name: str) -> None:
    inputs, outputs = gathers.SYMBOLIC[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), targets.GPUS["gpu"])
    for sizes in symbolic.SIZES[:3]:
        if name == "table_of_any_length" and sizes["s1"] == 0:
            continue  # nothing can be picked
        values = gathers.arrays((inputs, outputs), sizes)
        shapes = [symbolic.shape_of(n, sizes) for n in outputs]
        bound = [sizes[s] for s in kernel.symbols]
        got = cases.run(kernel, [values[n] for n in reads], sizes=bound, shapes=shapes)
        verdict = judge_region(outputs, values, got, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


@pytest.mark.parametrize("target", list(targets.GPUS))
@pytest.mark.parametrize(("name", "outside"), (("embedding", 30), ("embedding", -1), ("small_elements", 50)))
def test_what_lies_outside_is_never_read(name: str, outside: int, target: str) -> None:
    inputs, outputs = gathers.CASES[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), targets.GPUS[target])
    values = gathers.arrays((inputs, outputs))
    index = values[inputs[1]]
    (right,) = cases.run(kernel, [values[n] for n in reads])
    index.flat[3] = outside
    (got,) = cases.run(kernel, [values[n] for n in reads])
    wrong = np.zeros(index.shape, bool)
    wrong.flat[3] = True
    wrong = np.broadcast_to(wrong.reshape(*index.shape, *(1,) * (got.ndim - index.ndim)), got.shape)
    np.testing.assert_array_equal(got[~wrong], right[~wrong])
    assert np.isnan(got[wrong]).all() if got.dtype.kind == "f" else got[wrong].all(), "not of 0 is true"


@pytest.mark.parametrize(
    "schedule",
    (
        Schedule((("row", 8),), warps=2),
        Schedule((("row", 2), ("col", 32)), warps=1, stages=2, streamed=True),
        Schedule((("row", 4), ("col", 64)), warps=4, stages=4, streamed=True),
        Schedule(streamed=False, warps=16),
    ),
    ids=str,
)
def test_odd_schedules(schedule: Schedule) -> None:
    inputs, outputs = test_families.two_outputs()
    values = {n: _data("random", n.shape, n.dtype, k) for k, n in enumerate(inputs)}
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    work = Work(tuple(outputs), frozenset(inputs), layouts)
    kernel, reads = lower("region", work, targets.GPUS["gpu"], schedule=schedule)
    got = cases.run(kernel, [values[n] for n in reads])
    for one, wanted in zip(got, evaluate(outputs, values, True), strict=True):
        np.testing.assert_allclose(one.reshape(wanted.shape), wanted, rtol=2e-5, atol=2e-6)
