"""Products and what follows them. In: functions of few and many rows. Out: one kernel where tensor cores take all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from interfuse.base.record import Record
from interfuse.device.table import find
from interfuse.lower.target import GPU, Target
from interfuse.plan.plan import KernelStep, Plan
from interfuse.plan.planner import plan
from tests.plan.made import captured

F16 = torch.float16

HOPPER = replace(GPU, dot=64, splits=True)


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def shifted(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)) * 2 + 1


def summed_up(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)).sum(-1)


def _planned(
    f: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype = F16, device: str = "H200", target: Target = GPU
) -> Plan:
    x, w, v = (torch.empty(n, 1024, dtype=dtype) for n in (rows, 16384, 16384))
    return plan(captured(f, x, w, v), target, find(device), Record())


@pytest.mark.parametrize("f", (shifted, gated))
def test_a_product_of_few_rows_is_one_kernel_with_what_follows(f: Callable[..., torch.Tensor]) -> None:
    (region,) = _planned(f, 32).regions
    whole = next(c for c in region.candidates if c.label == "fused: product")
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
    assert len(regions) == 2 and not any("product" in c.label for r in regions for c in r.candidates)


def biased(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, w[:, 0])


def normed(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.linear(x, w), (w.shape[0],))


@pytest.mark.parametrize(("f", "regions"), ((biased, 1), (shifted, 1), (normed, 2)))
def test_tensor_cores_multiply_f32_with_what_follows(f: Callable[..., torch.Tensor], regions: int) -> None:
    """Any number of rows, with what is computed element by element; a product alone is one kernel too."""
    found = _planned(f, 1024, torch.float32, target=HOPPER).regions
    labels = [c.label for r in found for c in r.candidates if c.family == "product"]
    assert len(found) == regions and labels == ["fused: product"]
    one = next(r for r in found if any(c.family == "product" for c in r.candidates))
    fastest = min(one.candidates, key=lambda c: c.estimate.seconds)
    assert fastest.label == "fused: product" and any(c.label.startswith("library") for c in one.candidates)


@pytest.mark.parametrize(("device", "target"), (("RTX 4090", HOPPER), ("H200", GPU)), ids=("slow", "not wanted"))
def test_f32_is_the_librarys_where_tensor_cores_are_no_faster_or_not_wanted(device: str, target: Target) -> None:
    """Three products at the rate of one of the library's; fewer digits that PyTorch may take; AMD's, without such."""
    found = _planned(shifted, 1024, torch.float32, device, target).regions
    best = [min(r.candidates, key=lambda c: c.estimate.seconds).label for r in found]
    assert len(found) == 2 and "fused: product" not in best


def test_parts_are_tried_where_eager_has_held_more_before_than_they_give() -> None:
    x, wide, back = (torch.empty(s) for s in ((16, 1024), (4096, 1024), (1024, 4096)))

    def narrow(x: torch.Tensor, back: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, back)) + added

    def block(x: torch.Tensor, wide: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        return narrow(F.gelu(F.linear(x, wide)), back, x)

    made = plan(captured(block, x, wide, back), HOPPER, find("H200"), Record()).regions
    (parted,) = (c for r in made for c in r.candidates if c.label == "fused: product, in parts")
    assert parted.launches == 2 and parted.steps[0].kernel.axes[0].name == "chunk"
    alone = plan(captured(narrow, torch.empty(16, 4096), back, x), HOPPER, find("H200"), Record()).regions
    assert "fused: product, in parts" not in [c.label for r in alone for c in r.candidates]


def test_two_products_of_many_rows_stay_apart_where_each_has_larger_tiles_then() -> None:
    """The second one takes what follows both."""
    apart = _planned(gated, 1024, torch.float32, target=HOPPER).regions
    assert [min(r.candidates, key=lambda c: c.estimate.seconds).label for r in apart] == ["fused: product"] * 2
