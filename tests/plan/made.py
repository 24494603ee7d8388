"""Graphs for the planner's tests. In: a function and example tensors. Out: the captured graph after the passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from interfuse.base.record import Record
from interfuse.capture.decompositions import table
from interfuse.capture.fx import import_graph
from interfuse.device.table import find
from interfuse.ir.graph import Graph
from interfuse.lower.target import CPU, Target
from interfuse.passes.pipeline import PASSES
from interfuse.plan.plan import Plan
from interfuse.plan.planner import plan

PROFILE = find("CPU avx512")


def captured(f: Callable[..., Any], *inputs: torch.Tensor, gradients: bool = False) -> Graph:
    """The graph of `f`, with the passes run; with `gradients` that of its forward pass."""
    found: list[Graph] = []

    def keep(gm: torch.fx.GraphModule, given: list[torch.Tensor]) -> Any:
        found.append(import_graph(gm, given))
        return gm.forward

    torch._dynamo.reset()
    with torch.set_grad_enabled(gradients):
        partition = min_cut_rematerialization_partition
        backend = aot_autograd(fw_compiler=keep, decompositions=table(), partition_fn=partition)
        torch.compile(f, backend=backend, dynamic=False)(*inputs)
    graph = found[0]
    for _, run in PASSES:
        graph = run(graph)
    return graph


def planned(
    f: Callable[..., Any], *inputs: torch.Tensor, target: Target | None = CPU, **options: Any
) -> tuple[Plan, Record]:
    """The plan for `f` on a CPU of the table, and the record that planning wrote."""
    record = Record()
    return plan(captured(f, *inputs), target, PROFILE, record, **options), record
