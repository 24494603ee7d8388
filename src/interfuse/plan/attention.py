"""Attention: the candidates beside the captured calls. In: a region of one attention. Out: its routines as candidates.

On a CPU it is one captured call, and the routine is ours. On a GPU it is one captured call, for which PyTorch chose one
of its kernels by rules, or calls that spell it out (`plan/spelled.py`): there all of its kernels are candidates.
PyTorch's kernels also give the logarithm of each row's sum, which the backward pass reads: where anyone reads it, the
call stays with the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from interfuse.cost.model import estimate
from interfuse.cost.traffic import moved_bytes
from interfuse.ir import build as b
from interfuse.ir.evaluate import evaluate, known
from interfuse.ir.graph import Call, Ref
from interfuse.ir.index import Dim, at_sizes
from interfuse.ir.layout import base_of, contiguous
from interfuse.ir.node import Node, make
from interfuse.passes.simplify import constant_of
from interfuse.plan.candidates import Context, library_candidate, outputs_of
from interfuse.plan.flow import Flow
from interfuse.plan.plan import Candidate, ProviderStep

TARGET = "aten._scaled_dot_product_flash_attention_for_cpu.default"
PROVIDER = "interfuse.attention"

HEADS = tuple(range(16, 257, 16))
"""Sizes of a head that the routine takes: whole vectors of each level."""

TYPES = ("f32", "bf16", "f16")

FASTER = 0.6
"""What is predicted of it, as a share of what is predicted of the library's: no measure but that it comes first."""

GPU_TARGETS: Mapping[str, tuple[str, ...]] = {
    "aten._scaled_dot_product_flash_attention.default": ("query", "key", "value", "dropout_p", "is_causal"),
    **dict.fromkeys(
        (
            "aten._scaled_dot_product_efficient_attention.default",
            "aten._scaled_dot_product_cudnn_attention.default",
        ),
        ("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
    ),
}
"""PyTorch's attentions on a GPU, and what their arguments are called."""

REACHED: Mapping[str, Mapping[str, float]] = {
    "cudnn.attention": {"bf16": 0.36, "f16": 0.36},
    "flash.attention": {"bf16": 0.24, "f16": 0.24},
    "efficient.attention": {"bf16": 0.12, "f16": 0.12, "f32": 0.48},
}
"""The same as providers: the share of the peak rate that each reaches (32 x 12 heads of 64, 512 queries, an H200), by
the types that it takes.
"""

HIDDEN = -65504.0
"""What is added to a score that nobody is to see, or less: for cuDNN, PyTorch makes it of what a mask of truth values
hides.
"""

MASKED = ("efficient.attention",)
"""Those that add a mask, wherever it lies."""

WIDEST_HEAD, STEP = 128, 8
"""Heads that all of them take: up to so many elements, multiples of so many."""

HEADS_FIRST, TURNED, INSIDE = "heads first", "turned", "heads inside"
"""How a result lies: (batch, heads, rows, head) row-major; (batch, rows, heads, head) row-major; or shaped as the first
and lying as the second.
"""


@dataclass(frozen=True)
class Attention:
    """softmax(query key^T scale + mask) value of `operands`: query, key and value as (batch, heads, rows, head), and a
    mask of (batch, heads, rows, keys) where there is one, views of buffers; `causal` where queries see no later keys.
    `output` is the buffer that is wanted, which lies as `form`; `captured` the routine that the one call of it is.
    """

    operands: tuple[Node, ...]
    scale: float
    causal: bool
    output: Node
    form: str
    captured: str = ""


def attention_candidates(calls: frozenset[int], context: Context, found: Attention | None = None) -> list[Candidate]:
    """The routines for the one attention that `calls` are, where they can do what is asked; `found` where the calls
    spell it out.
    """
    if context.profile.kind == "cuda":
        found = found or (captured(min(calls), context.flow) if len(calls) == 1 else None)
        return [] if found is None else _on_gpu(found, calls, context)
    return _on_cpu(calls, context)


def _on_gpu(found: Attention, calls: frozenset[int], context: Context) -> list[Candidate]:
    graph, sizes = context.flow.graph, context.sizes
    query, key, _, *masks = found.operands
    rows, keys, head = query.shape[-2], key.shape[-2], query.shape[-1]
    if not isinstance(head, int) or head % STEP or head > WIDEST_HEAD or (found.causal and rows != keys):
        return []
    moved = moved_bytes(found.operands, (found.output,), sizes)
    flops = 4.0 * at_sizes(query.size, sizes) * at_sizes(keys, sizes)
    attrs = (("scale", found.scale), ("causal", found.causal), ("form", found.form))
    layout = graph.calls[min(calls)].layouts[0] if found.form == INSIDE else None
    made = []
    for provider, reached in REACHED.items():
        rate = reached.get(query.dtype.name)
        if rate is None or provider == found.captured or provider in context.unavailable:
            continue
        if masks and provider not in MASKED:
            continue
        took = estimate(moved, flops, 1, context.profile, reached=rate, dtype=query.dtype.name)
        step = ProviderStep(provider, found.operands, found.output, attrs, layout)
        took = took.times(context.profile.correction(provider))
        made.append(Candidate(provider, (step,), took, moved, 1, "provider"))
    return made


def captured(k: int, flow: Flow) -> Attention | None:
    """The attention that call k runs one of PyTorch's GPU kernels for; None for other calls, and where more than its
    result is read.
    """
    call = flow.graph.calls[k]
    names = GPU_TARGETS.get(call.target)
    if names is None or call.outs[0] is None or outputs_of(frozenset((k,)), flow) != call.outs[:1]:
        return None
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    refs, scale = [given[n] for n in names[:3]], given.get("scale")
    mask, causal = given.get("attn_bias"), bool(given.get("is_causal", False))
    if given.get("dropout_p", 0.0) != 0.0:
        return None
    if not _hides_nothing(mask, call):
        if causal or not isinstance(mask, Ref) or not hides_later(call.operands[mask.k]):
            return None
        causal = True
    if not all(isinstance(r, Ref) for r in refs) or not (scale is None or isinstance(scale, (int, float))):
        return None
    query, key, value = (call.operands[r.k] for r in refs)
    head = query.shape[-1]
    held = flow.producer.keys() | flow.inputs
    if not isinstance(head, int) or not (query.shape[:2] == key.shape[:2] and key.shape == value.shape):
        return None
    layout, out = call.layouts[0], call.outs[0]
    form = INSIDE if _heads_inside(call, query.shape) else HEADS_FIRST
    if form == HEADS_FIRST and (layout is None or not layout.is_contiguous(out.shape)):
        return None
    if any(base_of(n, flow.producer) not in held for n in (query, key, value)):
        return None
    by = head**-0.5 if scale is None else float(scale)
    routine = next(p for p in REACHED if p.split(".")[0] in call.target) if mask is None else ""
    return Attention((query, key, value), by, causal, out, form, routine)


def _on_cpu(calls: frozenset[int], context: Context) -> list[Candidate]:
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
    refs = [given["query"], given["key"], given["value"], *([] if _hides_nothing(mask, call) else [mask])]
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


def number_of(node: Node) -> float | int | bool | None:
    """The one number that all elements are, however they came by their shape and type; None where they differ."""
    changes = []
    while node.op in ("cast", "expand", "reshape", "copy", "round"):
        if node.op in ("cast", "round"):
            changes.append(node)
        node = node.inputs[0]
    number = constant_of(node)
    if number is None or not changes:
        return number
    one = b.constant(number, node.dtype)
    for change in reversed(changes):  # each may round it: a half is 0 as an integer
        one = make(change.op, (one,), change.dtype, (), **dict(change.attrs))
    found: float | int | bool = evaluate([one], {})[0].item()
    return found


def hides_later(mask: Node) -> bool:
    """True for a mask, known now, that hides from each query the keys after its own place, and nothing else."""
    rows, keys = mask.shape[-2:]
    if not isinstance(rows, int) or rows != keys or not mask.dtype.is_float:
        return False
    found = known(mask)
    if found is None or not found.size:
        return False
    later = np.triu(np.ones((rows, rows), bool), 1)
    return bool((found[..., later] <= HIDDEN).all() and (found[..., ~later] == 0).all())


def _hides_nothing(mask: object, call: Call) -> bool:
    """True for no mask and for one that adds 0 everywhere."""
    return mask is None or (isinstance(mask, Ref) and number_of(call.operands[mask.k]) == 0)


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
