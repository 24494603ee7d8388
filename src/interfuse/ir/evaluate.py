"""The reference evaluator. In: nodes and NumPy arrays for the values they start from. Out: what the nodes stand for.

It applies the table's NumPy meanings one node at a time. Tests judge generated kernels by it. Nothing here is
fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from interfuse.ir import index
from interfuse.ir.check import require
from interfuse.ir.node import Node, topological
from interfuse.ir.numpy_meaning import held_type
from interfuse.ir.ops import LIBRARY, TABLE


def _number(value: Any, sizes: Mapping[str, int]) -> Any:
    """`value` with each index expression in it replaced by the integer it has."""
    if isinstance(value, index.Expr):
        missing = sorted(s.name for s in index.symbols(value) if s.name not in sizes)
        require(not missing, f"no size is given for the symbols {', '.join(missing)}")
        return index.evaluate(value, sizes)
    return tuple(_number(v, sizes) for v in value) if isinstance(value, tuple) else value


def concrete(node: Node, sizes: Mapping[str, int]) -> Node:
    """The node with the size symbols in its shape and attributes replaced by integers (not interned: for reading
    only).
    """
    shape, attrs = _number(node.shape, sizes), _number(node.attrs, sizes)
    return node if (shape, attrs) == (node.shape, node.attrs) else replace(node, shape=shape, attrs=attrs)


MOST_KNOWN = 1 << 22
"""Elements of the largest value that `known` works out: more would take longer than a compile may."""

MOST_NODES = 512
"""Nodes that it works out for one value."""


@functools.lru_cache(maxsize=32)
def known(node: Node) -> np.ndarray | None:
    """The array of a node that no input goes into, such as a mask made of positions; None for any other node, and where
    a value on the way is large or of a size that changes between calls.
    """
    stack, seen = [node], set[Node]()
    while stack:  # most nodes have an input below: the first that is met ends this
        below = stack.pop()
        if below in seen:
            continue
        seen.add(below)
        counts = [d for d in below.shape if isinstance(d, int)]
        if below.op == "input" or TABLE[below.op].band == LIBRARY or len(counts) < len(below.shape):
            return None
        if math.prod(counts) > MOST_KNOWN or len(seen) > MOST_NODES:
            return None
        stack += below.inputs
    return evaluate([node], {})[0]


def evaluate(
    roots: Sequence[Node],
    values: Mapping[Node, np.ndarray],
    wide: bool = False,
    symbols: Mapping[str, int] | None = None,
) -> list[np.ndarray]:
    """The arrays of `roots`, in their order.

    `values` gives arrays for every input, library and item node that the roots need; it may give other nodes too, which
    are then not computed. `wide` holds every float in float64 and leaves roundings out: the exact meaning that errors
    are measured against. `symbols` gives each size symbol by name. GraphError where a value or size is missing or
    misshapen.
    """
    sizes = symbols or {}
    held: dict[Node, np.ndarray] = {}
    for node in topological(roots, values):
        here = concrete(node, sizes)
        if node in values:
            given = np.asarray(values[node])
            require(given.shape == here.shape, f"the value given for {node} has shape {given.shape}")
            held[node] = given.astype(held_type(node.dtype, wide), copy=False)
            continue
        require(node.op != "input" and TABLE[node.op].band != LIBRARY, f"{node} needs a value: give it in `values`")
        held[node] = np.asarray(TABLE[node.op].meaning(here, [held[i] for i in node.inputs], wide))
    return [held[r] for r in roots]
