"""A traced region. In: what a Tracer notes. Out: the Trace that loop trees are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from interfuse.ir.node import Node
from interfuse.lower.kernel import Let, Load, Meet, Reduce, Scan, Store, Value

Made = Union[Load, Let, Reduce, Scan, Meet]


@dataclass
class Trace:
    """What a region computes: `made` in an order that respects operands, `stores`, and each value's depth.

    `sums` reduce over the rows of a part, each within its column; `ends` store what they give.
    """

    made: list[Made] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    sums: list[Reduce] = field(default_factory=list)
    ends: list[Store] = field(default_factory=list)
    depth: dict[Value, int] = field(default_factory=dict)
    reads: dict[Node, str] = field(default_factory=dict)
