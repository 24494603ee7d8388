"""The ceiling twin: a bare kernel that reads and writes what a case does, and computes nothing.

In: the tensors that are read and those that are written. Out: functions that move the same bytes once. Every program
takes one piece of each tensor as 32-bit words; how long a piece pays is measured, so there is one function a length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 2048
PIECES = (1, 2, 4, 8)
"""Blocks of the largest tensor that one program takes."""

MOST_TENSORS = 12

SMALL = 0.005
"""Tensors below this share of the largest (weights, row results) stay with the first programs."""


@triton.jit
def move(ins, outs, in_words, out_words, in_piece, out_piece, BLOCK: tl.constexpr):  # noqa: N803
    """Read every word of `ins`, write every word of `outs`."""
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    seen = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(len(ins)):
        for start in range(0, in_piece[k], BLOCK):
            at = program * in_piece[k] + start + lane
            seen ^= tl.load(ins[k] + at, mask=(start + lane < in_piece[k]) & (at < in_words[k]), other=0)
    for k in tl.static_range(len(outs)):
        for start in range(0, out_piece[k], BLOCK):
            at = program * out_piece[k] + start + lane
            tl.store(outs[k] + at, seen, mask=(start + lane < out_piece[k]) & (at < out_words[k]))


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor as 32-bit words, a few bytes at the end left out."""
    flat = torch.as_strided(tensor, (tensor.numel(),), (1,)).view(torch.uint8)
    return flat[: flat.numel() // 4 * 4].view(torch.int32)


def together(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same number of words in one tensor where there are more tensors than a kernel should have arguments."""
    return [torch.cat(tensors)] if len(tensors) > MOST_TENSORS else tensors


def twins(reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Twins of a kernel with these dense tensors, by the length of a piece."""
    ins, outs = (together([words(t) for t in side if t.numel() * t.element_size() >= 4]) for side in (reads, writes))
    most = max(t.numel() for t in (*ins, *outs))
    found = {}
    for pieces in PIECES:
        programs = -(-most // (BLOCK * pieces))
        if pieces > 1 and programs < 132:
            break
        found[f"twin {pieces}"] = _launch(ins, outs, programs, most)
    return found


def _launch(ins: list[torch.Tensor], outs: list[torch.Tensor], programs: int, most: int) -> Callable[[], Any]:
    def piece(tensor: torch.Tensor) -> int:
        even = -(-tensor.numel() // programs)
        even = -(-even // 4) * 4  # 16 bytes: every piece starts where a vector may
        return max(even, min(BLOCK, tensor.numel())) if tensor.numel() < SMALL * most else even

    sizes = [tuple(t.numel() for t in side) for side in (ins, outs)]
    lengths = [tuple(map(piece, side)) for side in (ins, outs)]

    def run() -> Any:
        return move[(programs,)](tuple(ins), tuple(outs), *sizes, *lengths, BLOCK=BLOCK, num_warps=8)

    return run
