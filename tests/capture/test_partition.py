"""Where a training step is parted. In: functions that take an extreme of what they compute. Out: gradients as eager's,
for the backward pass finds the extreme among what the forward pass had.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import judge

Function = Callable[[torch.Tensor], torch.Tensor]


def _made(x: torch.Tensor) -> torch.Tensor:
    """What would be made again rather than kept, of several roundings."""
    return F.gelu(x).sin() * 1.7 + x


def _soft(x: torch.Tensor) -> torch.Tensor:
    v = _made(x)
    e = (v - v.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


FUNCTIONS: dict[str, Function] = {
    "softmax by hand": _soft,
    "amin of columns": lambda x: _made(x) - _made(x).amin(0),
    "largest norm": lambda x: (lambda v: v / torch.linalg.vector_norm(v, float("inf"), -1, keepdim=True))(_made(x)),
    "both ends": lambda x: (_made(x) - _made(x).amin(-1, keepdim=True)) / _made(x).amax(-1, keepdim=True),
}


def _gradient(function: Function) -> Function:
    def step(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).reshape(x.shape).to(x.dtype)
        return torch.autograd.grad(function(leaf), leaf, weights)[0]

    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_extremes_find_them(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    cols = 20 if name == "amin of columns" else 65  # more of them side by side take a compiler long, and nothing else
    x = torch.randn(33, cols, generator=torch.Generator().manual_seed(1)).to(dtype)
    fast = torch.compile(function, backend=Backend(read(None, {"race": False})), dynamic=False)
    verdict = judge(_gradient(function), (x,), _gradient(fast))
    assert verdict.ok, verdict.note
