"""Bottom-up rewriting. In: a graph and a rule. Out: the graph with every node offered to the rule once its operands
are new.

A rule is a plain function (old node, rebuilt node) -> replacement, or None for no match; the replacement is offered
again until nothing matches. Rules keep dtype and shape; the driver of each pass relies on that and the verifier
checks it.
"""

from __future__ import annotations

from collections.abc import Callable

from interfuse.ir.graph import Graph
from interfuse.ir.node import Node, topological, with_inputs

Rule = Callable[[Node, Node], Node | None]

MOST_STEPS = 16
"""Replacements of one node in a row; a rule set that passes it does not terminate."""


def rewrite_nodes(roots: tuple[Node, ...], rule: Rule) -> dict[Node, Node]:
    """What each node below the roots becomes. Raises RecursionError where a rule set goes in circles."""
    memo: dict[Node, Node] = {}
    for node in topological(roots):
        inputs = tuple(memo[i] for i in node.inputs)
        new = with_inputs(node, inputs)
        for _ in range(MOST_STEPS):
            better = rule(node, new)
            if better is None:
                break
            new = better
        else:
            raise RecursionError(f"rewrites of {node} do not end")
        memo[node] = new
    return memo


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """The graph with `rule` applied everywhere."""
    return graph.replaced(rewrite_nodes(graph.roots(), rule))
