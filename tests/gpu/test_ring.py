"""Rows in a ring of shared memory on a GPU. In: rows that are reduced and written across. Out: the contract's values,
over outputs that were full of NaN, and in graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from interfuse.emit.triton import emit
from interfuse.ir.dtypes import BF16, F16, F32, DType
from interfuse.ir.node import Node
from interfuse.lower.ring import FAMILY
from interfuse.lower.target import GPU
from interfuse.run import gpu
from tests import rings, strategies
from tests.emit import triton_cases as cases
from tests.gpu.chosen import compiled_as
from tests.judge import judge, judge_region


def _has_none() -> bool:
    return not torch.cuda.is_available() or not gpu.profile_of(0).ring


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_has_none(), reason="needs a GPU whose programs fill shared memory while they compute"),
    pytest.mark.usefixtures("predicted", "no_gradients"),
]


@pytest.mark.parametrize("kind", ("random", "special"))
@pytest.mark.parametrize(("dtype", "cols"), ((F16, 4096), (BF16, 1024), (F32, 768)))
@pytest.mark.parametrize("region", rings.PLAIN)
def test_values(region: Callable[[DType, int, int], rings.Region], dtype: DType, cols: int, kind: str) -> None:
    inputs, outputs = region(dtype, 1152, cols)
    kernel, reads = rings.lowered((inputs, outputs), replace(GPU, programs=2, ring=gpu.profile_of(0).ring))
    rng = np.random.default_rng(3)
    values: dict[Node, np.ndarray] = {
        n: strategies._floats(kind, n.dtype, n.shape, rng).astype(n.dtype.numpy) for n in inputs
    }
    ins = [cases.tensor(values[n], n.dtype, "cuda") for n in reads]
    out = torch.full(outputs[0].shape, float("nan"), dtype=cases.TORCH[dtype], device="cuda")
    run = gpu.load(emit(kernel), kernel)
    for _ in range(3):
        out.fill_(float("nan"))
        run((*ins, out))
        assert judge_region(outputs, values, [cases.array(out, dtype)]).ok


compiled = partial(compiled_as, f"fused: {FAMILY}")


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b).transpose(1, 2).contiguous()


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32), ids=str)
def test_layer_norm_of_a_batch(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((4, 4096, 2048), (2048,), (2048,)))
    assert judge(norm, (x, w, b), compiled(norm, x, w, b)).ok


def test_a_graph_is_replayed_and_what_begins_with_no_vector_is_copied() -> None:
    whole = torch.randn(4 * 4096 * 1024 + 1, device="cuda", dtype=torch.float16)
    w, b = (torch.randn(1024, device="cuda", dtype=torch.float16) for _ in range(2))
    x = whole[:-1].view(4, 4096, 1024)
    run = compiled(norm, x, w, b)
    wanted, graph = run(x, w, b), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [run(x, w, b) for _ in range(3)]
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(r, wanted) for r in results)
    odd = whole[1:].view(4, 4096, 1024)
    assert judge(norm, (odd, w, b), run).ok
