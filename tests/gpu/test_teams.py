"""Teams of programs on a GPU. In: long rows. Out: the contract's values, bits that repeat, in graphs and on streams."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.chosen import compiled_as
from tests.judge import judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("predicted", "no_gradients"),
]


compiled = partial(compiled_as, "fused: row, in teams")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 4, w, b))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32), ids=str)
@pytest.mark.parametrize("shape", ((24, 262144), (100, 65536)))
def test_softmax(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda", dtype=dtype) * 3
    x[0, 5:] = -float("inf")
    x[1] = -float("inf")
    x[2, 77] = float("nan")
    assert judge(softmax, (x,), compiled(softmax, x)).ok


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_group_norm(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((16, 16, 128, 128), (16,), (16,)))
    x = x * 2 + 5
    assert judge(group_norm, (x, w, b), compiled(group_norm, x, w, b)).ok


def test_a_graph_is_replayed_beside_other_launches() -> None:
    """Each launch that may run beside another has words of its own: nobody waits for ever, and bits repeat."""
    x = torch.randn(24, 262144, device="cuda", dtype=torch.float16)
    run = compiled(softmax, x)
    wanted, graph, streams = run(x), torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.graph(graph):
        results = [run(x) for _ in range(20)]
    for _ in range(100):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(run(x))
                del results[40:-3]
    torch.cuda.synchronize()
    assert all(torch.equal(r, wanted) for r in results)


def test_what_begins_with_no_vector() -> None:
    x = torch.randn(24 * 262144 + 1, device="cuda", dtype=torch.float16)[1:].view(24, 262144)
    assert judge(softmax, (x,), compiled(softmax, x)).ok
