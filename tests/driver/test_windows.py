"""Parts of buffers from the front door: steps that read other parts share a kernel, and every value is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.driver.made import compiled, no_fallback
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("own_cache")

R = torch.randn


def steps(x: torch.Tensor, weight: torch.Tensor, axis: int = 0) -> torch.Tensor:
    hidden = torch.zeros_like(x.select(axis, 0))
    for t in range(x.shape[axis]):
        hidden = torch.tanh(x.select(axis, t) + hidden @ weight)
    return hidden


def pairs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = torch.zeros_like(x[0])
    for t in range(1, x.shape[0] - 1):
        hidden = torch.tanh(x[t - 1] * x[t + 1] + hidden @ weight)
    return hidden


def of_a_value(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Steps that read a value of the graph, in an arena where kernels alone read it."""
    scaled, mixed = torch.tanh(x) * 2, torch.exp(-x * x)
    hidden = scaled[0]
    for t in range(5):
        hidden = F.layer_norm(hidden * weight[0] + scaled[t], hidden.shape[-1:]) - mixed[t + 1].sum(-1, keepdim=True)
    return hidden


STEPS: dict[str, tuple[Callable[..., Any], Callable[[int, torch.dtype], torch.Tensor], int]] = {
    "rows": (steps, lambda n, dtype: R(6, 4, n, dtype=dtype), 1),
    "columns": (lambda x, w: steps(x, w, 1), lambda n, dtype: R(4, 6, n, dtype=dtype), 1),
    "turned": (lambda x, w: steps(x.transpose(0, 1), w), lambda n, dtype: R(4, 6, n, dtype=dtype), 1),
    "part": (lambda x, w: steps(x[1], w), lambda n, dtype: R(3, 6, 4, n, dtype=dtype), 1),
    "gaps": (steps, lambda n, dtype: R(6, 4, 2 * n, dtype=dtype)[..., 1::2], 1),
    "unaligned": (steps, lambda n, dtype: R(24 * n + 1, dtype=dtype)[1:].view(6, 4, n), 1),
    "pairs": (pairs, lambda n, dtype: R(6, 4, n, dtype=dtype), 1),
    "value": (of_a_value, lambda n, dtype: R(6, 4, n, dtype=dtype), 3),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("width", (33, 64))
@pytest.mark.parametrize("name", sorted(STEPS))
def test_steps(name: str, width: int, dtype: torch.dtype) -> None:
    f, make, most = STEPS[name]
    run, backend = compiled(f, dynamic=False)
    assert judge(f, (make(width, dtype), R(width, width, dtype=dtype) / 8), run).ok
    no_fallback(backend)
    kernels = {e.subject for r in backend.records for e in r.of("kernel")}
    assert 0 < len(kernels) <= most


@pytest.mark.parametrize("rows", (4, 1, 0))
@pytest.mark.parametrize("axis", (0, 1))
def test_steps_of_sizes_that_change(axis: int, rows: int) -> None:
    run, backend = compiled(lambda x, w: steps(x, w, axis), dynamic=True)
    weight = R(33, 33) / 8
    for n in (3, rows):
        x = R(5, n, 33) if axis == 0 else R(n, 5, 33)
        torch.testing.assert_close(run(x, weight), steps(x, weight, axis))
    no_fallback(backend)


def test_what_is_written_over_is_read_from_its_start() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.copy_(torch.tanh(x[2] + y))
        for t in range(3):
            x[t].copy_(torch.tanh(x[t] * 2 + x[t + 1]))
        return y * x[1]

    x, y = R(5, 4, 33), R(4, 33)
    mine, run = (x.clone(), y.clone()), compiled(update)[0]
    torch.testing.assert_close(run(*mine), update(x, y))
    torch.testing.assert_close(mine, (x, y))


def test_what_is_written_may_lie_in_what_is_read() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.copy_(torch.tanh(x[2] + y))
        return y * x[1]

    run = compiled(update)[0]
    run(R(5, 4, 33), R(4, 33))
    mine, eager = (t := R(24 * 33)).clone(), t.clone()
    both = [(whole[:660].view(5, 4, 33), whole[264:396].view(4, 33)) for whole in (mine, eager)]
    torch.testing.assert_close(run(*both[0]), update(*both[1]))
    torch.testing.assert_close(mine, eager)


def test_other_readers_of_parts() -> None:
    def read(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.cat([x[2, 2:10], x[2, 2:10]], 0) * 2 + 1,
            F.pad(x[3, None, None, 2:8], (2, 2, 3, 3), mode="replicate").exp(),
            F.pad(x[4, None, 3:9, 1:], (2, 3), mode="reflect").exp(),
            torch.roll(x[1, 2:8], 2, 0).sin(),
            x[3].flip(0)[2:5].tan(),
            x[3][i] * 2,
            F.embedding(i, x[4]) + 1,
            torch.softmax(x[2], -1) + x[4].sum(-1, keepdim=True),
            torch.cumsum(x[3], 0),
        )

    run, backend = compiled(read)
    assert judge(read, (R(6, 20, 8), torch.randint(0, 20, (7,))), run).ok
    no_fallback(backend)
