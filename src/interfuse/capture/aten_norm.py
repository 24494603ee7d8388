"""Normalisations. In: ATen calls of norms and softmaxes. Out: their primitives, which kernels compute with what
stands around them.

Half inputs compute in f32 and are rounded once at the end, as eager's kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interfuse.capture.aten_reduce import total
from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, axis_of, convert, number, reshape, unsupported, wide
from interfuse.ir.dtypes import DType
from interfuse.ir.index import Dim, product
from interfuse.ir.node import Node


def _is_empty(shape: Sequence[Dim]) -> bool:
    return product(tuple(shape)) == 0


def _statistics(c: Maker, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node, Node]:
    """(x - mean, mean, 1 / sqrt(variance + eps)) over `axes`, whose sizes stay as 1."""
    mean = c.reduce("mean", x, axes, keepdims=True)
    variance = c.reduce("variance", x, axes, keepdims=True, correction=0)
    rstd = c("rsqrt", c("add", variance, eps), hint="rstd")
    return c("sub", x, mean, hint="centred"), mean, rstd


def _affine(c: Maker, x: Node, weight: Node | None, bias: Node | None, like: DType, shape: Sequence[Dim]) -> Node:
    """x * weight + bias, each reshaped to `shape`, in the compute type of `like`."""
    if weight is not None:
        x = c("mul", x, reshape(_as(weight, like), shape), hint="scale")
    if bias is not None:
        x = c("add", x, reshape(_as(bias, like), shape), hint="shift")
    return x


def _as(x: Node, like: DType) -> Node:
    """A parameter in the compute type of `like`; it may itself be wider than the data."""
    return convert(x, like) if wide(x).dtype.bytes < like.bytes else wide(x)


@lowers("native_layer_norm")
def _layer_norm(
    c: Maker, input: Node, normalized_shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, ...]:
    if _is_empty(input.shape):
        raise unsupported("a norm of no elements")
    rank, x = len(normalized_shape), wide(input)
    axes = tuple(range(len(x.shape) - rank, len(x.shape)))
    centred, mean, rstd = _statistics(c, x, axes, number(eps))
    out = _affine(
        c, c("mul", centred, rstd, hint="normalised"), weight, bias, input.dtype, input.shape[len(x.shape) - rank :]
    )
    return c.narrow(out), c.narrow(reshape(mean, c.shapes[1]), 1), c.narrow(reshape(rstd, c.shapes[2]), 2)


@lowers("native_layer_norm_backward")
def _layer_norm_backward(
    c: Maker,
    grad_out: Node,
    input: Node,
    normalized_shape: Sequence[Dim],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    output_mask: Sequence[bool],
) -> tuple[Node, ...]:
    if _is_empty(input.shape) or not all(output_mask) or weight is None:
        raise unsupported("the gradient of a layer norm without all its parts")
    g, x, w = wide(grad_out), wide(input), _as(weight, input.dtype)
    outer = len(x.shape) - len(normalized_shape)
    inner, lead = tuple(range(outer, len(x.shape))), tuple(range(outer))
    scale = _as(rstd, input.dtype)
    normalised = c("mul", c("sub", x, _as(mean, input.dtype), hint="centred"), scale, hint="normalised")
    weighted = c("mul", g, w, hint="weighted")
    mean_g = c.reduce("mean", weighted, inner, keepdims=True)
    mean_gx = c.reduce("mean", c("mul", weighted, normalised), inner, keepdims=True)
    dx = c("mul", c("sub", c("sub", weighted, mean_g), c("mul", normalised, mean_gx)), scale, hint="layer_norm_grad")
    if not lead:
        raise unsupported("the gradient of a layer norm over every dimension")
    return (
        c.narrow(dx),
        c.narrow(c.reduce("sum", c("mul", g, normalised), lead, hint="weight_grad"), 1),
        c.narrow(c.reduce("sum", g, lead, hint="bias_grad"), 2),
    )


@lowers("_fused_rms_norm")
def _rms_norm(
    c: Maker, input: Node, normalized_shape: Sequence[Dim], weight: Node | None, eps: float | None
) -> tuple[Node, Node]:
    x = wide(input)
    axes = tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    small = float(np.finfo(x.dtype.numpy).eps) if eps is None else number(eps)
    square = c.reduce("mean", c("mul", x, x, hint="square"), axes, keepdims=True, hint="mean_square")
    rstd = c("rsqrt", c("add", square, small), hint="rstd")
    out = _affine(c, c("mul", x, rstd, hint="normalised"), weight, None, input.dtype, normalized_shape)
    return c.narrow(out), c.narrow(reshape(rstd, c.shapes[1]), 1)


@lowers("_fused_rms_norm_backward")
def _rms_norm_backward(
    c: Maker,
    grad_out: Node,
    input: Node,
    normalized_shape: Sequence[Dim],
    rstd: Node,
    weight: Node | None,
    output_mask: Sequence[bool],
) -> tuple[Node, Node]:
    outer = len(input.shape) - len(normalized_shape)
    if _is_empty(input.shape) or not all(output_mask) or weight is None or not outer:
        raise unsupported("the gradient of an RMS norm without all its parts, or over every dimension")
    g, scale = wide(grad_out), _as(rstd, input.dtype)
    normalised = c("mul", wide(input), scale, hint="normalised")
    weighted = c("mul", g, _as(weight, input.dtype), hint="weighted")
    inner, lead = tuple(range(outer, len(input.shape))), tuple(range(outer))
    mean = c.reduce("mean", c("mul", weighted, normalised), inner, keepdims=True)
    dx = c("mul", c("sub", weighted, c("mul", normalised, mean)), scale, hint="rms_norm_grad")
    return c.narrow(dx), c.narrow(c.reduce("sum", c("mul", g, normalised), lead, hint="weight_grad"), 1)


@lowers("_native_batch_norm_legit_no_training")
def _batch_norm(
    c: Maker,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    momentum: float,
    eps: float,
) -> tuple[Node, ...]:
    x, like = wide(input), input.dtype
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    rstd = c("rsqrt", c("add", _as(running_var, like), number(eps)), hint="rstd")
    centred = c("sub", x, reshape(_as(running_mean, like), shape), hint="centred")
    out = _affine(c, c("mul", centred, reshape(rstd, shape), hint="normalised"), weight, bias, like, shape)
    kept = (_as(running_mean, like), rstd)
    return (
        c.narrow(out),
        *(
            c.narrow(v, k) if c.shapes[k] == v.shape else c.constant(0.0, c.dtypes[k], c.shapes[k])
            for k, v in enumerate(kept, 1)
        ),
    )


@lowers("_native_batch_norm_legit_functional")
def _batch_norm_training(
    c: Maker,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Node, ...]:
    axes, like = tuple(k for k in range(len(input.shape)) if k != 1), input.dtype
    if not training or product(tuple(input.shape[k] for k in axes)) in (0, 1):
        raise unsupported("a batch norm that does not train, or of one element a channel")
    x, shape, part = wide(input), (input.shape[1], *(1 for _ in input.shape[2:])), number(momentum)
    centred, mean, rstd = _statistics(c, x, axes, number(eps))
    out = _affine(c, c("mul", centred, rstd, hint="normalised"), weight, bias, like, shape)
    unbiased = c.reduce("variance", x, axes, keepdims=True, correction=1)
    moved = (
        c("add", c("mul", reshape(new, old.shape), part), c("mul", _as(old, like), 1 - part), hint="running")
        for new, old in ((mean, running_mean), (unbiased, running_var))
    )
    kept = (reshape(mean, c.shapes[1]), reshape(rstd, c.shapes[2]), *moved)
    return c.narrow(out), *(c.narrow(v, k) for k, v in enumerate(kept, 1))


@lowers("native_batch_norm_backward")
def _batch_norm_backward(
    c: Maker,
    grad_out: Node,
    input: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_invstd: Node | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Node, ...]:
    if not train or save_mean is None or save_invstd is None or weight is None or not all(output_mask):
        raise unsupported("the gradient of a batch norm that does not train, or without all its parts")
    if _is_empty(input.shape):
        raise unsupported("a norm of no elements")
    g, x, like = wide(grad_out), wide(input), input.dtype
    axes, shape = tuple(k for k in range(len(x.shape)) if k != 1), (x.shape[1], *(1 for _ in x.shape[2:]))
    mean, rstd, w = (reshape(_as(v, like), shape) for v in (save_mean, save_invstd, weight))
    centred = c("sub", x, mean, hint="centred")
    product_ = c("mul", g, centred)
    along = c("mul", c("mul", rstd, rstd), c.reduce("mean", product_, axes, keepdims=True), hint="along")
    rest = c("sub", c("sub", g, c.reduce("mean", g, axes, keepdims=True)), c("mul", centred, along))
    dot = c("mul", c.reduce("sum", product_, axes), reshape(rstd, (x.shape[1],)), hint="weight_grad")
    dx = c("mul", c("mul", rest, rstd), w, hint="batch_norm_grad")
    return c.narrow(dx), c.narrow(dot, 1), c.narrow(c.reduce("sum", g, axes, hint="bias_grad"), 2)


@lowers("native_group_norm")
def _group_norm(
    c: Maker,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    images: Dim,
    channels: Dim,
    pixels: Dim,
    group: int,
    eps: float,
) -> tuple[Node, ...]:
    if _is_empty(input.shape) or not isinstance(channels, int):
        raise unsupported("a norm of no elements")
    x, inner = wide(input), product((channels // group, pixels))
    centred, mean, rstd = _statistics(c, reshape(x, (images, group, inner)), (2,), number(eps))
    normalised = reshape(c("mul", centred, rstd, hint="normalised"), (images, channels, pixels))
    out = reshape(_affine(c, normalised, weight, bias, input.dtype, (channels, 1)), input.shape)
    return c.narrow(out), c.narrow(reshape(mean, c.shapes[1]), 1), c.narrow(reshape(rstd, c.shapes[2]), 2)


def _along(c: Maker, x: Node, dim: int) -> tuple[Node, tuple[int, ...]]:
    """x with at least one dimension, and the axes of a softmax over `dim`."""
    if _is_empty(x.shape):
        raise unsupported("a softmax of no elements")
    return reshape(x, x.shape or (1,)), (axis_of(dim, max(len(x.shape), 1)),)


@lowers("_softmax", "_safe_softmax")
def _softmax(c: Maker, self: Node, dim: int, half_to_float: bool = False, dtype: Any = None) -> Node:
    x, axes = _along(c, wide(self), dim)
    top = c.reduce("max", x, axes, keepdims=True)
    weight = c("exp", c("sub", x, top), hint="weight")
    out = c("div", weight, total(c, weight, axes), hint="softmax")
    if "safe" in c.name:  # a row that masks everything gives zeros
        out = c("where", c("eq", top, -float("inf")), 0.0, out, hint="softmax")
    return c.narrow(reshape(out, c.shape))


@lowers("_log_softmax")
def _log_softmax(c: Maker, self: Node, dim: int, half_to_float: bool = False) -> Node:
    x, axes = _along(c, wide(self), dim)
    shifted = c("sub", x, c.reduce("max", x, axes, keepdims=True), hint="shifted")
    out = c("sub", shifted, c("log", total(c, c("exp", shifted), axes)), hint="log_softmax")
    return c.narrow(reshape(out, c.shape))


@lowers("_softmax_backward_data")
def _softmax_backward(c: Maker, grad_output: Node, output: Node, dim: int, input_dtype: Any) -> Node:
    g, axes = _along(c, wide(grad_output), dim)
    y = reshape(wide(output), g.shape)
    part = c("mul", g, y)
    return c.narrow(reshape(c("sub", part, c("mul", y, total(c, part, axes)), hint="softmax_grad"), c.shape))


@lowers("_log_softmax_backward_data")
def _log_softmax_backward(c: Maker, grad_output: Node, output: Node, dim: int, input_dtype: Any) -> Node:
    g, axes = _along(c, wide(grad_output), dim)
    y = reshape(wide(output), g.shape)
    return c.narrow(reshape(c("sub", g, c("mul", c("exp", y), total(c, g, axes)), hint="log_softmax_grad"), c.shape))
