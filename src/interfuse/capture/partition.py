"""Where a training step is parted. In: its joint graph of AOTAutograd. Out: the forward and the backward graph.

PyTorch's partition by the least that is saved, but for what the backward compares: the gradient of an extreme looks for
the elements that equal it. A value that is made again there need not have the bits it had when the extreme was taken
(roundings to narrow types that nothing saw were left out, another kernel adds in another order), and then no element
does. Such a value is saved, as eager saves it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch._functorch import config
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

_COMPARE = frozenset(torch.ops.aten.__getattr__(name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge"))


def partition(
    joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The two graphs; arguments are those of AOTAutograd's partition functions."""
    if config.cse:  # as the partition begins, too: of calls that are alike the first one stays, with what is said of it
        joint.graph = fx_graph_cse(joint.graph)
    output = next(n for n in reversed(joint.graph.nodes) if n.op == "output")
    results = output.args[0][:num_fwd_outputs]  # type: ignore[index]
    forward = _above([n for n in results if isinstance(n, torch.fx.Node)])
    compared = [n for n in joint.graph.nodes if n.target in _COMPARE and n not in forward]
    # Of the forward pass, what lies nearest above a comparison.
    for node in _above([a for n in compared for a in n.all_input_nodes], until=forward) & forward:
        if node.op == "call_function":
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    return min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)


def _above(nodes: list[torch.fx.Node], until: Collection[torch.fx.Node] = ()) -> set[torch.fx.Node]:
    """The nodes, and all that they are computed from; what those `until` are computed from only where it is met too."""
    found: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += () if node in until else node.all_input_nodes
    return found
