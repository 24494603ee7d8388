"""Metadata set right. In: graphs of which tracing states otherwise than PyTorch gives. Out: what runs has those types.

Each is captured as torch.compile does, then every call's results are compared with what the graph now says of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from interfuse.capture.decompositions import table
from interfuse.capture.fx import import_graph
from interfuse.capture.stated import correct
from interfuse.ir.graph import Graph

WEIGHT, IMAGE = torch.randn(16), torch.randn(2, 16, 4)
PARAMETER = torch.randn(16, requires_grad=True)


def trained(f: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[list[Graph], list[str]]:
    """The graphs of a training step of f, run as corrected; for each result of another type its name and both types."""
    graphs: list[Graph] = []
    wrong: list[str] = []

    def keep(gm: torch.fx.GraphModule, given: list[torch.Tensor]) -> Any:
        graphs.append(import_graph(gm, given))
        correct(gm)

        class Compare(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                found, stated = super().run_node(n), n.meta.get("val")
                # The gradient of the data, result 0, is the narrow one that eager gives, whatever is said of it.
                data = n.target is operator.getitem and n.args[1] == 0
                if isinstance(found, torch.Tensor) and found.dtype != stated.dtype and not data:
                    wrong.append(f"{n.name}: {found.dtype}, said to be {stated.dtype}")
                return found

        return lambda *inputs: Compare(gm).run(*inputs)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=aot_autograd(fw_compiler=keep, decompositions=table()), dynamic=False)
    compiled(x.requires_grad_()).float().sum().backward()
    return graphs, wrong


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        lambda x: F.layer_norm(x.transpose(1, 2), (16,), PARAMETER, WEIGHT),
        lambda x: F.group_norm(x, 4, PARAMETER, WEIGHT),
    ],
    ids=["layer_norm", "group_norm"],
)
def test_statistics_of_narrow_data_under_wide_parameters(norm: Any, narrow: torch.dtype) -> None:
    graphs, wrong = trained(norm, IMAGE.to(narrow))
    assert wrong == []
    assert len(graphs) == 2
    forward = next(c for c in graphs[0].calls if "_norm" in c.target)
    assert [str(o.dtype) for o in forward.outs if o is not None][1:] == ["f32", "f32"]


def test_norms_of_one_type_stay_as_stated() -> None:
    weight = WEIGHT[:4].bfloat16()
    graphs, wrong = trained(lambda x: F.layer_norm(x, (4,), weight), IMAGE.bfloat16())
    assert wrong == []
    forward = next(c for c in graphs[0].calls if "_norm" in c.target)
    assert [str(o.dtype) for o in forward.outs if o is not None] == ["bf16"] * 3


def test_random_calls_under_checkpointing_have_results_and_keep_their_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(checkpoint(lambda y: F.dropout(F.gelu(y), 0.3), x, use_reentrant=False))

    graphs, _ = trained(f, torch.randn(4, 8))
    calls = [c for g in graphs for c in g.calls if "rng_state" in c.target]
    assert [c.target.rpartition(".")[2] for c in calls] == ["run_and_save_rng_state", "run_with_rng_state"]
    assert [c.effect for c in calls] == ["random", "random"]
    assert [[str(o.dtype) for o in c.outs if o is not None] for c in calls] == [["u8", "f32", "bool"], ["f32", "bool"]]
