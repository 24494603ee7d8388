"""Products of a few rows. In: regions. Out: kernels of tensor cores that read the matrix once, or other kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.cost.features import features
from interfuse.cost.model import kernel_estimate
from interfuse.device.table import find
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F16, F32, F64, DType
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel, Load, Loop, Role, walk
from interfuse.lower.products import products_of
from interfuse.lower.schedule import Schedule, schedule_of
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from interfuse.passes.few_rows import summed
from tests import few


def _work(region: few.Region) -> Work:
    inputs, outputs = region
    return Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)})


def _kernel(region: few.Region, target: Target = GPU, schedule: Schedule | None = None) -> Kernel:
    return lower("k", _work(region), target, schedule=schedule)[0]


@pytest.mark.parametrize("rows", (1, 2, 7, 16))
@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_siblings_share_their_rows_and_each_matrix_is_read_once(dtype: DType, turned: bool, rows: int) -> None:
    kernel = _kernel(few.gated(dtype, (rows, 14336, 4096), turned))
    if rows == 1 and not turned:  # a row of the matrix is added up as it lies
        assert kernel.family == "row, resident"
        return
    row, feature, col = kernel.axes
    assert kernel.family == "product" and [a.role for a in kernel.axes] == [Role.GRID, Role.GRID, Role.SERIAL]
    assert (row.extent, feature.extent, col.extent) == (rows, 14336, 4096) and row.block == 16
    products = list(products_of(kernel).values())
    assert len(products) == 2 and len({p.row for p in products}) == 1 and len({p.weight for p in products}) == 2
    assert sum(isinstance(s, Load) for s in walk(kernel.body)) == 3


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    ((F32, (1, 64, 64)), (F64, (1, 64, 64)), (F16, (4, 15, 64)), (F16, (4, 64, 15))),
    ids=("f32", "f64", "narrow matrix", "short rows"),
)
def test_what_tensor_cores_do_not_take_is_added_up(dtype: DType, sizes: few.Sizes) -> None:
    x, w = b.placeholder("x", dtype, sizes[::2]), b.placeholder("w", dtype, sizes[1:])
    wide = [b.cast(n, F32) if n.dtype.is_narrow else n for n in (x, w)]
    terms = [b.expand(b.reshape(n, (n.shape[0], 1, n.shape[1])[:: 1 - 2 * k]), sizes) for k, n in enumerate(wide[:1])]
    terms.append(b.expand(b.reshape(wide[1], (1, *w.shape)), sizes))
    out = b.reduce("sum", b.apply("mul", *terms), (2,))
    kernel = _kernel(([x, w], [b.cast(b.rounded(out, F16), F16) if dtype is F16 else out]))
    assert kernel.family.startswith("row") and not products_of(kernel)


def test_results_of_more_digits_are_added_up_one_by_one() -> None:
    inputs, (out,) = few.gated(F16, (4, 64, 64), False)
    assert _kernel((inputs, [b.cast(out, F32)])).family.startswith("row")


def test_a_cpu_has_no_such_kernel() -> None:
    assert _kernel(few.gated(F16, (4, 64, 64), False), CPU).family.startswith("row")


def test_a_kernel_comes_back_by_its_schedule_and_its_least_blocks_are_kept_to() -> None:
    region = few.residual(F16, (4, 2048, 512), False)
    kernel = _kernel(region)
    assert _kernel(region, schedule=schedule_of(kernel, "triton")) == kernel
    with pytest.raises(UnsupportedError, match="tensor cores take 16"):
        _kernel(region, schedule=Schedule((("feature", 8),)))


def test_it_takes_as_long_as_its_matrices_take_to_be_read() -> None:
    h200 = find("H200")
    kernel = _kernel(few.gated(F16, (16, 14336, 4096), True))
    moved = 2 * (16 * 4096 + 2 * 4096 * 14336 + 16 * 14336)
    assert features(kernel, {}).moved == moved
    bare = h200.seconds("read", moved)
    assert bare <= kernel_estimate(kernel, h200).seconds < 1.15 * bare


@pytest.mark.parametrize("turned", (False, True), ids=("linear", "mm"))
def test_pieces_are_long_whichever_way_a_matrix_lies(turned: bool) -> None:
    def blocks(region: few.Region) -> list[int]:
        return [a.block for a in _kernel(region).axes]

    assert blocks(few.gated(F16, (8, 14336, 4096), turned)) == [16, 64, 64]
    assert blocks(few.gated(F16, (8, 1024, 4096), turned)) == ([16, 32, 64] if turned else [16, 16, 128])
    assert blocks(few.residual(F16, (8, 1024, 4096), turned)) == ([16, 32, 128] if turned else [16, 16, 256])
    assert blocks(few.residual(F16, (8, 4096, 4096), turned)) == [16, 32 if turned else 16, 128]


HOPPER = replace(GPU, dot=64)


@pytest.mark.parametrize(
    ("region", "sizes", "target", "axes", "warps", "stages"),
    (
        (few.gated, (16, 14336, 4096), HOPPER, (("feature", 64), ("row", 16), ("col", 64)), 4, 3),
        (few.gated, (16, 14336, 4096), GPU, (("row", 16), ("feature", 64), ("col", 64)), 4, 3),
        (few.gated, (1, 14336, 4096), HOPPER, (("feature", 64), ("row", 16), ("col", 64)), 4, 3),
        (few.residual, (20, 16384, 4096), HOPPER, (("feature", 64), ("row", 32), ("col", 128)), 4, 4),
        (few.residual, (20, 4096, 4096), HOPPER, (("feature", 64), ("row", 32), ("col", 128)), 4, 6),
        (few.residual, (20, 16384, 4096), GPU, (("row", 32), ("feature", 64), ("col", 64)), 4, 6),
        (few.residual, (64, 16384, 4096), HOPPER, (("row", 64), ("feature", 128), ("col", 64)), 4, 6),
        (few.residual, (100, 16384, 4096), HOPPER, (("row", 128), ("feature", 128), ("col", 128)), 8, 3),
        (few.residual, (100, 8192, 4096), HOPPER, (("row", 128), ("feature", 64), ("col", 128)), 4, 4),
        (few.gated, (100, 16384, 4096), HOPPER, (("row", 128), ("feature", 64), ("col", 128)), 8, 2),
    ),
)
def test_what_programs_take(
    region: Callable[..., few.Region],
    sizes: few.Sizes,
    target: Target,
    axes: tuple[tuple[str, int], ...],
    warps: int,
    stages: int,
) -> None:
    """What is multiplied as rows comes first, and as much is on its way as keeps memory busy."""
    made = region(F16, sizes, True)
    kernel = _kernel(made, target)
    assert tuple((a.name, a.block) for a in kernel.axes) == axes
    assert (kernel.warps, kernel.stages) == (warps, stages)
    assert _kernel(made, target, schedule_of(kernel, "triton")) == kernel


SPLITTING = replace(GPU, dot=64, splits=True)


@pytest.mark.parametrize(
    ("region", "sizes", "turned", "axes"),
    (
        (few.residual, (8, 4096, 1024), False, (("row", 16), ("feature", 32), ("col", 32))),
        (few.residual, (8, 4096, 1024), True, (("row", 16), ("feature", 32), ("col", 32))),
        (few.residual, (64, 1024, 1024), False, (("row", 16), ("feature", 32), ("col", 32))),
        (few.residual, (1024, 768, 768), False, (("row", 64), ("feature", 32), ("col", 32))),
        (few.residual, (1024, 768, 768), True, (("feature", 64), ("row", 32), ("col", 32))),
        (few.residual, (1024, 3072, 768), False, (("row", 64), ("feature", 64), ("col", 32))),
        (few.residual, (1024, 3072, 768), True, (("feature", 64), ("row", 64), ("col", 32))),
        (few.residual, (4096, 4096, 768), False, (("row", 128), ("feature", 64), ("col", 32))),
        (few.residual, (32, 16384, 768), False, (("row", 32), ("feature", 32), ("col", 32))),
        (few.gated, (1024, 3072, 768), False, (("row", 64), ("feature", 32), ("col", 32))),
    ),
)
def test_what_programs_take_of_split_numbers(
    region: Callable[..., few.Region], sizes: few.Sizes, turned: bool, axes: tuple[tuple[str, int], ...]
) -> None:
    """What lies along what both have in common comes second; what is read beside the products waits for them."""
    kernel = _kernel(region(F32, sizes, turned), SPLITTING)
    assert kernel.family == "product" and tuple((a.name, a.block) for a in kernel.axes) == axes
    assert kernel.warps == 4 and 3 <= kernel.stages <= 7 and isinstance(kernel.body[0], Loop)
    assert _kernel(region(F32, sizes, turned), SPLITTING, schedule_of(kernel, "triton")) == kernel


def test_where_neither_side_lies_so_tiles_are_small() -> None:
    x, w = b.placeholder("x", F32, (768, 1024)), b.placeholder("w", F32, (768, 3072))
    out = summed(b.linear(b.permute(x, (1, 0)), b.permute(w, (1, 0))))
    kernel = _kernel(([x, w], [out]), SPLITTING)
    assert [(a.name, a.block) for a in kernel.axes] == [("row", 64), ("feature", 32), ("col", 32)]


def test_older_tensor_cores_take_smaller_tiles_of_split_numbers() -> None:
    kernel = _kernel(few.residual(F32, (4096, 4096, 768), False), replace(GPU, splits=True))
    assert [a.block for a in kernel.axes] == [64, 64, 32]


@pytest.mark.parametrize("sizes", ((1, 4096, 1024), (64, 128, 128), (512, 8, 1024), (256, 256, 255)))
def test_one_row_little_work_and_odd_rows_are_not_split(sizes: few.Sizes) -> None:
    """Odd rows are read element by element, and feed no tensor core."""
    assert _kernel(few.residual(F32, sizes, False), SPLITTING).family.startswith("row")
    assert _kernel(few.residual(F32, (256, 256, 256), False)).family.startswith("row"), "not where it is not wanted"


def test_predictions_of_split_numbers_count_what_units_wait_for() -> None:
    """Tiles with more in common to each number are faster, and one program leaves a unit waiting."""
    h200 = find("H200")

    def rate(sizes: few.Sizes) -> float:
        operations = 2.0 * math.prod(sizes)
        return operations / kernel_estimate(_kernel(few.residual(F32, sizes, False), SPLITTING), h200).seconds

    assert rate((128, 768, 768)) < rate((1024, 768, 768)) < rate((1024, 3072, 3072)) < rate((8192, 8192, 3072))
    assert 75e12 < rate((8192, 8192, 3072)) < 90e12


def test_more_rows_are_added_up() -> None:
    assert _kernel(few.residual(F16, (129, 256, 64), False)).family.startswith("row")


def test_few_programs_take_the_time_in_which_they_feed_tensor_cores() -> None:
    h200 = find("H200")
    kernel = _kernel(few.residual(F16, (16, 1024, 4096), True))
    estimate = kernel_estimate(kernel, h200)
    assert estimate.seconds > 2 * h200.seconds("read", features(kernel, {}).moved)
    assert 0 < features(kernel, {}).turns < 32


@pytest.mark.parametrize(
    ("sizes", "parts"), (((128, 768, 3072), 8), ((8, 768, 3072), 12), ((128, 768, 768), 3), ((1024, 768, 3072), 0))
)
def test_a_product_whose_tiles_leave_units_idle_is_multiplied_in_parts(sizes: few.Sizes, parts: int) -> None:
    """Three programs a unit at most, and parts that tiles divide; a part has an axis of its own."""
    works = few.parts_of(sizes, False, SPLITTING)
    assert len(works) == (2 if parts else 0)
    if not parts:
        return
    first, second = (lower("k", w, SPLITTING)[0] for w in works)
    chunk, row, feature, col = first.axes
    assert (chunk.name, chunk.extent, chunk.block, col.extent) == ("chunk", parts, 1, sizes[2] // parts)
    programs = parts * math.prod(-(-a.extent // a.block) for a in (row, feature))
    assert programs <= 3 * GPU.programs and sizes[2] // parts >= 256
    assert first.family == "product" and second.family == "column"


def test_what_else_has_no_parts() -> None:
    assert few.parts_of((128, 768, 3080), False, SPLITTING) == (), "tiles divide no part"
    assert few.parts_of((128, 768, 3072), False, GPU) == (), "tensor cores are not wanted"
    assert few.parts_of((1, 768, 3072), False, SPLITTING) == (), "one row is added up"
