"""Products and what follows them. In: functions of few and many rows. Out: one kernel where tensor cores take all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.record import Record
from interfuse.device.table import find
from interfuse.lower.target import GPU
from interfuse.plan.plan import KernelStep, Plan
from interfuse.plan.planner import plan
from tests.plan.made import captured

F16 = torch.float16


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def shifted(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)) * 2 + 1


def summed_up(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)).sum(-1)


def _planned(f: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype = F16, device: str = "H200") -> Plan:
    x, w, v = (torch.empty(n, 1024, dtype=dtype) for n in (rows, 16384, 16384))
    return plan(captured(f, x, w, v), GPU, find(device), Record())


@pytest.mark.parametrize("f", (shifted, gated))
def test_a_product_of_few_rows_is_one_kernel_with_what_follows(f: Callable[..., torch.Tensor]) -> None:
    (region,) = _planned(f, 32).regions
    whole = next(c for c in region.candidates if c.label == "fused: skinny")
    (step,) = whole.steps
    products = 2 if f is gated else 1
    assert isinstance(step, KernelStep) and len(step.inputs) == 1 + products and whole.launches == 1
    kinds = [tuple(type(s).__name__ for s in c.steps) for c in region.candidates]
    assert (*["LibraryStep"] * products, "KernelStep") in kinds, "the library's product is in the race"


@pytest.mark.parametrize(
    ("f", "rows", "dtype", "device"),
    (
        (shifted, 129, F16, "H200"),
        (shifted, 32, torch.float32, "H200"),
        (shifted, 32, F16, "MI300X"),
        (summed_up, 32, F16, "H200"),
    ),
    ids=("many rows", "f32", "not raced there", "reduced"),
)
def test_other_products_stay_apart(f: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype, device: str) -> None:
    regions = _planned(f, rows, dtype, device).regions
    assert len(regions) == 2 and not any("skinny" in c.label for r in regions for c in r.candidates)
