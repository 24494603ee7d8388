"""Random regions through lowering, C++ and the machine. In: regions() and data of every kind. Out: evaluated values."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from interfuse.base.errors import UnsupportedError
from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import Cache, open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit.cpp import emit
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.lower.families import Target, Work, lower
from interfuse.run.cpu import load
from tests import joins, symbolic, targets
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


@pytest.mark.parametrize("name", list(symbolic.CASES))
def test_one_kernel_serves_every_size(name: str) -> None:
    inputs, outputs = symbolic.CASES[name]()
    for target in targets.CPUS.values():
        kernel, order = symbolic.lowered((inputs, outputs), target)
        with override(vector=LEVELS[0]) as knobs:
            (artifact,) = build([(kernel.name, emit(kernel, LEVELS[0]))], knobs, _cache())
        launch = load(artifact, kernel)
        for sizes in symbolic.SIZES:
            arrays = symbolic.arrays(inputs, sizes)
            outs = [torch.full(symbolic.shape_of(n, sizes), 77, dtype=to_torch(n.dtype)) for n in outputs]
            launch([*(tensor(arrays[n], to_torch(n.dtype)) for n in order), *outs], [sizes[s] for s in kernel.symbols])
            verdict = judge_region(outputs, arrays, outs, symbols=sizes)
            assert verdict.ok, (sizes, verdict.note)
