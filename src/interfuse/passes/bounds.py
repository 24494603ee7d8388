"""Bounds of integers. In: a node. Out: the least and the greatest value that its elements can have, where that shows.

Positions, sizes and constants have bounds whatever the inputs hold. What is compared with such numbers is often known:
that a position is not negative, say, which masks ask where nothing is hidden. Sums that could leave their type have no
bounds, for they wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from interfuse.ir.dtypes import DType
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES

Bounds = tuple[int, int]

_BY_OP: Mapping[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}

_HOLDS: Mapping[str, Callable[[Bounds, Bounds], bool]] = {
    "lt": lambda a, b: a[1] < b[0],
    "le": lambda a, b: a[1] <= b[0],
    "gt": lambda a, b: a[0] > b[1],
    "ge": lambda a, b: a[0] >= b[1],
    "eq": lambda a, b: a[0] == a[1] == b[0] == b[1],
    "ne": lambda a, b: a[1] < b[0] or a[0] > b[1],
}
"""When a comparison holds for all elements; it fails for all where its opposite holds."""

OPPOSITE: Mapping[str, str] = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
"""Each comparison of integers and the one that holds where it fails."""


DEEP = 8
"""Operators in a row that are looked through."""


def bounds(node: Node, deep: int = DEEP) -> Bounds | None:
    """The least and the greatest value of an integer node; None where nothing is known."""
    if node.dtype.kind not in ("int", "uint") or not deep:
        return None
    if node.op == "const":
        value = int(node.attr("value"))
        return value, value
    if node.op == "iota":
        (count,) = node.shape
        return (0, count - 1) if isinstance(count, int) and count > 0 else None
    if node.op in MOVES or node.op == "copy":
        return bounds(node.inputs[0], deep)
    found = bounds(node.inputs[0], deep) if node.op == "cast" else _combined(node, deep - 1)
    return found if found is not None and _inside(found, node.dtype) else None


def compared(node: Node) -> bool | None:
    """What a comparison of integers gives for every element; None where that depends on them."""
    sides = [bounds(n) for n in node.inputs]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    if _HOLDS[node.op](sides[0], sides[1]):
        return True
    return False if _HOLDS[OPPOSITE[node.op]](sides[0], sides[1]) else None


def _combined(node: Node, deep: int) -> Bounds | None:
    rule = _BY_OP.get(node.op)
    if rule is None:
        return None
    a, b = (bounds(n, deep) for n in node.inputs)
    return None if a is None or b is None else rule(a, b)


def _inside(found: Bounds, dtype: DType) -> bool:
    """True where both bounds are values of the type: nothing has wrapped."""
    bits = 8 * dtype.bytes
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << bits) - 1)
    return least <= found[0] and found[1] <= most
