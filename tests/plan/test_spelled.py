"""Attention that is spelled out. In: functions as models write them. Out: one region, of the right operands and scale.

Planned for a GPU that is not here; what the operands hold is worked out by numpy, and the attention of them must be
what eager gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from interfuse.driver.backend import Backend
from interfuse.driver.device import absent
from interfuse.driver.options import read
from interfuse.ir.evaluate import evaluate
from interfuse.plan.plan import Plan, ProviderStep, Region
from tests.attentions import HEADS, batches, by_hand, halves, hidden_nowhere, masked, scaled_before

B, H, S, D = 2, HEADS, 40, 16
Made = Callable[..., torch.Tensor]


def planned(f: Made, *inputs: torch.Tensor) -> Plan:
    """The plan for an H200 of a function that is captured where PyTorch spells attention out."""
    torch._dynamo.reset()
    backend = Backend(read(None, {"race": False}), stop="plan", absent=absent("H200"))
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        torch.compile(f, backend=backend, dynamic=False)(*inputs)
    (compiled,) = backend.compiled
    return compiled.stages.plans["plan"]


def attentions(plan: Plan) -> list[Region]:
    return [r for r in plan.regions if r.name == "attention"]


def softmax_in_f32(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2) * 0.2).softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def by_hand_unfolded(x: torch.Tensor) -> torch.Tensor:
    """A softmax by its parts."""
    q, k, v = halves(x)
    scores = q @ k.transpose(-1, -2)
    weights = (scores - scores.amax(-1)[..., None]).exp()
    return (weights / weights.sum(-1)[..., None]) @ v


SPELLED: list[tuple[Made, str]] = [
    (masked, "turned"),
    (by_hand, "turned"),
    (scaled_before, "heads first"),
    (softmax_in_f32, "heads first"),
    (batches, "heads first"),
    (by_hand_unfolded, "heads first"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("f", "form"), SPELLED, ids=[f.__name__ for f, _ in SPELLED])
def test_is_one_region(f: Made, form: str, dtype: torch.dtype) -> None:
    x = torch.randn(B, S, 3 * H * D, generator=torch.Generator().manual_seed(1))
    plan = planned(f, x.to(dtype))
    (region,) = attentions(plan)
    assert len(plan.regions) == (2 if f is batches else 1)
    pieces = [c for c in region.candidates if "bmm, then" in c.label]
    assert len(pieces) == 1
    wanted = ["cudnn.attention", "flash.attention", "efficient.attention"] if dtype == torch.bfloat16 else []
    assert {c.label for c in region.candidates if c.family == "provider"} == set(wanted or ["efficient.attention"])

    step = next(s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
    assert dict(step.attrs)["form"] == form
    (given,) = (i.node for i in plan.graph.inputs)
    with torch.no_grad():
        exact = f(x.to(dtype).double()) if f is not softmax_in_f32 else f(x.to(dtype).float()).double()
    held = x.to(dtype).float().numpy()
    query, key, value = (t.astype(np.float64) for t in evaluate(list(step.operands), {given: held}))
    scores = query @ key.swapaxes(2, 3) * dict(step.attrs)["scale"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    got = weights / weights.sum(-1, keepdims=True) @ value
    got = got.swapaxes(1, 2) if form == "turned" else got
    np.testing.assert_allclose(got.reshape(exact.shape), exact.numpy(), rtol=1e-5, atol=1e-5)


def weights_read(x: torch.Tensor) -> Any:
    q, k, v = halves(x)
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v, weights


def hidden_by_inputs(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return ((q @ k.transpose(-1, -2)).masked_fill(x[:, None, :, :S] > 1, -math.inf)).softmax(-1) @ v


def over_queries(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2)).softmax(-2) @ v


def no_softmax(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2)).sigmoid() @ v


def dropped(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.5) @ v


def summed_over_queries(x: torch.Tensor) -> torch.Tensor:
    """Rows are as long as columns here: each weight is divided by the sum of another row."""
    q, k, v = halves(x)
    scores = q @ k.transpose(-1, -2)
    weights = (scores - scores.amax(-1)[..., None]).exp()
    return (weights / weights.sum(-1)[:, :, None, :]) @ v


def heads_as_keys(x: torch.Tensor) -> torch.Tensor:
    """Weights whose order is kept, read in rows of H times as many keys."""
    q, k, v = (t[:, :, :D] for t in halves(x))
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights.reshape(B, D, H * D) @ v.reshape(B, H * D, D)


CODES = torch.float8_e4m3fn


def coded_queries(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q.to(CODES).float() @ k.transpose(-1, -2)).softmax(-1) @ v


def coded_weights(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2)).softmax(-1).to(CODES).float() @ v


def coded_values(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v.to(CODES).float()


def scaled_values(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return (q @ k.transpose(-1, -2)).softmax(-1) @ (v * 2)


@pytest.mark.parametrize(
    "f",
    [
        weights_read,
        hidden_by_inputs,
        over_queries,
        no_softmax,
        dropped,
        summed_over_queries,
        heads_as_keys,
    ],
)
def test_other_things_are_left(f: Made) -> None:
    assert not attentions(planned(f, torch.randn(B, S, 3 * H * D)))


@pytest.mark.parametrize(("given", "dtype"), [(1.7, torch.int32), (0.25, torch.bool)], ids=["int", "bool"])
def test_a_scale_is_what_its_type_makes_of_it(given: float, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = halves(x)
        return (q @ k.transpose(-1, -2) * torch.full((), given).to(dtype).float()).softmax(-1) @ v

    (region,) = attentions(planned(f, torch.randn(B, S, 3 * H * D)))
    step = next(s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
    assert dict(step.attrs)["scale"] == torch.full((), given).to(dtype).float().item()


def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As T5's: a bias of each head that does not lie row by row, which PyTorch's kernels do not take."""
    q, k, v = halves(x)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.permute(2, 0, 1)[None].expand(B, -1, -1, -1))


def test_a_bias_is_added_by_the_routine() -> None:
    x, bias = torch.randn(B, S, 3 * H * D), torch.randn(S, S, H)
    plan = planned(biased, x, bias)
    (region,) = attentions(plan)
    (step,) = (s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
    assert step.provider == "efficient.attention"
    first, second = (i.node for i in plan.graph.inputs)
    query, key, value, mask = evaluate(list(step.operands), {first: x.numpy(), second: bias.numpy()})
    scores = query @ key.swapaxes(2, 3) * dict(step.attrs)["scale"] + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    got = weights / weights.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(got, biased(x, bias).numpy(), rtol=1e-4, atol=1e-5)


def test_a_mask_and_a_plain_softmax_are_left() -> None:
    """A row that sees nothing is NaN there."""

    def f(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = halves(x)
        return (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v

    assert not attentions(planned(f, torch.randn(B, S, 3 * H * D), torch.randn(S, S)))


def causal_by_positions() -> torch.Tensor:
    """As transformers makes it for GPT-2 and Llama."""
    place = torch.arange(S)
    seen = (place[None, :] <= place[:, None]) & (place >= 0)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def test_a_mask_of_positions_is_causality() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = halves(x)
        return (q @ k.transpose(-1, -2) + causal_by_positions()).softmax(-1) @ v

    x = torch.randn(B, S, 3 * H * D)
    (region,) = attentions(planned(f, x))
    (step,) = (s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
    assert dict(step.attrs)["causal"] is True
    assert len(step.operands) == 3


@pytest.mark.parametrize("change", ["one earlier key", "one later key", "less"])
def test_other_masks_of_positions_are_not(change: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = halves(x)
        mask, place = causal_by_positions(), torch.arange(S)
        if change == "less":
            mask = mask.clamp(min=-1000.0)
        else:
            there = (place[:, None] == 7) & (place[None, :] == (3 if change == "one earlier key" else 20))
            mask = torch.where(there, -1.0, mask)
        return (q @ k.transpose(-1, -2) + mask).softmax(-1) @ v

    assert not attentions(planned(f, torch.randn(B, S, 3 * H * D)))


def test_values_are_scaled_before() -> None:
    """What values are multiplied by is no part of it: they are read from where they were multiplied."""
    plan = planned(scaled_values, torch.randn(B, S, 3 * H * D))
    (region,) = attentions(plan)
    step = next(s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
    given = plan.graph.inputs[0].node
    x = torch.randn(B, S, 3 * H * D)
    _, _, value = evaluate(list(step.operands), {given: x.numpy()})
    np.testing.assert_array_equal(value, 2 * halves(x)[2].numpy())


def test_codes_are_not_looked_through() -> None:
    """What is rounded to 8 bits is read rounded."""
    assert not attentions(planned(coded_weights, torch.randn(B, S, 3 * H * D)))
    for f, coded in ((coded_queries, 0), (coded_values, 2)):
        x = torch.randn(B, S, 3 * H * D)
        plan = planned(f, x)
        for region in attentions(plan):
            step = next(s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep))
            held = evaluate([step.operands[coded]], {plan.graph.inputs[0].node: x.numpy()})[0]
            np.testing.assert_array_equal(held, halves(x)[coded].to(CODES).float().numpy())


def test_a_mask_of_zeros_is_none_on_a_cpu() -> None:
    """The captured attention has a mask that hides nothing: our routine needs none of it."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(S) + 0 >= 0)[None, None, None, :].expand(B, -1, S, S)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    torch._dynamo.reset()
    backend = Backend(read(None, {"race": False}), stop="plan")
    with torch.no_grad():
        torch.compile(f, backend=backend, dynamic=False)(*(torch.randn(B, H, S, D) for _ in range(3)))
    (region,) = attentions(backend.compiled[0].stages.plans["plan"])
    steps = [s for c in region.candidates for s in c.steps if isinstance(s, ProviderStep)]
    assert all(len(s.operands) == 3 for s in steps)


def test_a_mask_that_layers_share_is_no_buffer() -> None:
    """A mask of zeros is made once, in the type of the model, and read by every layer."""

    def f(x: torch.Tensor) -> torch.Tensor:
        mask = hidden_nowhere(x)
        for _ in range(2):
            q, k, v = halves(x)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(B, S, H * D)
            x = torch.cat([x, x, x], -1)
        return x

    plan = planned(f, torch.randn(B, S, 3 * H * D).bfloat16())
    first, second = attentions(plan)
    assert len(first.inputs) == 1
    assert not {n.shape for n in second.inputs} & {(B, 1, S, S)}
