"""drop_rounds: leave out roundings that nothing discrete can see. In: a graph. Out: a graph with fewer `round` nodes.

Eager rounds every narrow result to memory. Keeping f32 between fused operators is more accurate, and allowed, unless
- a comparison, a where's condition, an arg-reduction, a floor, an integer or 8-bit cast, ... could decide otherwise;
- the model casts to the narrow type itself (`x - x.bfloat16()`): then the rounding is what it asks for;
- the narrow value is kept: a result, or what a library call reads. What a sum is told to be and what is subtracted
  from it afterwards are one number then (compensated sums live on that).
Library calls and contractions end the search for what is discrete: they read buffers, whose narrow type rounds anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from interfuse.ir.graph import Graph
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import CONTRACTION, DISCRETE, LIBRARY, MOVEMENT, TABLE
from interfuse.passes.rewrite import rewrite

CASTS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default", "aten.copy.default"))
"""Calls that change the type of their last operand and nothing else."""


def _decides(user: Node, operand: int) -> bool:
    """True where `user` makes a discrete choice from its operand."""
    if user.op == "where":
        return operand == 0
    if user.op == "cast":
        return not user.dtype.is_float or user.dtype.bytes == 1
    return user.op in DISCRETE


def seen_by_discrete(nodes: Sequence[Node]) -> set[Node]:
    """The nodes whose exact value a discrete operator can see through arithmetic, movement, reductions and scans."""
    seen: set[Node] = set()
    for user in reversed(nodes):
        if TABLE[user.op].band in (LIBRARY, CONTRACTION):
            continue
        for k, operand in enumerate(user.inputs):
            if user in seen or _decides(user, k):
                seen.add(operand)
    return seen


def asked_for(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """The roundings that casts of the model itself make, and those of narrow values that are kept; `nodes` are all that
    the graph has.
    """
    casts = [
        c.outs[0] for c in graph.calls if c.target in CASTS and c.outs[0] and c.operands[-1].dtype != c.outs[0].dtype
    ]
    held = [o.node for o in graph.outputs] + [n for c in graph.calls if c.opaque for n in c.operands]
    held += [n for u in nodes if TABLE[u.op].band in (LIBRARY, CONTRACTION) for n in u.inputs]
    found = set()
    for n in (*casts, *held):
        while n is not None and TABLE[n.op].band == MOVEMENT:
            n = n.inputs[0]
        if n is not None and n.op == "cast" and n.dtype.is_narrow and n.inputs[0].op == "round":
            found.add(n.inputs[0])
    return found


def drop_rounds(graph: Graph) -> Graph:
    """The graph without the roundings that no discrete operator sees and no model asks for. One that only its own cast
    reads goes in any case: the cast rounds.
    """
    roots = graph.roots()
    nodes = topological(roots)
    read = {n for user in nodes for n in user.inputs if n.op == "round" and not _rounds(user, n)}
    seen = seen_by_discrete(nodes) | asked_for(graph, nodes) & (read | set(roots))

    def dropped(old: Node, new: Node) -> Node | None:
        # `new` may already be what stood behind `old`: another rounding, which is asked about as itself.
        own = old.op == new.op == "round" and old.attr("to") == new.attr("to")
        return new.inputs[0] if own and old not in seen else None

    return rewrite(graph, dropped)


def _rounds(user: Node, rounding: Node) -> bool:
    """True where `user` casts to the type that `rounding` rounds to."""
    return user.op == "cast" and user.dtype.name == rounding.attr("to")
