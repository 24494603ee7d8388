"""simplify: local rewrites that never change a value. In: a graph. Out: a graph with fewer or cheaper nodes.

Each rule is data: a name, the operator that it starts from, and a function that gives the better node or None. Rules
are exact: the result has the same bits for every input, NaN payloads aside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from interfuse.ir import build as b
from interfuse.ir.dtypes import DType
from interfuse.ir.graph import Graph
from interfuse.ir.node import Node
from interfuse.passes.bounds import OPPOSITE, compared
from interfuse.passes.rewrite import rewrite

EXACT = 256
"""Whole numbers up to this one are the same in every floating type of 16 bits and more."""


@dataclass(frozen=True)
class Rewrite:
    """One rule: `apply(node)` gives the better node, or None where it does not match."""

    name: str
    op: str
    apply: Callable[[Node], Node | None]


def holds(wide: DType, narrow: DType) -> bool:
    """True where every value of `narrow` is exactly a value of `wide`."""
    if narrow is wide or narrow.kind == "bool":
        return True
    if narrow.is_float and wide.is_float:
        return wide.bytes >= 4 and wide.bytes > narrow.bytes
    if narrow.is_float or wide.kind == "bool":
        return False
    bits = narrow.bytes * 8 - (narrow.kind == "int")
    room = {4: 24, 8: 53, 2: 11}.get(wide.bytes, 0) if wide.is_float else wide.bytes * 8 - (wide.kind == "int")
    return bits <= room and (wide.is_float or wide.kind == "int" or narrow.kind == "uint")


def constant_of(node: Node) -> float | int | bool | None:
    """The value of a constant behind expands and reshapes, or None."""
    while node.op in ("expand", "reshape"):
        node = node.inputs[0]
    return node.attr("value") if node.op == "const" else None


def _cast_back(n: Node) -> Node | None:
    inner = n.inputs[0]
    if inner.op == "cast" and inner.inputs[0].dtype is n.dtype and holds(inner.dtype, n.dtype):
        return inner.inputs[0]
    return None


def _cast_known(n: Node) -> Node | None:
    c = constant_of(n.inputs[0])
    if c is None or not n.dtype.is_float or n.dtype.bytes == 1 or math.isnan(c):
        return None
    return b.like(float(c), n) if math.isinf(c) or (c == int(c) and abs(c) <= EXACT) else None


def _double_permute(n: Node) -> Node | None:
    inner = n.inputs[0]
    if inner.op != "permute":
        return None
    first, second = inner.attr("order"), n.attr("order")
    return b.permute(inner.inputs[0], tuple(first[k] for k in second))


def _double_reshape(n: Node) -> Node | None:
    inner = n.inputs[0]
    return b.reshape(inner.inputs[0], n.shape) if inner.op == "reshape" else None


def _double_expand(n: Node) -> Node | None:
    inner = n.inputs[0]
    return b.expand(inner.inputs[0], n.shape) if inner.op == "expand" else None


def _times_one(n: Node) -> Node | None:
    for k in range(2):
        if constant_of(n.inputs[k]) == 1:
            return n.inputs[1 - k]
    return None


def _plus_nothing(n: Node) -> Node | None:
    """Of integers: a float's -0 becomes 0."""
    if not n.dtype.is_float and constant_of(n.inputs[1]) == 0 and n.dtype.kind != "bool":
        return n.inputs[0]
    return None


def _over_one(n: Node) -> Node | None:
    return n.inputs[0] if constant_of(n.inputs[1]) == 1 else None


def _over_power_of_two(n: Node) -> Node | None:
    c = constant_of(n.inputs[1])
    if not n.dtype.is_float or not isinstance(c, float) or c == 0 or not math.isfinite(c):
        return None
    mantissa, exponent = math.frexp(c)
    if abs(mantissa) != 0.5 or abs(exponent) > 100:
        return None
    return b.apply("mul", n.inputs[0], b.like(1 / c, n), hint=n.hint)


def _small_power(n: Node) -> Node | None:
    c, x = constant_of(n.inputs[1]), n.inputs[0]
    if c == 1:
        return x
    return b.apply("mul", x, x, hint="squared") if c == 2 else None


def _where_known(n: Node) -> Node | None:
    c = constant_of(n.inputs[0])
    return None if c is None else n.inputs[1 if c else 2]


def _compared(n: Node) -> Node | None:
    known = compared(n)
    return None if known is None else b.like(known, n)


def _joined_with_known(neutral: bool) -> Callable[[Node], Node | None]:
    """Where one side of an `and` or `or` of truth values is known: the other side, or what that side decides."""

    def rule(n: Node) -> Node | None:
        if n.dtype.kind != "bool":
            return None
        for k in range(2):
            c = constant_of(n.inputs[k])
            if c is not None:
                return n.inputs[1 - k if bool(c) is neutral else k]
        return None

    return rule


RULES: tuple[Rewrite, ...] = (
    Rewrite("cast_back", "cast", _cast_back),
    Rewrite("cast_known", "cast", _cast_known),
    Rewrite("double_permute", "permute", _double_permute),
    Rewrite("double_reshape", "reshape", _double_reshape),
    Rewrite("double_expand", "expand", _double_expand),
    Rewrite("times_one", "mul", _times_one),
    Rewrite("plus_nothing", "add", _plus_nothing),
    Rewrite("over_one", "div", _over_one),
    Rewrite("over_power_of_two", "div", _over_power_of_two),
    Rewrite("small_power", "pow", _small_power),
    Rewrite("where_known", "where", _where_known),
    *(Rewrite(f"{op}_known", op, _compared) for op in OPPOSITE),
    Rewrite("and_true", "and", _joined_with_known(True)),
    Rewrite("or_false", "or", _joined_with_known(False)),
)
"""Every rule of this pass."""

_BY_OP: dict[str, tuple[Rewrite, ...]] = {op: tuple(r for r in RULES if r.op == op) for op in {r.op for r in RULES}}


def apply_rules(node: Node) -> Node | None:
    """The first rule's better node, or None."""
    for rule in _BY_OP.get(node.op, ()):
        better = rule.apply(node)
        if better is not None and better is not node:
            return better
    return None


def simplify(graph: Graph) -> Graph:
    """The graph with every rule applied until none matches."""
    return rewrite(graph, lambda old, new: apply_rules(new))
