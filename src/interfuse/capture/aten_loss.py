"""Losses. In: ATen calls. Out: the error of each element, then its mean or sum where one is asked for.

A loss of class labels reads one score a label, an indirect load; its gradient compares every class with the label, so
it needs no indirect store.
"""

from __future__ import annotations

from typing import Any

from interfuse.capture.aten_activation import floating
from interfuse.capture.aten_indirect import picked
from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, expand, number, reshape, wide
from interfuse.ir import build
from interfuse.ir.node import Node

MEAN, SUM = 1, 2
"""ATen's codes for a loss's `reduction`; 0 keeps every element."""


def _joined(c: Maker, error: Node, reduction: int, hint: str) -> Node:
    if reduction == 0:
        return c.narrow(error)
    return c.narrow(c.reduce("mean" if reduction == MEAN else "sum", error, range(len(error.shape)), hint=hint))


@lowers("mse_loss")
def _mse_loss(c: Maker, self: Node, target: Node, reduction: int = MEAN) -> Node:
    a, b = floating(c, self, target)
    gap = c("sub", a, b, hint="gap")
    return _joined(c, c("mul", gap, gap, hint="squared_error"), reduction, "mse")


def _bent(c: Maker, self: Node, target: Node, limit: float) -> tuple[Node, Node, Node]:
    """(|self - target|, its square, whether it is below `limit`)."""
    a, b = floating(c, self, target)
    gap = c("abs", c("sub", a, b), hint="gap")
    return gap, c("mul", gap, gap, hint="square"), c("lt", gap, limit)


@lowers("smooth_l1_loss")
def _smooth_l1_loss(c: Maker, self: Node, target: Node, reduction: int = MEAN, beta: Any = 1.0) -> Node:
    limit = float(number(beta))
    gap, square, near = _bent(c, self, target, limit)
    if limit == 0.0:
        return _joined(c, gap, reduction, "l1")
    error = c("where", near, c("div", c("mul", square, 0.5), limit), c("sub", gap, 0.5 * limit), hint="smooth_l1")
    return _joined(c, error, reduction, "smooth_l1")


@lowers("huber_loss")
def _huber_loss(c: Maker, self: Node, target: Node, reduction: int = MEAN, delta: Any = 1.0) -> Node:
    limit = float(number(delta))
    gap, square, _ = _bent(c, self, target, limit)
    error = c(
        "where", c("le", gap, limit), c("mul", square, 0.5), c("mul", c("sub", gap, 0.5 * limit), limit), hint="huber"
    )
    return _joined(c, error, reduction, "huber")


@lowers("mse_loss_backward")
def _mse_loss_backward(c: Maker, grad_output: Node, self: Node, target: Node, reduction: int) -> Node:
    g, a, b = floating(c, grad_output, self, target)
    gap = c("mul", c("sub", a, b), 2.0)
    if reduction == MEAN:
        count = c.count(self, range(len(self.shape)))
        gap = c("div", gap, float(number(count)))
    return c.narrow(c("mul", gap, g, hint="mse_grad"))


@lowers("binary_cross_entropy_with_logits")
def _logit_loss(
    c: Maker,
    self: Node,
    target: Node,
    weight: Node | None = None,
    pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    x, y = floating(c, self, target)
    # log(1 + exp(-x)) without overflow.
    soft = c("add", c("log1p", c("exp", c("neg", c("abs", x)))), c("maximum", c("neg", x), 0.0), hint="softplus")
    if pos_weight is not None:
        (p,) = floating(c, pos_weight)
        soft = c("mul", soft, c("add", c("mul", c("sub", p, 1.0), y), 1.0))
    error = c("add", c("mul", c("sub", c.constant(1.0, x.dtype), y), x), soft, hint="cross_entropy")
    if weight is not None:
        error = c("mul", error, floating(c, weight)[0])
    return _joined(c, error, reduction, "cross_entropy")


def _labels(c: Maker, scores: Node, target: Node, ignore: int) -> tuple[int, Node, Node]:
    """(the axis of classes, the labels in the scores' shape with one class, which of them count); 0 where they do
    not.
    """
    axis = min(1, len(scores.shape) - 1)
    shape = tuple(1 if k == axis else d for k, d in enumerate(scores.shape))
    counts = c("ne", reshape(target, shape), ignore, hint="counts")
    return axis, c("where", counts, reshape(target, shape), 0, hint="label"), counts


def _class_weight(c: Maker, weight: Node | None, label: Node, counts: Node, like: Node) -> Node:
    """What each label counts for: its class's weight or 1, and 0 where it is ignored; in the type of `like`."""
    one: Node | float = 1.0
    if weight is not None:
        one = wide(reshape(picked(weight, reshape(label, (label.size,)), 0), label.shape))
    return c("where", counts, one, c.constant(0.0, like.dtype, label.shape), hint="class_weight")


@lowers("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(
    c: Maker, self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> tuple[Node, Node]:
    scores = wide(self)
    axis, label, counts = _labels(c, scores, target, ignore_index)
    share = _class_weight(c, weight, label, counts, scores)
    error = c("neg", build.gather(scores, label, axis), hint="error")
    error = error if weight is None else c("mul", error, share)
    error = c("where", counts, error, 0.0, hint="error")
    if reduction == 0 and len(self.shape) > 1:
        return c.narrow(reshape(error, c.shape)), c.constant(0.0, c.dtypes[1])
    every = range(len(error.shape))
    total, shares = c.reduce("sum", error, every, hint="loss"), c.reduce("sum", share, every, hint="total_weight")
    return c.narrow(c("div", total, shares, hint="loss") if reduction == MEAN else total), c.narrow(shares, 1)


@lowers("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    c: Maker,
    grad_output: Node,
    self: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignore_index: int,
    total_weight: Node,
) -> Node:
    axis, label, counts = _labels(c, self, target, ignore_index)
    grad = wide(grad_output)
    grad = reshape(grad, label.shape) if grad.shape else expand(grad, label.shape)
    if reduction == MEAN:
        grad = c("div", grad, wide(total_weight))
    grad = c("mul", c("neg", grad), _class_weight(c, weight, label, counts, grad), hint="error_grad")
    along = tuple(d if k == axis else 1 for k, d in enumerate(self.shape))
    right = c("and", c("eq", reshape(c.iota(self.shape[axis]), along), label), counts, hint="right")
    return c.narrow(c("where", right, grad, 0.0, hint="nll_grad"))
