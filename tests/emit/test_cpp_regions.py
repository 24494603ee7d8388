"""Random regions through lowering, C++ and the machine. In: regions() and data of every kind. Out: evaluated values."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from interfuse.base.errors import DataError, UnsupportedError
from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import Cache, open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit.cpp import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, I8, I32, I64, U8, DType
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from interfuse.run.cpu import Launcher, load
from tests import gathers, joins, symbolic, targets
from tests.judge import judge_region
from tests.strategies import KINDS, arrays_for, regions

LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]


@lru_cache(maxsize=1)
def _cache() -> Cache:
    return open_cache(current())


def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the array's bits, narrow types included."""
    array = np.ascontiguousarray(array)
    if dtype in (torch.bfloat16, torch.float16):
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)


@settings(max_examples=60)
@given(regions(), st.sampled_from(KINDS), st.sampled_from(LEVELS), st.sampled_from(sorted(targets.CPUS)))
def test_regions_compute_what_the_evaluator_does(region, kind, level, target) -> None:  # type: ignore[no-untyped-def]
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    try:
        kernel, order = lower("region", Work(tuple(outputs), frozenset(inputs), layouts), targets.CPUS[target])
        source = emit(kernel, level)
    except UnsupportedError:
        assume(False)
    with override(vector=level) as knobs:
        (artifact,) = build([(kernel.name, source)], knobs, _cache())
    arrays = arrays_for(inputs, kind)
    outs = [torch.full(n.shape, 77, dtype=to_torch(n.dtype)) for n in outputs]
    load(artifact, kernel)([*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs])
    for node, got, exact in zip(outputs, outs, evaluate(outputs, arrays), strict=True):
        if not node.dtype.is_float:
            assert np.array_equal(got.numpy(), exact), source
            continue
        wide = evaluate([node], arrays, wide=True)[0]
        got64, near = got.double().numpy(), exact.astype(np.float64)
        # Where float32 and float64 agree about what is finite, so must the kernel; sums may cancel, hence the scale.
        agreed = np.isfinite(near) == np.isfinite(wide)
        assert np.array_equal(np.isfinite(got64)[agreed], np.isfinite(near)[agreed]), source
        use = np.isfinite(near) & np.isfinite(wide) & np.isfinite(got64)
        if use.any():
            own, scale = np.abs(near[use] - wide[use]).max(), np.abs(wide[use]).max()
            allowed = 4 * own + 16 * max(node.dtype.ulp, F32.ulp) * scale + 1e-37
            assert np.abs(got64[use] - wide[use]).max() <= allowed, source


@pytest.mark.parametrize("target", targets.CPUS.values(), ids=targets.CPUS)
def test_joined_parts(target: Target) -> None:
    for level in LEVELS:
        lowered = {name: symbolic.lowered(make(), target) for name, make in joins.CASES.items()}
        with override(vector=level) as knobs:
            built = build(
                [(name, emit(replace(k, name=name), level)) for name, (k, _) in lowered.items()], knobs, _cache()
            )
        for artifact, (name, (kernel, order)) in zip(built, lowered.items(), strict=True):
            inputs, outputs = joins.CASES[name]()
            for kind in ("random", "special"):
                arrays = arrays_for(inputs, kind)
                outs = [torch.full(n.shape, 77).to(to_torch(n.dtype)) for n in outputs]
                load(artifact, replace(kernel, name=name))(
                    [*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs]
                )
                verdict = judge_region(outputs, arrays, outs)
                assert verdict.ok, (name, kind, level, verdict.note)


@pytest.mark.parametrize("lanes", (70, 1), ids=("vector", "scalar"))
@pytest.mark.parametrize("dtype", (I64, I32, I8, U8), ids=str)
def test_integers_and_a_known_number(dtype: DType, lanes: int) -> None:
    x = b.placeholder("x", dtype, (lanes,))
    outputs = [
        b.apply(op, x, b.broadcast(b.constant(by, dtype), x.shape))
        for op in ("div", "floordiv", "remainder", "fmod")
        for by in ((3, 7) if dtype is U8 else (3, -7))
    ]
    outputs += [b.apply(op, x, b.broadcast(b.constant(2, dtype), x.shape)) for op in ("shl", "shr")]
    info = np.iinfo(dtype.numpy)
    arrays = {x: np.linspace(info.min, info.max, lanes, endpoint=lanes > 1).astype(dtype.numpy)}
    outs = run(*launcher(([x], outputs), LEVELS[0], targets.CPUS["cpu"]), ([x], outputs), arrays)
    for node, got, exact in zip(outputs, outs, evaluate(outputs, arrays), strict=True):
        assert np.array_equal(got.numpy(), exact), node


@pytest.mark.parametrize("name", list(symbolic.EVERY))
def test_one_kernel_serves_every_size(name: str) -> None:
    inputs, outputs = symbolic.EVERY[name]()
    for target in targets.CPUS.values():
        kernel, order = symbolic.lowered((inputs, outputs), target)
        with override(vector=LEVELS[0]) as knobs:
            (artifact,) = build([(kernel.name, emit(kernel, LEVELS[0]))], knobs, _cache())
        launch = load(artifact, kernel)
        for sizes in symbolic.sizes_of(name):
            arrays = symbolic.arrays(inputs, sizes)
            outs = [torch.full(symbolic.shape_of(n, sizes), 77, dtype=to_torch(n.dtype)) for n in outputs]
            launch([*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs], [sizes[s] for s in kernel.symbols])
            verdict = judge_region(outputs, arrays, outs, symbols=sizes)
            assert verdict.ok, (sizes, verdict.note)


def launcher(region: gathers.Region, level: str, target: Target) -> tuple[Launcher, tuple[Node, ...]]:
    kernel, order = symbolic.lowered(region, target)
    with override(vector=level) as knobs:
        (artifact,) = build([(kernel.name, emit(kernel, level))], knobs, _cache())
    return load(artifact, kernel), order


def run(launch: Launcher, order: tuple[Node, ...], region: gathers.Region, arrays: dict[Node, np.ndarray]) -> list:
    outs = [torch.full(n.shape, 77, dtype=to_torch(n.dtype)) for n in region[1]]
    launch([*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs])
    return outs


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", list(gathers.CASES))
def test_indirect_loads(name: str, level: str) -> None:
    region = gathers.CASES[name]()
    arrays = gathers.arrays(region)
    for target in targets.CPUS.values():
        verdict = judge_region(region[1], arrays, run(*launcher(region, level, target), region, arrays))
        assert verdict.ok, verdict.note


@pytest.mark.parametrize("name", list(gathers.SYMBOLIC))
def test_indirect_loads_of_every_size(name: str) -> None:
    region = gathers.SYMBOLIC[name]()
    kernel, order = symbolic.lowered(region, targets.CPUS["cpu"])
    launch, _ = launcher(region, LEVELS[0], targets.CPUS["cpu"])
    for sizes in symbolic.SIZES:
        arrays = gathers.arrays(region, sizes)
        outs = [torch.full(symbolic.shape_of(n, sizes), 77, dtype=to_torch(n.dtype)) for n in region[1]]
        buffers = [*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs]
        given = [sizes[s] for s in kernel.symbols]
        if name == "table_of_any_length" and sizes["s1"] == 0:
            with pytest.raises(DataError):
                launch(buffers, given)
            continue
        launch(buffers, given)
        verdict = judge_region(region[1], arrays, outs, symbols=sizes)
        assert verdict.ok, (sizes, verdict.note)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "last", "outside"),
    (("embedding", 29, (30, -1, 1 << 40)), ("columns_of_each_row", 18, (19, -1)), ("elements", 49, (100, -1))),
)
def test_what_lies_outside_is_never_read(name: str, last: int, outside: tuple[int, ...], level: str) -> None:
    region = gathers.CASES[name]()
    launch, order = launcher(region, level, targets.CPUS["cpu"])
    arrays = gathers.arrays(region)
    index = arrays[region[0][1]]
    for place in outside:
        for at in (0, index.size - 1):
            index.flat[at] = place
            with pytest.raises(DataError, match="met an index outside what it picks from"):
                run(launch, order, region, arrays)
            index.flat[at] = last
    verdict = judge_region(region[1], arrays, run(launch, order, region, arrays))
    assert verdict.ok, "a call with good indices is right again"
