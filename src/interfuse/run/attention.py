"""Attention on a CPU, by a function of our own. In: query, key, value, a mask or none. Out: the weighted values.

PyTorch's own takes its two products from the library of matrix products, whose calls for one head are small; here both
stay in registers and caches, and what is narrow is widened once. The result lies as PyTorch's does: heads innermost but
one. A function serves all sizes; it is built, or found in the cache, when it is first asked for.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.base.knobs import Knobs, current
from interfuse.build.compilers import vector_level
from interfuse.capture.torch_types import from_torch
from interfuse.emit.attention import NAME, NUMBERS, source
from interfuse.ir.build import apply, broadcast, cast, expand, iota, like, reduce, reshape, spread_over
from interfuse.ir.dtypes import compute_type
from interfuse.ir.node import Node
from interfuse.run.cpu import routine

Function = Callable[[bytes, bytes], None]

_PACK = struct.Struct(f"{NUMBERS - 1}lf4x").pack
_BUFFERS = struct.Struct("5P").pack

_functions: dict[tuple[str, str, int], Function] = {}
_building = threading.Lock()


def function(dtype: str, mask: str, head: int, knobs: Knobs | None = None) -> Function:
    """The function for these types ("" for no mask) and heads of so many elements: built with the knobs of who asks
    first in this process. Errors as of `built`.
    """
    key = (dtype, mask, head)
    found = _functions.get(key)
    if found is None:
        with _building:
            found = _functions.get(key) or built(dtype, mask, head, knobs or current())
            _functions[key] = found
    return found


def built(dtype: str, mask: str, head: int, knobs: Knobs) -> Function:
    """The same, built for the vector level of `knobs` or found in their cache. Errors as of building and loading a
    kernel.
    """
    return routine(NAME, source(dtype, mask, head, vector_level(knobs)), knobs)


def attention(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any], run: Function | None = None) -> torch.Tensor:
    """Query, key and value of (batch, heads, rows, head), then a mask that can be expanded to (batch, heads, queries,
    keys) and is added to the scores, where there is one. `attrs` has scale and causal; `run` is the function to call.
    """
    query, key, value = (t if t.stride(3) == 1 else t.contiguous() for t in tensors[:3])
    batch, heads, queries, head = query.shape
    keys = key.shape[2]
    out = query.new_empty((batch, queries, heads, head)).transpose(1, 2)
    mask, seen = 0, ""
    steps: tuple[int, ...] = (0, 0, 0)
    if len(tensors) > 3:
        given = tensors[3] if tensors[3].stride(-1) == 1 else tensors[3].contiguous()
        given = given.expand(batch, heads, queries, keys)
        given = given if given.stride(3) == 1 or keys == 1 else given.contiguous()
        mask, steps, seen = given.data_ptr(), given.stride()[:3], from_torch(given.dtype).name
    run = run or function(from_torch(query.dtype).name, seen, head)
    strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *steps, *out.stride()[:3])
    run(
        _BUFFERS(query.data_ptr(), key.data_ptr(), value.data_ptr(), mask, out.data_ptr()),
        _PACK(batch, heads, queries, keys, bool(attrs.get("causal")), *strides, attrs["scale"]),
    )
    return out


def meaning(operands: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    """The node that `attention` computes."""
    dtype, at = operands[0].dtype, compute_type(operands[0].dtype)
    query, key, value, *mask = (cast(o, at) for o in operands)
    batch, heads, queries, head = query.shape
    keys = key.shape[2]
    full, wide = (batch, heads, queries, keys), (batch, heads, queries, keys, head)
    products = apply("mul", expand(_beside(query, 3), wide), expand(_beside(key, 2), wide))
    scores = reduce("sum", products, (4,))
    scores = apply("mul", scores, like(float(attrs["scale"]), scores))
    if mask:
        scores = apply("add", scores, broadcast(mask[0], full))
    if attrs.get("causal"):
        row, column = (
            expand(reshape(iota(n), tuple(n if k == d else 1 for k in range(4))), full)
            for d, n in ((2, queries), (3, keys))
        )
        scores = apply("where", apply("le", column, row), scores, like(-math.inf, scores))
    shifted = apply("sub", scores, spread_over(reduce("max", scores, (3,)), scores, (3,)))
    shares = apply("exp", shifted)
    shares = apply("div", shares, spread_over(reduce("sum", shares, (3,)), shares, (3,)))
    weighted = apply("mul", expand(_beside(shares, 4), wide), expand(_beside(value, 2), wide))
    return cast(reduce("sum", weighted, (3,)), dtype)


def _beside(x: Node, at: int) -> Node:
    """x with a dimension of size 1 before dimension `at`."""
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))
