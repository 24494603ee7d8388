"""Statistics in one pass in C++. In: rows and columns of every kind of data. Out: values that keep the contract."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit.cpp import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32, F64, DType
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.kernel import Reduce, walk
from interfuse.lower.target import CPU
from interfuse.lower.work import Work
from interfuse.run.cpu import Launcher, load
from tests import online, targets

LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]
SHAPES = {
    "rows": ((9, 4999), 1),
    "short rows": ((9, 5), 1),
    "columns": ((2, 333, 70), 1),
    "few": ((7, 9), 0),
    "wide columns": ((2, 555, 530), 1),  # their moments are held for many rows
}
CASES = [(region, shape) for region in online.REGIONS for shape in SHAPES if shape[0] != "w" or region == "moments"]


@lru_cache
def _built(region: str, dtype: DType, shape: str, level: str) -> tuple[online.Region, Launcher]:
    inputs, outputs = made = online.REGIONS[region](dtype, *SHAPES[shape])
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    kernel, _ = lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts), targets.CPUS["cpu-streamed"])
    assert {s.op for s in walk(kernel.body) if isinstance(s, Reduce)} >= {"spread" if region == "moments" else "expsum"}
    source = emit(kernel, level)
    assert ("tall_strips<" in source) == (shape == "wide columns")
    with override(vector=level) as knobs:
        (artifact,) = build([(kernel.name, source)], knobs, open_cache(current()))
    return made, load(artifact, kernel)


@pytest.mark.parametrize("data", online.DATA)
@pytest.mark.parametrize(("region", "shape"), CASES)
@pytest.mark.parametrize(("dtype", "level"), [*((F32, level) for level in LEVELS), (F64, LEVELS[0]), (BF16, LEVELS[0])])
def test_one_pass_keeps_the_contract(dtype: DType, level: str, region: str, shape: str, data: str) -> None:
    (inputs, outputs), launch = _built(region, dtype, shape, level)
    array = np.ascontiguousarray(online.DATA[data](*SHAPES[shape])).astype(dtype.numpy)
    given = torch.from_numpy(array.astype(np.float64)).to(to_torch(dtype))
    outs = [torch.full(tuple(n.shape), 77, dtype=to_torch(n.dtype)) for n in outputs]
    launch([given, *outs])
    online.check(outputs, {inputs[0]: array}, outs)
    again = [torch.empty_like(o) for o in outs]
    launch([given, *again])
    assert all(torch.equal(a.nan_to_num(7), o.nan_to_num(7)) for a, o in zip(again, outs, strict=True))


def test_columns_ask_for_lines_in_the_order_in_which_they_are_read() -> None:
    def code(rows: int, cols: int) -> str:
        x = b.placeholder("x", F32, (rows, cols))
        outputs = (b.reduce("mean", x, (0,)), b.reduce("variance", x, (0,), correction=1))
        work = Work(outputs, frozenset((x,)), {n: contiguous(n.shape) for n in (x, *outputs)})
        return emit(lower("kernel", work, targets.CPUS["cpu-streamed"])[0], "avx512").split('extern "C"')[1]

    large, small, low, narrow = code(2048, 4096), code(512, 1024), code(64, 4096), code(4096, 160)
    assert (
        "tall_strips<" in large and large.count("prefetch(x_ptr + (row + down) * 4096 + (col_2 + along), col_2)") == 1
    )
    assert large.count("prefetch<2>(x_ptr + (row + 8) * 4096 + col_2, col_2)") == 1, "the next rows come nearer first"
    assert "tall_strips<" in small and "prefetch" not in small, "it lies in caches"
    assert "tall_strips<" not in low and "tall_strips<" not in narrow


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "portable"])
def test_a_program_writes_its_own_columns_alone(level: str) -> None:
    """What is written on the way, where the vectors of a program end within a line."""
    x = b.placeholder("x", F32, (90, 400))
    top = b.spread_over(b.reduce("max", x, (0,)), x, (0,))
    weight = b.apply("exp", b.apply("sub", x, top))
    outputs = (weight, b.reduce("sum", weight, (0,)), b.apply("eq", x, top))
    layouts = {n: contiguous(n.shape) for n in (x, *outputs)}
    kernel, _ = lower("kernel", Work(outputs, frozenset((x,)), layouts), replace(CPU, programs=2))
    source = emit(kernel, level)
    side, lanes = int(re.findall(r"col \+= (\d+) \* LANES", source)[0]), int(re.findall(r"LANES (\d+)", source)[0])
    assert f"strips<{side}, 4, " in source and side % 4 and side * lanes < 400
    first = source.replace("col < 400; col +=", "col < 1; col +=")
    assert first != source
    with override(vector=level) as knobs:
        (artifact,) = build([("kernel", first)], knobs, open_cache(current()))
    outs = [torch.full((90, 400), 77.0), torch.full((400,), 77.0), torch.zeros((90, 400), dtype=torch.bool)]
    given = torch.randn(90, 400, generator=torch.Generator().manual_seed(0))
    load(artifact, kernel)([given, *outs])
    wanted = (given - given.amax(0)).exp()
    torch.testing.assert_close(outs[0][:, : side * lanes], wanted[:, : side * lanes])
    assert (outs[0][:, side * lanes :] == 77).all() and not outs[2][:, side * lanes :].any()
