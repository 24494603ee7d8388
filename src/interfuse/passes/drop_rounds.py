"""drop_rounds: leave out roundings that nothing discrete can see. In: a graph. Out: a graph with fewer `round` nodes.

Eager rounds every narrow result to memory. Keeping f32 between fused operators is more accurate, and allowed, unless a
comparison, a where's condition, an arg-reduction, a floor, an integer or 8-bit cast, ... could decide otherwise for it,
or unless the model casts a wide value to a narrow type and straight back: then the rounding is what it asks for.
Library calls and contractions end the search: they read buffers, whose narrow type rounds anyway.
"""

from __future__ import annotations

from interfuse.ir.graph import Graph
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import CONTRACTION, DISCRETE, LIBRARY, MOVEMENT, TABLE
from interfuse.passes.rewrite import rewrite

CASTS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default"))
"""Calls that change the type of their operand and nothing else."""


def _decides(user: Node, operand: int) -> bool:
    """True where `user` makes a discrete choice from its operand."""
    if user.op == "where":
        return operand == 0
    if user.op == "cast":
        return not user.dtype.is_float or user.dtype.bytes == 1
    return user.op in DISCRETE


def seen_by_discrete(roots: tuple[Node, ...]) -> set[Node]:
    """The nodes whose exact value a discrete operator can see through arithmetic, movement, reductions and scans."""
    seen: set[Node] = set()
    for user in reversed(topological(roots)):
        if TABLE[user.op].band in (LIBRARY, CONTRACTION):
            continue
        for k, operand in enumerate(user.inputs):
            if user in seen or _decides(user, k):
                seen.add(operand)
    return seen


def asked_for(graph: Graph) -> set[Node]:
    """The roundings of wide values that are cast to a narrow type and back, moved at most between the two. What an
    operator gives in a narrow type is not cast to it: its rounding is no more than the way that eager takes.
    """
    casts = [
        (c.operands[0], c.outs[0]) for c in graph.calls if c.target in CASTS and c.operands and c.outs[0] is not None
    ]
    narrowed = {to for of, to in casts if to.op == "cast" and of.dtype.is_float and of.dtype.bytes > to.dtype.bytes}
    found = set()
    for of, to in casts:
        while TABLE[of.op].band == MOVEMENT:
            of = of.inputs[0]
        if of in narrowed and to.dtype.is_float and to.dtype.bytes > of.dtype.bytes:
            found.add(of.inputs[0])
    return found


def drop_rounds(graph: Graph) -> Graph:
    """The graph without the roundings that no discrete operator sees and no model asks for."""
    seen = seen_by_discrete(graph.roots()) | asked_for(graph)

    def dropped(old: Node, new: Node) -> Node | None:
        # `new` may already be what stood behind `old`: another rounding, which is asked about as itself.
        own = old.op == new.op == "round" and old.attr("to") == new.attr("to")
        return new.inputs[0] if own and old not in seen else None

    return rewrite(graph, dropped)
