"""Which buffers outputs must share. In: a graph. Out: one storage key an output, as in eager.

Nodes are values: x * 1 may be the node x. Whoever holds two outputs of the model must still find two tensors where
eager gives two, and one buffer seen twice where eager gives a view. Captured calls tell which: a view call shares its
operand's storage, any other call makes a new one.
"""

from __future__ import annotations

from collections.abc import Hashable

from interfuse.ir.graph import Graph
from interfuse.ir.node import Node

Storage = Hashable
"""("input", node) or ("call", position of the call, position of the result)."""


def storages(graph: Graph) -> dict[Node, tuple[Storage, ...]]:
    """Every storage that eager may hold each node in, oldest first: a node that two calls give has two."""
    found: dict[Node, list[Storage]] = {i.node: [("input", i.node)] for i in graph.inputs}

    def add(node: Node, storage: Storage) -> None:
        if storage not in found.setdefault(node, []):
            found[node].append(storage)

    for position, call in enumerate(graph.calls):
        for k, out in enumerate(call.outs):
            if out is None:
                continue
            shared = () if call.view_of is None else found.get(call.operands[call.view_of], ())
            add(out, shared[-1] if shared else ("call", position, k))
    return {node: tuple(keys) for node, keys in found.items()}


def output_storages(graph: Graph) -> list[Storage | None]:
    """The storage of each output (None for one that is no tensor or that no call gives).

    Where a node has several, an output takes the first one made by a call that no earlier output took: a tensor too
    many is safe, one too few is not.
    """
    known = storages(graph)
    taken: set[Storage] = set()
    chosen: list[Storage | None] = []
    for output in graph.outputs:
        keys = () if output.node is None else known.get(output.node, ())
        made = [k for k in keys if isinstance(k, tuple) and k[0] == "call" and k not in taken]
        key = made[0] if made else keys[0] if keys else None
        taken.add(key)
        chosen.append(key)
    return chosen
