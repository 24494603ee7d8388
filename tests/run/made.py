"""Hand-made graphs and plans for runtime tests. In: little. Out: a two-call graph, plans, launchers in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from interfuse.base.record import Record
from interfuse.capture.fx import import_graph
from interfuse.cost.estimate import Estimate
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Call, Graph, Input, Output, Ref
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel, Param
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, Plan, Region
from interfuse.run.program import Program

SHAPE = (4, 6)


def call(target: str, operands: Sequence[Node], out: Node, *more: Any, **given: Any) -> Call:
    """A captured call whose arguments are its operands and then `more`."""
    args = (*(Ref(k) for k in range(len(operands))), *more)
    return Call(target, args, (), tuple(operands), (out,), (contiguous(out.shape),), **given)


def chain() -> tuple[Graph, list[Node]]:
    """y = exp(x); z = y + x; the outputs are z and y. The nodes come as [x, y, z]."""
    x = b.placeholder("x", F32, SHAPE)
    y = b.apply("exp", x)
    z = b.apply("add", y, x)
    graph = Graph(
        (Input(x, contiguous(SHAPE)),),
        (call("aten.exp.default", (x,), y), call("aten.add.Tensor", (y, x), z)),
        (Output(z, contiguous(SHAPE)), Output(y, contiguous(SHAPE))),
    )
    return graph, [x, y, z]


def kernel(
    name: str, inputs: Sequence[Node], outputs: Sequence[Node], strides: dict[Node, tuple[int, ...]] | None = None
) -> Kernel:
    """A kernel without a body: launchers of these tests compute in PyTorch."""
    found = strides or {}

    def param(k: int, node: Node, mode: str) -> Param:
        return Param(f"{mode}{k}", node.dtype, node.shape, found.get(node, contiguous(node.shape).strides), mode)

    return Kernel(
        name,
        (
            *(param(k, n, "in") for k, n in enumerate(inputs)),
            Param("row", F32, (8,), (1,), "scratch"),
            *(param(k, n, "out") for k, n in enumerate(outputs)),
        ),
        (),
        (),
    )


def candidate(label: str, *steps: Any, family: str = "map") -> Candidate:
    """A candidate of one launch."""
    return Candidate(label, tuple(steps), Estimate(1e-6), 0, 1, family)


def library(*calls: int) -> Candidate:
    """The candidate that runs captured calls."""
    return candidate("library", *(LibraryStep(c) for c in calls), family="library")


def fused_plan() -> tuple[Plan, list[Node]]:
    """`chain` as one region: two kernels (y, then z from y), with the captured calls behind them."""
    graph, (x, y, z) = chain()
    steps = (KernelStep(kernel("first", [x], [y]), (x,), (y,)), KernelStep(kernel("second", [y, x], [z]), (y, x), (z,)))
    region = Region("both", (0, 1), (x,), (z, y), (candidate("fused", *steps), library(0, 1)))
    return Plan(graph, (region,)), [x, y, z]


def first(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    """y = exp(x)."""
    torch.exp(tensors[0], out=tensors[1])


def second(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    """z = y + x."""
    torch.add(tensors[0], tensors[1], out=tensors[2])


def compiled(function: Callable[..., Any], programs: list[Program], **options: Any) -> Callable[..., Any]:
    """`function` under torch.compile, each graph run by a library Program; those are added to `programs`."""

    def compiler(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        program = Program.library(import_graph(gm, inputs), Record())
        programs.append(program)

        def run(values: list[Any]) -> list[Any]:
            return program.run(values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler)
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)
