"""Attention on a CPU: the candidate beside the captured call. In: a region of one attention. Out: none or one
candidate.

PyTorch's kernel also gives the logarithm of each row's sum, which the backward pass reads: where anyone reads it, the
call stays with the library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interfuse.ir.graph import Call, Ref
from interfuse.ir.index import Dim
from interfuse.ir.layout import base_of, contiguous
from interfuse.ir.node import Node
from interfuse.plan.candidates import Context, library_candidate, outputs_of
from interfuse.plan.plan import Candidate, ProviderStep

TARGET = "aten._scaled_dot_product_flash_attention_for_cpu.default"
PROVIDER = "interfuse.attention"

HEADS = tuple(range(16, 257, 16))
"""Sizes of a head that the routine takes: whole vectors of each level."""

TYPES = ("f32", "bf16", "f16")

FASTER = 0.6
"""What is predicted of it, as a share of what is predicted of the library's: no measure but that it comes first."""


def attention_candidates(calls: frozenset[int], context: Context) -> list[Candidate]:
    """Our routine for the one attention that `calls` are, where it can do what is asked."""
    flow = context.flow
    if len(calls) != 1 or context.profile.kind != "cpu" or PROVIDER in context.unavailable:
        return []
    (call,) = (flow.graph.calls[k] for k in calls)
    nodes = operands_of(call)
    if nodes is None or outputs_of(calls, flow) != call.outs[:1]:
        return []
    if not all(base_of(n, flow.producer) in flow.producer.keys() | flow.inputs for n in nodes):
        return []
    library, _ = library_candidate(calls, context)
    assert call.outs[0] is not None
    given = _arguments(call)
    _, _, head = form_of(nodes)
    scale = given.get("scale")
    attrs = (("scale", head**-0.5 if scale is None else float(scale)), ("causal", given.get("is_causal", False)))
    step = ProviderStep(PROVIDER, nodes, call.outs[0], attrs, call.layouts[0])
    predicted = replace(library.estimate, seconds=library.estimate.uncorrected * FASTER, factor=1.0)
    predicted = predicted.times(context.profile.correction(PROVIDER))
    return [Candidate(PROVIDER, (step,), predicted, library.bytes, 1, "provider")]


def operands_of(call: Call) -> tuple[Node, ...] | None:
    """Query, key, value and the mask where there is one, of an attention that the routine can do; None for any other
    call.
    """
    if call.target != TARGET or call.outs[0] is None or call.layouts[0] is None:
        return None
    given = _arguments(call)
    mask, scale = given.get("attn_mask"), given.get("scale")
    refs = [given["query"], given["key"], given["value"], *([mask] if mask is not None else [])]
    if given.get("dropout_p", 0.0) != 0.0 or not all(isinstance(r, Ref) for r in refs):
        return None
    nodes = tuple(call.operands[r.k] for r in refs)
    query, key, value, *masks = nodes
    head = query.shape[-1]
    fits = len(query.shape) == 4 and head in HEADS and query.dtype.name in TYPES
    fits = fits and key.shape == value.shape and key.shape[:2] == query.shape[:2] and value.shape[-1] == head
    fits = fits and query.dtype is key.dtype is value.dtype and all(m.dtype.name in TYPES for m in masks)
    fits = fits and (scale is None or isinstance(scale, (int, float)))
    return nodes if fits and _heads_inside(call, query.shape) else None


def form_of(nodes: tuple[Node, ...]) -> tuple[str, str, int]:
    """What the routine is built for: the element types of the operands and of the mask ("" for none), and the size of
    a head.
    """
    query, _, _, *mask = nodes
    return query.dtype.name, mask[0].dtype.name if mask else "", int(query.shape[-1])  # type: ignore[arg-type]


def _arguments(call: Call) -> dict[str, Any]:
    names = ("query", "key", "value", "dropout_p", "is_causal")
    return dict(zip(names, call.args, strict=False)) | dict(call.kwargs)


def _heads_inside(call: Call, shape: tuple[Dim, ...]) -> bool:
    """True where the result lies as (batch, queries, heads, head)."""
    batch, heads, queries, head = shape
    b, q, h, e = contiguous((batch, queries, heads, head)).strides
    layout = call.layouts[0]
    assert layout is not None
    return all(d == 1 or s == w for d, s, w in zip(shape, layout.strides, (b, h, q, e), strict=True))
