"""Reductions and scans. In: ATen calls. Out: reductions in f32 (f64 for f64), rounded once, with eager's shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, axes_of, axis_of, convert, number, reshape, unsupported, wide
from interfuse.ir import build
from interfuse.ir.dtypes import BOOL, I64
from interfuse.ir.node import Node


def _kept(c: Maker, op: str, x: Node, dim: Any, keepdim: bool, hint: str = "", **attrs: Any) -> Node:
    return c.reduce(op, x, axes_of(dim, len(x.shape)), keepdim, hint, **attrs)


@lowers("sum", "sum.dim_IntList", "mean", "mean.dim", "prod", "prod.dim_int")
def _sum(c: Maker, self: Node, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    return c.narrow(_kept(c, c.name.split(".")[1], convert(self, c.dtype), dim, keepdim))


@lowers("amax", "amin", "max", "min")
def _extreme(c: Maker, self: Node, dim: Any = None, keepdim: bool = False) -> Node:
    top = "max" in c.name
    if self.dtype is BOOL:
        return _kept(c, "any" if top else "all", self, dim, keepdim)
    return c.narrow(_kept(c, "max" if top else "min", wide(self), dim, keepdim))


@lowers("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def _any(c: Maker, self: Node, dim: Any = None, keepdim: bool = False) -> Node:
    if isinstance(dim, (list, tuple)) and not dim and c.name.endswith("dims"):
        return build.cast(build.cast(wide(self), BOOL), c.dtype)  # no dimensions: each element alone
    return build.cast(_kept(c, c.name.split(".")[1], build.cast(wide(self), BOOL), dim, keepdim), c.dtype)


@lowers("argmax", "argmin")
def _arg(c: Maker, self: Node, dim: Any = None, keepdim: bool = False) -> Node:
    x = wide(self)
    if dim is None:
        x, axes = reshape(x, (x.size,)), (0,)
    else:
        axes = (axis_of(dim, len(x.shape)),)
    if x.dtype is BOOL:
        raise unsupported("the position of the largest truth value")
    return reshape(c.reduce(c.name.split(".")[1], x, axes if x.shape else (), False), c.shape)


@lowers("max.dim", "min.dim")
def _extreme_with_place(c: Maker, self: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    if self.dtype is BOOL:
        raise unsupported("the position of the largest truth value")
    op, axes, x = "max" if ".max." in c.name else "min", axes_of(dim, len(self.shape)), wide(self)
    return c.narrow(c.reduce(op, x, axes, keepdim)), reshape(c.reduce(f"arg{op}", x, axes), c.shapes[1])


def _variance(c: Maker, x: Node, dim: Any, correction: Any, keepdim: bool) -> Node:
    return _kept(c, "variance", x, dim, keepdim, "variance", correction=1 if correction is None else number(correction))


@lowers("var.correction")
def _var(c: Maker, self: Node, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Node:
    return c.narrow(_variance(c, wide(self), dim, correction, keepdim))


@lowers("std.correction")
def _std(c: Maker, self: Node, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Node:
    return c.narrow(c("sqrt", _variance(c, wide(self), dim, correction, keepdim), hint="std"))


@lowers("var_mean.correction", "std_mean.correction")
def _var_mean(
    c: Maker, self: Node, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Node, Node]:
    spread = _variance(c, wide(self), dim, correction, keepdim)
    spread = c("sqrt", spread, hint="std") if "std_mean" in c.name else spread
    mean = _kept(c, "mean", wide(self), dim, False)
    # Eager's running mean meets inf - inf once an element is infinite.
    guarded = c("add", mean, c("sub", mean, mean, hint="nothing"), hint="mean")
    return c.narrow(spread), c.narrow(reshape(guarded, c.shapes[1]), 1)


@lowers("logsumexp")
def _logsumexp(c: Maker, self: Node, dim: Any, keepdim: bool = False) -> Node:
    x, axes = convert(self, c.dtype), axes_of(dim, len(self.shape))
    top = c.reduce("max", x, axes, keepdims=True)
    # An infinite maximum would give inf - inf; eager shifts by 0 there.
    shift = c("where", c("isinf", top), 0.0, top)
    total = c.reduce("sum", c("exp", c("sub", x, shift)), axes, keepdims=True)
    return c.narrow(reshape(c("add", c("log", total), shift, hint="logsumexp"), c.shape))


@lowers("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def _norm(c: Maker, self: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    p, x = (2 if ord is None else number(ord)), convert(self, c.dtype)
    if p == 2 and all(x.shape[a] == 1 for a in axes_of(dim, len(x.shape))):
        p = 1  # of one number, whose square may be too large
    if p == 2:
        return c.narrow(c("sqrt", _kept(c, "sum", c("mul", x, x, hint="square"), dim, keepdim), hint="norm"))
    if p == 1:
        return c.narrow(_kept(c, "sum", c("abs", x), dim, keepdim, "norm"))
    if math.isinf(p):
        return c.narrow(_kept(c, "max" if p > 0 else "min", c("abs", x), dim, keepdim, "norm"))
    raise unsupported(f"a norm of order {p}")


@lowers("cumsum", "cumprod")
def _scan(c: Maker, self: Node, dim: int, dtype: Any = None) -> Node:
    x = convert(self, c.dtype)
    return c.narrow(build.scan(c.name.split(".")[1], x, axis_of(dim, len(x.shape))) if x.shape else x)


@lowers("cummax", "cummin")
def _extreme_so_far(c: Maker, self: Node, dim: int) -> tuple[Node, Node]:
    if self.dtype is BOOL:
        raise unsupported("the position of the largest truth value")
    x = wide(self)
    if not x.shape:
        return c.narrow(x), build.constant(0, I64)
    axis = axis_of(dim, len(x.shape))
    top = build.scan(c.name.split(".")[1], x, axis)
    # Eager's place is the last one that reached the extreme, or held NaN.
    reached = c("eq", x, top)
    reached = c("or", reached, c("isnan", x)) if x.dtype.is_float else reached
    along = tuple(d if k == axis else 1 for k, d in enumerate(x.shape))
    place = build.broadcast(build.reshape(build.iota(x.shape[axis]), along), x.shape)
    return c.narrow(top), build.scan("cummax", c("where", reached, place, 0), axis)


@lowers("count_nonzero")
def _count_nonzero(c: Maker, self: Node, dim: Any = None) -> Node:
    return _kept(c, "sum", build.cast(build.cast(wide(self), BOOL), c.dtype), dim, False)


def total(c: Maker, x: Node, axes: Sequence[int], hint: str = "total") -> Node:
    """The sum over axes, their sizes kept as 1."""
    return c.reduce("sum", x, axes, keepdims=True, hint=hint)
