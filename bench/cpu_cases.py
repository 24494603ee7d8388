"""The CPU kernels that are measured. In: a size and an element type. Out: for each name a function and its inputs.

`twin` names the bare loop over the same bytes that a case is held against: as many whole tensors read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIZES = {"2048x4096": (2048, 4096), "256x4096": (256, 4096)}

Function = Callable[..., Any]
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One kernel: what it computes, its inputs from (rows, columns, element type), and the twin beside it."""

    function: Function
    inputs: Callable[[int, int, torch.dtype], Inputs]
    twin: str


def _two(rows: int, cols: int, dtype: torch.dtype) -> Inputs:
    return torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)


def _one(rows: int, cols: int, dtype: torch.dtype) -> Inputs:
    return (torch.randn(rows, cols).to(dtype),)


def _with(base: Callable[[int, int, torch.dtype], Inputs], vectors: int) -> Callable[[int, int, torch.dtype], Inputs]:
    return lambda rows, cols, dtype: (*base(rows, cols, dtype), *(torch.rand(cols).to(dtype) for _ in range(vectors)))


@dataclass(frozen=True)
class Twin:
    """A bare loop that reads `reads` whole tensors, its inputs, and writes `writes`."""

    function: Function
    reads: int
    writes: int


TWINS: Mapping[str, Twin] = {
    "two in, one out": Twin(lambda x, r: x + r, 2, 1),
    "one in, one out": Twin(lambda x: x * 0.5, 1, 1),
    "one in": Twin(lambda x: x.sum(-1), 1, 0),
}
"""Bare loops, by the whole tensors that they read and write."""

CASES: Mapping[str, Case] = {
    "gelu_erf": Case(lambda x, r, b: gelu(x + b) + r, _with(_two, 1), "two in, one out"),
    "gelu_tanh": Case(lambda x, r, b: gelu(x + b, approximate="tanh") + r, _with(_two, 1), "two in, one out"),
    "layer_norm": Case(lambda x, r, w, b: layer_norm(x + r, w.shape, w, b), _with(_two, 2), "two in, one out"),
    "softmax": Case(lambda x: torch.softmax(x, -1), _one, "one in, one out"),
    "swiglu": Case(lambda x, r: silu(x) * r, _two, "two in, one out"),
    "rms_norm": Case(lambda x, r, w: rms_norm(x + r, w.shape, w, 1e-6), _with(_two, 1), "two in, one out"),
    "mean_variance": Case(lambda x: torch.var_mean(x, -1), _one, "one in"),
    "cumsum": Case(lambda x, s: torch.cumsum(x, -1) * s, _with(_one, 1), "one in, one out"),
    "column_mean_variance": Case(lambda x: torch.var_mean(x, 0), _one, "one in"),
}
"""Every kernel by name."""
