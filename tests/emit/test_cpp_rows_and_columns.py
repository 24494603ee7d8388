"""Rows and columns in one pass in C++. In: regions that reduce both. Out: values that keep the contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit.cpp import emit
from interfuse.ir.dtypes import BF16, F16, F32, F64, DType
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import CPU
from interfuse.run.cpu import load
from tests import mixed, parts
from tests.emit.triton_cases import array, tensor
from tests.judge import judge_region

LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]
TYPES = [*((F32, level) for level in LEVELS), *((dtype, LEVELS[0]) for dtype in (F64, BF16, F16))]

REGIONS = {**mixed.REGIONS, "joined": mixed.joined}


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize(("dtype", "level"), TYPES, ids=str)
def test_values_keep_the_contract(dtype: DType, level: str, name: str) -> None:
    def run(kernel: Kernel, given: list[np.ndarray], outputs: tuple[Node, ...]) -> list[np.ndarray]:
        with override(vector=level) as knobs:
            (artifact,) = build([(kernel.name, emit(kernel, level))], knobs, open_cache(current()))
        ins = [tensor(a, p.dtype) for a, p in zip(given, kernel.params, strict=False)]
        outs = [torch.full(n.shape, 77, dtype=to_torch(n.dtype)) for n in outputs]
        load(artifact, kernel)([*ins, *outs])
        return [array(t, n.dtype) for t, n in zip(outs, outputs, strict=True)]

    for shape in ((45, 33), (133, 64)):
        region = REGIONS[name](dtype, *shape)
        for kind in mixed.KINDS if dtype is F32 else ("random",):
            given = mixed.values(region[0], kind)
            verdict = judge_region(region[1], given, parts.in_order(region, CPU, given, run, mixed.works))
            assert verdict.ok, f"{shape} {kind}: {verdict.note}"
