"""The C++ function that multiplies f32 matrices on a CPU's tile registers. In: whether there are any. Out: its text.

Tile registers multiply bf16. A float is three numbers of bf16, which add up to it, so a product of floats is nine of
bf16, of which six matter. The function takes what a kernel takes: the addresses of x, weight, bias or null, and result,
then a row of longs: rows, columns and depth, the steps of x and of the weight (from row to row, from number to number),
and the number of the activation. It gives 0, or 1 where another routine must do it (`split_product` says when).
"""

from __future__ import annotations

from interfuse.emit import cpp_prelude
from interfuse.emit.cpp import PARALLEL_FROM

NAME = "interfuse_linear"

NUMBERS = 8
"""How many longs it takes."""

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "swish")
"""What it knows to do with a result, in the order of their numbers."""

LANES = 16
"""Floats of a vector: a row of a tile."""


def source(tiles: bool) -> str:
    """The text, with tile registers or with loops that stand for them."""
    code = f"""\
extern "C" int {NAME}(void* const* buffers, const long* numbers) {{
    return split_product(
        (const float*)buffers[0], (const float*)buffers[1], (const float*)buffers[2], (float*)buffers[3],
        *(const SplitProduct*)numbers, {PARALLEL_FROM});
}}
"""
    return (
        f"// Products of f32, split into bf16.\n\n#define LANES {LANES}\n#define TILES {int(tiles)}\n\n"
        f"namespace {{\n\n{cpp_prelude.select(f'{code} LANES')}\n\n}}  // namespace\n\n{code}"
    )
