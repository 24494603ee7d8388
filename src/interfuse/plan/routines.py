"""Routines for matrix products. In: a product, the activation behind it. Out: what races the captured call.

A routine has the activation in its epilogue where it knows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from interfuse.cost.library import LINEAR_RATE, product_programs, product_share, split_flops
from interfuse.cost.model import estimate, linear_flops
from interfuse.cost.traffic import moved_bytes
from interfuse.ir.graph import Call
from interfuse.ir.layout import base_of
from interfuse.ir.node import Node
from interfuse.plan.candidates import Context
from interfuse.plan.plan import Candidate, ProviderStep

SPLIT = "interfuse.linear"
"""Our own product of f32 on a CPU's tile registers."""

PROVIDERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # What oneDNN's epilogue does not compute as eager does is a kernel of ours behind the plain product.
    "cpu": dict.fromkeys(("none", "gelu", "gelu_tanh", "tanh"), ("onednn.linear", SPLIT))
    | dict.fromkeys(("relu", "sigmoid", "swish"), (SPLIT,)),
    "cuda": {"none": ("cublas.linear",), "gelu_tanh": ("cublaslt.linear_gelu",), "relu": ("cublaslt.linear_relu",)},
    "hip": {},
}
"""Routines that are raced against a captured matrix product, by device kind and the activation in their epilogue."""

NEED_BIAS = ("cublas.linear", "cublaslt.linear_gelu", "cublaslt.linear_relu")
"""Routines that only exist with a bias."""

LAUNCHES: Mapping[str, int] = {"cublas.linear": 2}
"""Kernels of one run, where it is more than one."""

ACTIVATIONS: Mapping[tuple[str, object], str] = {
    ("aten.relu.default", None): "relu",
    ("aten.gelu.default", "none"): "gelu",
    ("aten.gelu.default", "tanh"): "gelu_tanh",
    ("aten.tanh.default", None): "tanh",
    ("aten.sigmoid.default", None): "sigmoid",
    ("aten.silu.default", None): "swish",
}
"""Captured activations that providers have as an epilogue, by target and approximation."""


def activation_of(call: Call) -> str | None:
    """The epilogue that stands for an activation call, or None."""
    if call.target == "aten.gelu.default":
        return ACTIVATIONS.get((call.target, dict(call.kwargs).get("approximate", "none")))
    return ACTIVATIONS.get((call.target, None))


def provider_candidates(linear: Node, output: Node, activation: str, context: Context) -> list[Candidate]:
    """The routines that compute the product with `activation` ("none" for none) in their epilogue, where they can be
    used.
    """
    flow = context.flow
    bases = [base_of(n, flow.producer) for n in linear.inputs]
    if not all(n in flow.producer or n in flow.inputs for n in bases):
        return []
    named = PROVIDERS.get(context.profile.kind, {}).get(activation, ())
    return [_routine(name, linear, output, activation, context) for name in named if _takes(name, linear, context)]


def _takes(provider: str, linear: Node, context: Context) -> bool:
    """True where the routine computes such a product here."""
    if provider == SPLIT and (linear.dtype.name != "f32" or not context.profile.splits):
        return False
    return provider not in context.unavailable and (provider not in NEED_BIAS or len(linear.inputs) > 2)


def _routine(provider: str, linear: Node, output: Node, activation: str, context: Context) -> Candidate:
    """The candidate of one routine."""
    step = ProviderStep(provider, linear.inputs, output, (("activation", activation),))
    moved = moved_bytes(linear.inputs, (output,), context.sizes)
    launches = LAUNCHES.get(provider, 1)
    flops, dtype = linear_flops(linear, context.sizes), linear.dtype.name
    if provider == SPLIT:
        flops, dtype, reached = split_flops(linear, context.sizes), "split", LINEAR_RATE
    else:
        programs = product_programs(linear, flops, provider != "cublas.linear", context.sizes)
        reached = LINEAR_RATE * product_share(programs, dtype, context.profile)
    seconds = estimate(moved, flops, launches, context.profile, reached=reached, dtype=dtype)
    seconds = seconds.times(context.profile.correction(provider))
    label = provider if activation == "none" else f"{provider} with {activation} epilogue"
    return Candidate(label, (step,), seconds, moved, launches, "provider")
