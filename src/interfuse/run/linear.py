"""Products of f32 matrices on a CPU's tile registers, by a function of our own. In: x, weight, bias or none. Out: the
product with an activation.

Tile registers multiply bf16 sixteen times as fast as vectors multiply f32; a float is three numbers of bf16, so six
products of them are a product of floats, with smaller errors than a sum of floats has (docs/design/0022). What cannot
be split so, infinities and rows of tiny numbers, is the library's, at the price of both. Each thread keeps 1.4 MiB of
working memory once it has multiplied.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.base.errors import InterfuseError
from interfuse.base.knobs import Knobs, current
from interfuse.build.compilers import cpu_text, vector_level
from interfuse.device.cpu import TILES
from interfuse.emit.linear import ACTIVATIONS, NAME, NUMBERS, source
from interfuse.run.cpu import routine
from interfuse.run.real import real_tensors

Function = Callable[[bytes, bytes], int]
Run = Callable[[Sequence[torch.Tensor], Mapping[str, Any]], torch.Tensor]

_PACK = struct.Struct(f"{NUMBERS}l").pack
_BUFFERS = struct.Struct("4P").pack

_built: list[Function] = []
_building = threading.Lock()


def missing(knobs: Knobs) -> str | None:
    """Why there are no tile registers to be used; None where there are."""
    if not set(cpu_text().split()) >= TILES:
        return "this CPU has no tile registers (AMX)"
    if vector_level(knobs) != "avx512":
        return "tile registers are used beside vectors of AVX-512 alone"
    try:
        run = function(knobs)
        with real_tensors():
            refused = _called(run, torch.ones(1, 1), torch.ones(1, 1), None, torch.empty(1, 1), "none")
    except (InterfuseError, OSError) as error:
        return str(error)
    return "this system does not let programs use the CPU's tile registers (AMX)" if refused else None


def function(knobs: Knobs | None = None) -> Function:
    """The function, built with the knobs of who asks first in this process. Errors as of `built`."""
    if not _built:
        with _building:
            if not _built:
                _built.append(built(knobs or current()))
    return _built[0]


def built(knobs: Knobs, tiles: bool = True) -> Function:
    """The same, built or found in the cache of `knobs`; without `tiles` for any CPU, with loops in their place. Errors
    as of building and loading a kernel.
    """
    return routine(NAME, source(tiles), knobs, ctypes.c_int)


def linear(
    tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any], library: Run, run: Function | None = None
) -> torch.Tensor:
    """activation(x @ weight.T + bias) in f32, x of (..., depth), weight of (columns, depth), bias of (columns,) or left
    out; `library` does what the function refuses, and `run` is the function to call.
    """
    x, weight, *bias = tensors
    rows, depth = x.numel() // max(1, x.shape[-1]), x.shape[-1]
    if not rows or not weight.numel():
        return library(tensors, attrs)
    flat, weight = (_stepped(t) for t in (x.reshape(rows, depth), weight))
    out = x.new_empty((*x.shape[:-1], len(weight)))
    offset = bias[0].contiguous() if bias else None
    failed = _called(run or function(), flat, weight, offset, out, attrs.get("activation", "none"))
    return library(tensors, attrs) if failed else out


def _called(
    run: Function, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, activation: str
) -> int:
    """What the function gives: 0 where `out` holds the product of these matrices."""
    at = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr())
    steps = (*_steps(x), *_steps(weight))
    return run(_BUFFERS(*at), _PACK(len(x), len(weight), x.shape[1], *steps, ACTIVATIONS.index(activation)))


def _stepped(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, copied where neither its rows nor its columns lie side by side."""
    return matrix if 1 in _steps(matrix) else matrix.contiguous()


def _steps(matrix: torch.Tensor) -> tuple[int, int]:
    """Elements from row to row and from column to column; a single column lies as well as any."""
    row, deep = matrix.stride()
    return (row, 1) if matrix.shape[1] == 1 else (1, deep) if matrix.shape[0] == 1 and deep != 1 else (row, deep)
