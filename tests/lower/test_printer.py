"""Printed kernels. In: kernels of every role, statement and mode of parameter. Out: the golden text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from interfuse.ir.index import sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Store, Value
from interfuse.lower.printer import show
from interfuse.lower.target import CPU, GPU
from interfuse.lower.work import Work
from tests import golden


def residual_distance() -> Kernel:
    """Two outputs, a scratch row, carried reductions, a narrow buffer with strides."""
    x, r = b.placeholder("x", F16, (4, 24)), b.placeholder("residual", F32, (4, 24))
    s = b.apply("add", b.cast(x, F32), r, source="model.py:7", hint="summed")
    largest = b.expand(b.reduce("max", s, (1,), keepdims=True, hint="largest"), s.shape)
    outputs = (b.reduce("sum", b.apply("sub", largest, s), (1,), hint="distance"), s)
    layouts = {x: Layout((1, 4)), **{n: contiguous(n.shape) for n in (r, *outputs)}}
    return lower("residual_distance", Work(outputs, frozenset((x, r)), layouts), CPU, ("What it is for.", ""))[0]


def masked_positions() -> Kernel:
    """An index as a value, constants, and a tile."""
    x = b.placeholder("x", F32, (6, 12))
    column = b.broadcast(b.cast(b.iota(12), F32), x.shape)
    total = b.reduce("max", b.apply("mul", x, column), (1,))
    layouts: dict[Node, Layout] = {n: contiguous(n.shape) for n in (x, total)}
    return lower("masked_positions", Work((total,), frozenset((x,)), layouts), GPU)[0]


def any_length() -> Kernel:
    """A size that the launch passes."""
    n = sym("n", 1, 4096)
    out = Value("x", F32, ("col",))
    body = (Load(out, "x", sym("col", 0, 4095)), Store("y", sym("col", 0, 4095), out))
    params = (Param("x", F32, (n,), (1,)), Param("y", F32, (n,), (1,), "out"))
    return Kernel("any_length", params, (Axis("col", n, Role.GRID, 16),), body, (), ("n",))


@pytest.mark.parametrize("maker", [residual_distance, masked_positions, any_length], ids=lambda f: f.__name__)
def test_kernels(request: pytest.FixtureRequest, maker: object) -> None:
    golden.check(request, show(maker()))  # type: ignore[operator]


def test_what_differs_prints_differently() -> None:
    kernel = any_length()
    out = Value("y", F32, ("col",))
    changes = (
        replace(kernel, warps=8),
        replace(kernel, axes=(replace(kernel.axes[0], block=32),)),
        replace(kernel, axes=(replace(kernel.axes[0], role=Role.TILE),)),
        replace(kernel, params=(replace(kernel.params[0], strides=(2,)), kernel.params[1])),
        replace(kernel, body=(*kernel.body, Let(out, "const", (), (("value", 1.0),)))),
        replace(kernel, body=(*kernel.body, Let(out, "cast", (kernel.body[0].out,), (("to", "f16"),)))),  # type: ignore[union-attr]
        replace(kernel, reduction_order="row/cpp/16"),
    )
    assert len({show(k) for k in (kernel, *changes)}) == len(changes) + 1
