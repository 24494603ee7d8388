"""Activations and their gradients. In: ATen calls. Out: their values, computed in f32 or f64 and rounded once, as
eager does.
"""

from __future__ import annotations

import math
from typing import Any

from interfuse.capture.aten_pointwise import operands
from interfuse.capture.rules import lowers
from interfuse.capture.values import Maker, number, unsupported, wide
from interfuse.ir.dtypes import BOOL
from interfuse.ir.node import Node


def floating(c: Maker, *values: Any) -> list[Node]:
    """Operands in the compute type of the result. UnsupportedError for integers."""
    if not c.dtype.is_float:
        raise unsupported("an activation of integers")
    return operands(c, *values, dtype=c.dtype)


@lowers("relu")
def _relu(c: Maker, self: Node) -> Node:
    return self if self.dtype is BOOL else c.narrow(c("maximum", 0, wide(self), hint="relu"))


@lowers("leaky_relu")
def _leaky_relu(c: Maker, self: Node, negative_slope: Any = 0.01) -> Node:
    (x,) = floating(c, self)
    return c.narrow(c("where", c("gt", x, 0.0), x, c("mul", x, number(negative_slope)), hint="leaky_relu"))


@lowers("leaky_relu_backward")
def _leaky_relu_backward(c: Maker, grad_output: Node, self: Node, negative_slope: Any, self_is_result: bool) -> Node:
    g, x = floating(c, grad_output, self)
    return c.narrow(c("where", c("gt", x, 0.0), g, c("mul", g, number(negative_slope)), hint="leaky_relu_grad"))


@lowers("_prelu_kernel")
def _prelu(c: Maker, self: Node, weight: Node) -> Node:
    x, w = floating(c, self, weight)
    return c.narrow(c("where", c("gt", x, 0.0), x, c("mul", w, x), hint="prelu"))


@lowers("elu")
def _elu(c: Maker, self: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    (x,) = floating(c, self)
    below = c("mul", c("expm1", c("mul", x, float(input_scale))), float(alpha) * float(scale))
    return c.narrow(c("where", c("le", x, 0.0), below, c("mul", x, float(scale)), hint="elu"))


@lowers("elu_backward")
def _elu_backward(
    c: Maker, grad_output: Node, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Node
) -> Node:
    g, x = floating(c, grad_output, self_or_result)
    slope, inner = float(alpha) * float(scale), float(input_scale)
    if is_result:
        below = c("mul", c("mul", g, inner), c("add", x, slope))
    else:
        below = c("mul", c("mul", g, inner * slope), c("exp", c("mul", x, inner)))
    return c.narrow(c("where", c("le", x, 0.0), below, c("mul", g, float(scale)), hint="elu_grad"))


def _normal_cdf(c: Maker, x: Node) -> Node:
    return c("normal_cdf", x, hint="cdf")


def _gelu_inner(c: Maker, x: Node, times: float = 1.0) -> Node:
    """sqrt(2/pi) (x + 0.044715 x^3) times a number, as x (a + b x^2): the numbers take each other in."""
    line = times * math.sqrt(2.0 / math.pi)
    slope = c("add", c("mul", c("mul", x, x, hint="square"), 0.044715 * line), line)
    return c("mul", x, slope, hint="inner")


@lowers("gelu")
def _gelu(c: Maker, self: Node, approximate: str = "none") -> Node:
    (x,) = floating(c, self)
    if approximate == "tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2z): fewer operations, and nothing cancels where tanh is near -1.
        return c.narrow(c("mul", x, c("sigmoid", _gelu_inner(c, x, 2.0)), hint="gelu"))
    return c.narrow(c("mul", x, _normal_cdf(c, x), hint="gelu"))


@lowers("gelu_backward")
def _gelu_backward(c: Maker, grad_output: Node, self: Node, approximate: str = "none") -> Node:
    g, x = floating(c, grad_output, self)
    if approximate == "none":
        density = c(
            "mul",
            c("exp", c("mul", c("mul", x, x, hint="square"), -0.5)),
            1.0 / math.sqrt(2.0 * math.pi),
            hint="density",
        )
        return c.narrow(c("mul", g, c("add", _normal_cdf(c, x), c("mul", x, density)), hint="gelu_grad"))
    t = c("tanh", _gelu_inner(c, x))
    outer = c("mul", c("add", t, 1.0), 0.5)
    slope = c("mul", c("add", c("mul", c("mul", x, x, hint="square"), 3.0 * 0.044715), 1.0), math.sqrt(2.0 / math.pi))
    steep = c("sub", c.constant(1.0, t.dtype), c("mul", t, t))
    return c.narrow(c("mul", g, c("add", outer, c("mul", c("mul", c("mul", x, 0.5), steep), slope)), hint="gelu_grad"))


@lowers("silu")
def _silu(c: Maker, self: Node) -> Node:
    (x,) = floating(c, self)
    return c.narrow(c("mul", x, c("sigmoid", x), hint="silu"))


@lowers("silu_backward")
def _silu_backward(c: Maker, grad_output: Node, self: Node) -> Node:
    g, x = floating(c, grad_output, self)
    s = c("sigmoid", x)
    rest = c("sub", c.constant(1.0, s.dtype), s)
    return c.narrow(c("mul", c("mul", g, s), c("add", c("mul", x, rest), 1.0), hint="silu_grad"))


@lowers("sigmoid_backward")
def _sigmoid_backward(c: Maker, grad_output: Node, output: Node) -> Node:
    g, y = floating(c, grad_output, output)
    return c.narrow(c("mul", c("mul", g, c("sub", c.constant(1.0, y.dtype), y)), y, hint="sigmoid_grad"))


@lowers("tanh_backward")
def _tanh_backward(c: Maker, grad_output: Node, output: Node) -> Node:
    g, y = floating(c, grad_output, output)
    return c.narrow(c("mul", g, c("sub", c.constant(1.0, y.dtype), c("mul", y, y)), hint="tanh_grad"))


@lowers("threshold_backward")
def _threshold_backward(c: Maker, grad_output: Node, self: Node, threshold: Any) -> Node:
    g, x = operands(c, grad_output, self, dtype=c.dtype)
    return c.narrow(c("where", c("le", x, number(threshold)), 0, g, hint="relu_grad"))


@lowers("threshold")
def _threshold(c: Maker, self: Node, threshold: Any, value: Any) -> Node:
    x, limit, other = operands(c, self, threshold, value, dtype=c.dtype, exact=True)
    return c.narrow(c("where", c("le", x, limit), other, x, hint="threshold"))


@lowers("hardtanh_backward")
def _hardtanh_backward(c: Maker, grad_output: Node, self: Node, min_val: Any, max_val: Any) -> Node:
    g, x = floating(c, grad_output, self)
    inside = c("and", c("gt", x, number(min_val)), c("lt", x, number(max_val)))
    return c.narrow(c("where", inside, g, 0.0, hint="hardtanh_grad"))


def _hard_ramp(c: Maker, x: Node) -> Node:
    """min(max(x + 3, 0), 6)."""
    return c("minimum", c("maximum", c("add", x, 3.0), 0.0), 6.0, hint="ramp")


@lowers("hardsigmoid")
def _hardsigmoid(c: Maker, self: Node) -> Node:
    (x,) = floating(c, self)
    return c.narrow(c("div", _hard_ramp(c, x), 6.0, hint="hardsigmoid"))


@lowers("hardsigmoid_backward")
def _hardsigmoid_backward(c: Maker, grad_output: Node, self: Node) -> Node:
    g, x = floating(c, grad_output, self)
    inside = c("and", c("gt", x, -3.0), c("lt", x, 3.0))
    return c.narrow(c("where", inside, c("mul", g, 1.0 / 6.0), 0.0, hint="hardsigmoid_grad"))


@lowers("hardswish")
def _hardswish(c: Maker, self: Node) -> Node:
    (x,) = floating(c, self)
    return c.narrow(c("div", c("mul", x, _hard_ramp(c, x)), 6.0, hint="hardswish"))


@lowers("hardswish_backward")
def _hardswish_backward(c: Maker, grad_output: Node, self: Node) -> Node:
    g, x = floating(c, grad_output, self)
    middle = c("mul", g, c("add", c("div", x, 3.0), 0.5))
    return c.narrow(c("where", c("le", x, -3.0), 0.0, c("where", c("lt", x, 3.0), middle, g), hint="hardswish_grad"))


@lowers("mish")
def _mish(c: Maker, self: Node) -> Node:
    (x,) = floating(c, self)
    return c.narrow(c("mul", x, c("tanh", c("log1p", c("exp", x), hint="softplus")), hint="mish"))


@lowers("softplus")
def _softplus(c: Maker, self: Node, beta: Any = 1, threshold: Any = 20) -> Node:
    (x,) = floating(c, self)
    scaled = c("mul", x, float(beta))
    return c.narrow(
        c(
            "where",
            c("gt", scaled, float(threshold)),
            x,
            c("div", c("log1p", c("exp", scaled)), float(beta)),
            hint="softplus",
        )
    )


@lowers("softplus_backward")
def _softplus_backward(c: Maker, grad_output: Node, self: Node, beta: Any, threshold: Any) -> Node:
    g, x = floating(c, grad_output, self)
    scaled = c("mul", x, float(beta))
    return c.narrow(
        c("where", c("gt", scaled, float(threshold)), g, c("mul", g, c("sigmoid", scaled)), hint="softplus_grad")
    )


@lowers("log_sigmoid_forward")
def _log_sigmoid(c: Maker, self: Node) -> tuple[Node, Node]:
    (x,) = floating(c, self)
    small = c("exp", c("neg", c("abs", x)), hint="buffer")
    out = c.narrow(c("sub", c("minimum", x, 0.0), c("log1p", small), hint="logsigmoid"))
    # The CPU keeps exp(-|x|) for the gradient; a GPU keeps nothing.
    return out, c.narrow(small, 1) if c.shapes[1] == c.shape else c.constant(0.0, c.dtypes[1], c.shapes[1])


@lowers("log_sigmoid_backward")
def _log_sigmoid_backward(c: Maker, grad_output: Node, self: Node, buffer: Node) -> Node:
    g, x = floating(c, grad_output, self)
    return c.narrow(c("mul", g, c("sigmoid", c("neg", x)), hint="logsigmoid_grad"))


@lowers("hardshrink")
def _hardshrink(c: Maker, self: Node, lambd: Any = 0.5) -> Node:
    x, limit = operands(c, self, lambd, dtype=c.dtype, exact=True)
    inside = c("and", c("ge", x, c("neg", limit)), c("le", x, limit))
    return c.narrow(c("where", inside, 0.0, x, hint="hardshrink"))


@lowers("softshrink")
def _softshrink(c: Maker, self: Node, lambd: Any = 0.5) -> Node:
    x, limit = operands(c, self, lambd, dtype=c.dtype, exact=True)
    low = c("where", c("lt", x, c("neg", limit)), c("add", x, limit), c("mul", x, 0.0))
    return c.narrow(c("where", c("gt", x, limit), c("sub", x, limit), low, hint="softshrink"))


@lowers("native_dropout_backward")
def _dropout_backward(c: Maker, grad_output: Node, mask: Node, scale: Any) -> Node:
    g, m = floating(c, grad_output, mask)
    return c.narrow(c("mul", c("mul", g, m), number(scale), hint="dropout_grad"))


@lowers("glu")
def _glu(c: Maker, self: Node, dim: int = -1) -> Node:
    from_axis = dim + len(self.shape) if dim < 0 else dim
    a, b = _halves(c, self, from_axis)
    x, gate = floating(c, a, b)
    return c.narrow(c("mul", x, c("sigmoid", gate), hint="glu"))


def _halves(c: Maker, x: Node, axis: int) -> tuple[Node, Node]:
    n = c.shape[axis]
    return c.part(x, axis, 0, n), c.part(x, axis, n, n)
