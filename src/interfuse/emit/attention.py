"""The C++ function that computes attention. In: element types and the size of a head. Out: its text.

It takes what a kernel takes: the addresses of query, key, value, mask and result, then a row of longs: batch, heads,
queries, keys, whether it is causal, three strides (batch, head, row) for each of the five, and the bits of the scale.
Elements of a head lie side by side, and so do a row's of the mask.
"""

from __future__ import annotations

from interfuse.emit import cpp_prelude
from interfuse.emit.cpp import PARALLEL_FROM
from interfuse.emit.cpp_types import VECTOR_BYTES

NAME = "interfuse_attention"

NUMBERS = 5 + 5 * 3 + 1
"""How many longs it takes."""

_TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16", "": "bool"}


def source(dtype: str, mask: str, head: int, vector: str) -> str:
    """The text for elements of `dtype`, a mask of type `mask` ("" for none) and heads of `head` elements, written for
    vector level `vector`.
    """
    at, seen = _TYPES[dtype], _TYPES[mask]
    code = f"""\
extern "C" void {NAME}(void* const* buffers, const long* numbers) {{
    float scale;
    __builtin_memcpy(&scale, numbers + {NUMBERS - 1}, sizeof scale);
    attention<{head}>(
        (const {at}*)buffers[0], (const {at}*)buffers[1], (const {at}*)buffers[2], (const {seen}*)buffers[3],
        ({at}*)buffers[4], *(const Attention*)numbers, scale, {PARALLEL_FROM});
}}
"""
    return (
        f"// Attention with heads of {head} elements.\n\n#define LANES {VECTOR_BYTES[vector] // 4}\n\n"
        f"namespace {{\n\n{cpp_prelude.select(f'{code} LANES')}\n\n}}  // namespace\n\n{code}"
    )
