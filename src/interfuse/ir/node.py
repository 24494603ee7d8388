"""Nodes of the tensor IR. In: operator names, inputs, attributes. Out: immutable interned values.

A node is a value: what it computes from what, with its element type and shape, and never where or how it is stored.
Two nodes with the same operator, inputs, dtype, shape, attributes and order token are the same object. The model's
source line and a readable hint travel along but are not part of identity, so equal work on two lines is one node.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from interfuse.ir.dtypes import DType
from interfuse.ir.index import Dim, Expr, product, unwrap


@dataclass(frozen=True, eq=False)
class Node:
    """One value: `op` names a row of the operator table; `attrs` are sorted (name, plain value) pairs.

    `token` orders nodes that must not be merged (library, random, mutating, collective); None elsewhere.
    `source` is "file.py:line" of the model, `hint` a short name for printed code.
    """

    op: str
    inputs: tuple[Node, ...]
    dtype: DType
    shape: tuple[Dim, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    token: int | None = None
    source: str = field(default="", compare=False)
    hint: str = field(default="", compare=False)

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name`, or `default`."""
        return dict(self.attrs).get(name, default)

    @property
    def size(self) -> Dim:
        """How many elements the value has."""
        return product(self.shape)

    def __repr__(self) -> str:
        dims = "x".join(str(d) for d in self.shape)
        return f"{self.op}:{self.dtype}[{dims}]"


_interned: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()
_interning = threading.Lock()
"""Held while a node is added: graphs may be compiled in several threads, and equal nodes must be one object."""


def expressions(value: Any) -> tuple[Expr, ...]:
    """The index expressions inside an attribute value, in order."""
    if isinstance(value, Expr):
        return (value,)
    return tuple(e for v in value for e in expressions(v)) if isinstance(value, tuple) else ()


def _plain(value: Any) -> Any:
    """`value` with constant index expressions as plain integers, so that 4 and the constant 4 are one size."""
    return tuple(map(_plain, value)) if isinstance(value, tuple) else unwrap(value)


def make(
    op: str,
    inputs: tuple[Node, ...],
    dtype: DType,
    shape: tuple[Dim, ...],
    token: int | None = None,
    source: str = "",
    hint: str = "",
    **attrs: Any,
) -> Node:
    """The node with these parts, created if there is none yet. Types are not checked here: see `build` and `verify`."""
    pairs, shape = _plain(tuple(sorted(attrs.items()))), _plain(tuple(shape))
    # repr, not equality, keys the attributes: 1, 1.0 and True, or 0.0 and -0.0, are different constants. Index
    # expressions print without their intervals, so they stand in the key themselves.
    key = (op, tuple(id(i) for i in inputs), dtype.name, shape, repr(pairs), expressions(pairs), token)
    found = _interned.get(key)
    if found is None:
        found = Node(op, tuple(inputs), dtype, shape, pairs, token, source, hint)
        with _interning:
            found = _interned.setdefault(key, found)
    return found


def topological(roots: Sequence[Node], leaves: Collection[Node] = ()) -> list[Node]:
    """Every node that the roots need, inputs before users, in a stable order; iterative, so depth is no limit.

    Nodes in `leaves` (give a set or dict) come out themselves, but nothing that only they need does.
    """
    done: set[Node] = set()
    out: list[Node] = []
    for root in roots:
        stack: list[tuple[Node, int]] = [(root, 0)]
        while stack:
            node, k = stack.pop()
            if node in done:
                continue
            if k < len(node.inputs) and node not in leaves:
                stack.append((node, k + 1))
                if node.inputs[k] not in done:
                    stack.append((node.inputs[k], 0))
            else:
                done.add(node)
                out.append(node)
    return out


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operator on other inputs; the node itself where they are its own."""
    if inputs == node.inputs:
        return node
    return make(node.op, inputs, node.dtype, node.shape, node.token, node.source, node.hint, **dict(node.attrs))
