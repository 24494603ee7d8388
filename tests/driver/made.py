"""What tests of the front doors share. In: a function or module. Out: it compiled, what the record says, a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from interfuse.driver.backend import Backend


def compiled(f: Callable[..., Any], **more: Any) -> tuple[Callable[..., Any], Backend]:
    """`f` compiled with torch.compile's arguments `more`, and the backend that keeps what was compiled."""
    backend = Backend()
    return torch.compile(f, backend=backend, **more), backend


def no_fallback(backend: Backend) -> None:
    """Nothing failed: every graph runs as planned."""
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []


def calls(backend: Backend) -> list[dict[str, Any]]:
    """What the record says of each captured call."""
    return [e.facts for r in backend.records for e in r.of("call")]


def step(run: Callable[..., Any], model: nn.Module, *inputs: torch.Tensor, seed: int = 3) -> list[torch.Tensor]:
    """A result and the gradients of a training step from one seed, then the buffers as it left them."""
    model.zero_grad()
    torch.manual_seed(seed)
    out = run(*inputs)
    out.float().square().sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.detach(), *(g.clone() for g in grads), *(b.clone() for b in model.buffers())]


def adam(ps: Any, gs: Any, ms: Any, vs: Any) -> None:
    """A step of Adam, in place, by calls on lists of tensors."""
    torch._foreach_lerp_(ms, gs, 0.1)
    torch._foreach_mul_(vs, 0.999)
    torch._foreach_addcmul_(vs, gs, gs, 0.001)
    spread = torch._foreach_sqrt(vs)
    torch._foreach_add_(spread, 1e-8)
    torch._foreach_addcdiv_(ps, ms, spread, -0.01)
