"""Generated Triton kernels on a real GPU. In: kernels and arrays. Out: agreement with float64, as close as eager's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.base.errors import UnsupportedError
from interfuse.build.resources import check
from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, DType
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Store, Value
from interfuse.lower.target import GPU, Target
from interfuse.run.gpu import load, profile_of
from tests import gathers, joins, mixed, parts, strategies, symbolic, targets
from tests.emit import code_cases
from tests.emit import triton_cases as cases
from tests.judge import judge_region
from tests.kernels import BUILDERS, reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def eager(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What PyTorch's own operators give for a sample kernel."""
    f = torch.nn.functional
    if name == "relu_half":
        return [f.relu(inputs[0]) * 0.5]
    if name == "bias_gelu_residual":
        return [f.gelu(inputs[0] + inputs[1]) + inputs[2]]
    if name == "softmax":
        return [torch.softmax(inputs[0], -1)]
    s = inputs[0] + inputs[1]
    return [s, f.layer_norm(s, s.shape[-1:], inputs[2], inputs[3])]


@pytest.mark.parametrize("kind", ("random", "large", "tiny", "constant", "special"))
@pytest.mark.parametrize("dtype", (F32, F16, BF16), ids=str)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_sample_kernels_beside_eager(name: str, dtype: DType, kind: str) -> None:
    if (name, kind) == ("add_layer_norm", "constant"):
        pytest.skip("the hand-built sample does not free its mean of rounding, as lowered kernels do")
    for cols in (1000, 4096):
        kernel = BUILDERS[name](65, cols, dtype, "tile")
        params = [p for p in kernel.params if p.mode == "in"]
        inputs = [
            strategies._floats(kind, dtype, p.shape, np.random.default_rng(k)).astype(dtype.numpy)
            for k, p in enumerate(params)
        ]
        mine = cases.run(kernel, inputs, "cuda")
        theirs = eager(name, [cases.tensor(a, dtype, "cuda") for a in inputs])
        for got, beside, exact in zip(mine, theirs, reference(name, inputs), strict=True):
            other = cases.array(beside, dtype).astype(np.float64)
            assert cases.misplaced(got, other) == 0
            fine = np.isfinite(other) & np.isfinite(exact)
            rms = [
                float(np.sqrt(np.mean((a.astype(np.float64)[fine] - exact[fine]) ** 2))) if fine.any() else 0.0
                for a in (got, other)
            ]
            size = float(np.sqrt(np.mean(exact[fine] ** 2))) if fine.any() else 0.0
            assert rms[0] <= 1.5 * rms[1] + (2 if dtype is F32 else 0.5) * dtype.ulp * size + 1e-37, (cols, rms)


@pytest.mark.parametrize("dtype", (F32, F64, I64, I32, I8, U8, BOOL), ids=str)
def test_every_operator(dtype: DType) -> None:
    cases.check_operators(dtype, "cuda", ulps=4)


@pytest.mark.parametrize("dtype", (F32, F64, I64, I16, U8, BOOL), ids=str)
@pytest.mark.parametrize(("rows", "cols"), ((3, 1300), (400, 5), (2, 4096), (1, 1)))
def test_reductions(dtype: DType, rows: int, cols: int) -> None:
    cases.check_reductions(dtype, rows, cols, "cuda")


@pytest.mark.parametrize("source", (F32, F16, BF16, F64, I64, I32, U8, BOOL), ids=str)
def test_conversions(source: DType) -> None:
    narrow = [F8E5M2] + ([F8E4M3] if torch.cuda.get_device_capability() >= (8, 9) else [])
    cases.check_conversions(source, cases.conversions(source, narrow), "cuda")


@pytest.mark.parametrize("size", ((F32, 2000, 1000), (F16, 700, 4096), (BF16, 5000, 48)), ids=str)
@pytest.mark.parametrize("name", mixed.REGIONS)
def test_rows_and_columns(name: str, size: tuple[DType, int, int]) -> None:
    region = mixed.REGIONS[name](*size)
    values = mixed.values(region[0])
    got = parts.in_order(region, GPU, values, lambda k, arrays, _: cases.run(k, arrays, "cuda"), mixed.works)
    verdict = judge_region(region[1], values, got)
    assert verdict.ok, verdict.note


def test_carried_reductions() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    y, total, largest, smallest, _ = cases.run(cases.carried(3, 5000, F32, block=1024), [x], "cuda")
    np.testing.assert_array_equal(y, x - x.max(1, keepdims=True))
    np.testing.assert_array_equal((largest, smallest), (x.max(1), x.min(1)))
    np.testing.assert_allclose(total, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("aligned", (True, False))
@pytest.mark.parametrize("cols", (30011, 50257))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_odd_rows_in_vectors(dtype: DType, cols: int, aligned: bool) -> None:
    cases.check_odd_rows(dtype, 37, cols, aligned, "cuda")


@pytest.mark.parametrize("aligned", (True, False), ids=("aligned", "anywhere"))
@pytest.mark.parametrize(("dtype", "to"), ((F16, F16), (F32, F16), (F16, F32), (BF16, I8)), ids=str)
def test_maps_that_end_within_a_vector(dtype: DType, to: DType, aligned: bool) -> None:
    for count in (100001, 100003, 1000015):
        cases.check_odd_map(dtype, to, count, aligned, "cuda")


@pytest.mark.parametrize("cols", (4093, 4095, 4081))
@pytest.mark.parametrize("dtype", (F16, BF16), ids=str)
def test_odd_rows_held_in_vectors(dtype: DType, cols: int) -> None:
    cases.check_held_rows(dtype, 37, cols, "cuda")


def test_codes_of_rows_over_their_largest_element() -> None:
    code_cases.check(I8, "cuda")
    code_cases.check_normed("cuda")
    if torch.cuda.get_device_capability() >= (8, 9):
        code_cases.check(F8E4M3, "cuda")


def test_rows_that_share_a_mask_and_weights_beside_odd_rows() -> None:
    regions = [cases.masked_softmax_region(F16, (6, 3, 40, 2048), (6, 1, 40, 2048)), cases.normed_region(F16, 64, 4093)]
    for inputs, outputs in regions:
        arrays = [np.random.default_rng(k).standard_normal(i.shape).astype(np.float16) for k, i in enumerate(inputs)]
        given = dict(zip(inputs, arrays, strict=True))
        cases.check_region(outputs, given, cases.run_region(inputs, outputs, given, "cuda"))


@pytest.mark.parametrize("blocks", ((1, 64), (32, 32), (64, 8)))
def test_transposed_tiles(blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, bias = rng.standard_normal((190, 333)).astype(np.float32), rng.standard_normal(190).astype(np.float32)
    (y,) = cases.run(cases.transposed(333, 190, F32, *blocks), [x, bias], "cuda")
    np.testing.assert_array_equal(y, x.T + bias)


@pytest.mark.parametrize("before", (False, True))
def test_rows_that_are_reduced_and_then_turned(before: bool) -> None:
    inputs, outputs = cases.turned_norm_region(F16, 2048, 4096, before)
    given = {n: np.random.default_rng(k).standard_normal(n.shape).astype(np.float16) for k, n in enumerate(inputs)}

    got = parts.in_order(
        (inputs, outputs), GPU, given, lambda k, arrays, _: cases.run(k, arrays, "cuda"), cases.first_and_turned
    )
    cases.check_region(outputs, given, got)


@pytest.mark.parametrize("size", (1.0, 1e-42, 1e-30, 1e30))
def test_a_divisor_that_a_row_shares_divides_to_the_last_bit(size: float) -> None:
    x = b.placeholder("x", F32, (70, 1000))
    kernel, _ = symbolic.lowered(([x], [b.apply("div", x, b.expand(b.reduce("max", x, (1,), True), x.shape))]), GPU)
    given = (np.random.default_rng(3).standard_normal((70, 1000)) * size).astype(np.float32)
    given[0], given[1], given[2] = np.minimum(given[0], 0), -np.inf, np.where(given[2] > 0, np.inf, given[2])
    given[0, 5] = 0.0  # the largest
    (got,) = cases.run(kernel, [given], "cuda")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, given / given.max(1, keepdims=True))


def test_past_two_to_the_31_elements() -> None:
    count = (1 << 31) + 4097
    if torch.cuda.mem_get_info()[0] < 3 * count:
        pytest.skip("needs 6 GB of free memory")
    axis = Axis("i", count, Role.GRID, 8192)
    x, y = Value("x", U8, ("i",)), Value("y", U8, ("i",))
    kernel = Kernel(
        "invert",
        (Param("x", U8, (count,), (1,)), Param("y", U8, (count,), (1,), "out")),
        (axis,),
        (Load(x, "x", axis.symbol), Let(y, "not", (x,)), Store("y", axis.symbol, y)),
    )
    given, got = (
        torch.full((count,), 3, dtype=torch.uint8, device="cuda"),
        torch.zeros(count, dtype=torch.uint8, device="cuda"),
    )
    load(emit(kernel), kernel)((given, got))
    assert bool((got == 252).all())


def test_resources_after_a_launch_fit_the_device() -> None:
    kernel = BUILDERS["softmax"](64, 4000, F16, "tile")
    launcher = load(emit(kernel), kernel)
    x = torch.randn(64, 4000, device="cuda", dtype=torch.float16)
    launcher((x, torch.empty_like(x)))
    assert launcher.resources is not None and launcher.resources.registers > 0
    assert check(launcher.resources, profile_of(0)) is None


def test_the_current_stream_is_used_and_graphs_capture_it() -> None:
    kernel = BUILDERS["relu_half"](64, 64, F32, "tile")
    launcher = load(emit(kernel), kernel)
    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    launcher((x, y))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    y.zero_()
    with torch.cuda.graph(graph):
        launcher((x, y))
    x.copy_(torch.randn(4096, device="cuda"))
    graph.replay()
    assert torch.equal(y, torch.relu(x) * 0.5)


@settings(max_examples=40)
@given(region=strategies.regions(), kind=st.sampled_from(strategies.KINDS))
def test_random_regions(region: tuple, kind: str) -> None:
    inputs, outputs = region
    try:
        kernel, reads = cases.lowered(inputs, outputs)
    except UnsupportedError:
        return
    values = strategies.arrays_for(inputs, kind)
    got = cases.run(kernel, [values[n] for n in reads], "cuda")
    cases.check_region(outputs, values, got)


@pytest.mark.parametrize("target", targets.GPUS.values(), ids=targets.GPUS)
@pytest.mark.parametrize("name", joins.CASES)
def test_joined_parts(name: str, target: Target) -> None:
    inputs, outputs = joins.CASES[name]()
    kernel, order = symbolic.lowered((inputs, outputs), target)
    for kind in ("random", "special"):
        arrays = strategies.arrays_for(inputs, kind)
        verdict = judge_region(outputs, arrays, cases.run(kernel, [arrays[n] for n in order], "cuda"))
        assert verdict.ok, (kind, verdict.note)


@pytest.mark.parametrize("target", list(targets.GPUS))
@pytest.mark.parametrize("name", gathers.CASES)
def test_indirect_loads(name: str, target: str) -> None:
    inputs, outputs = gathers.CASES[name]()
    kernel, reads = symbolic.lowered((inputs, outputs), targets.GPUS[target])
    values = gathers.arrays((inputs, outputs))
    verdict = judge_region(outputs, values, cases.run(kernel, [values[n] for n in reads], "cuda"))
    assert verdict.ok, verdict.note


@pytest.mark.parametrize("place", (30, -1, 1 << 40))
def test_an_index_outside_reads_nothing(place: int) -> None:
    inputs, outputs = gathers.CASES["embedding"]()
    kernel, reads = symbolic.lowered((inputs, outputs), targets.GPUS["gpu"])
    values = gathers.arrays((inputs, outputs))
    values[inputs[1]][1, 2] = place
    (got,) = cases.run(kernel, [values[n] for n in reads], "cuda")
    assert np.isnan(got[1, 2]).all() and np.isnan(got).sum() == got.shape[-1]
