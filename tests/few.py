"""Regions that multiply a few rows with matrices. In: a type and sizes. Out: inputs and outputs; values for inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, DType
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.product_parts import product_parts
from interfuse.lower.slices import slices_first
from interfuse.lower.split import replaced
from interfuse.lower.target import GPU, Target
from interfuse.lower.work import Work
from interfuse.passes.few_rows import summed
from tests.emit import triton_cases as cases

Region = tuple[list[Node], list[Node]]
Sizes = tuple[int, int, int]
"""Rows, features, and what they have in common."""


def _sum(x: Node, w: Node, turned: bool, *bias: Node) -> Node:
    return b.cast(summed(b.linear(x, b.permute(w, (1, 0)) if turned else w, *bias)), F32)


def _stored(wide: Node, dtype: DType) -> Node:
    return b.cast(b.rounded(wide, dtype), dtype) if dtype.is_narrow else wide


def _weight(name: str, dtype: DType, sizes: Sizes, turned: bool) -> Node:
    _, features, common = sizes
    return b.placeholder(name, dtype, (common, features) if turned else (features, common))


def gated(dtype: DType, sizes: Sizes, turned: bool) -> Region:
    """tanh of one product times another one of the same rows."""
    x = b.placeholder("x", dtype, (sizes[0], sizes[2]))
    gate, up = (_weight(name, dtype, sizes, turned) for name in ("gate", "up"))
    out = b.apply("mul", b.apply("tanh", _sum(x, gate, turned)), _sum(x, up, turned))
    return [x, gate, up], [_stored(out, dtype)]


def halves(dtype: DType, sizes: Sizes, turned: bool) -> Region:
    """tanh of one half of a product with a bias times the other half, as each half is computed by itself."""
    rows, features, common = sizes
    x, w = b.placeholder("x", dtype, (rows, common)), _weight("w", dtype, (rows, 2 * features, common), turned)
    bias = b.placeholder("bias", dtype, (2 * features,))
    both = _sum(x, w, turned, bias)
    first, second = (b.take_slice(both, (0, k * features), (rows, features)) for k in (0, 1))
    out = _stored(b.apply("mul", b.apply("tanh", first), second), dtype)
    return [x, w, bias], list(slices_first((out,), frozenset((x, w, bias))))


def residual(dtype: DType, sizes: Sizes, turned: bool) -> Region:
    """tanh of a product with a bias, and that added to what has the shape of the result."""
    rows, features, common = sizes
    x, added = b.placeholder("x", dtype, (rows, common)), b.placeholder("added", dtype, (rows, features))
    w, bias = _weight("w", dtype, sizes, turned), b.placeholder("bias", dtype, (features,))
    active = b.apply("tanh", _sum(x, w, turned, bias))
    outs = active, b.apply("add", active, b.cast(added, F32))
    return [x, w, bias, added], [_stored(out, dtype) for out in outs]


def normed(dtype: DType, sizes: Sizes, turned: bool) -> Region:
    """A gated product of rows over their root mean square, and the rows twice: what does not wait for the products."""
    rows, _, common = sizes
    x, (gate, up) = (
        b.placeholder("x", dtype, (rows, common)),
        (_weight(n, dtype, sizes, turned) for n in ("gate", "up")),
    )
    wide = b.cast(x, F32)
    total = b.reduce("sum", b.apply("mul", wide, wide), (1,), keepdims=True)
    scale = b.apply("rsqrt", b.apply("mul", total, b.like(1 / common, total)))
    normal = b.cast(b.rounded(b.apply("mul", wide, b.expand(scale, x.shape)), dtype), dtype)
    out = b.apply("mul", b.apply("tanh", _sum(normal, gate, turned)), _sum(normal, up, turned))
    outs = out, b.apply("add", wide, wide)
    return [x, gate, up], [b.cast(b.rounded(n, dtype), dtype) for n in outs]


def one_product(sizes: Sizes, turned: bool) -> tuple[Region, Node]:
    """A product of f32 with a bias, and what is added to its tanh; and the product as captured."""
    rows, features, _ = sizes
    x, added = b.placeholder("x", F32, (rows, sizes[2])), b.placeholder("added", F32, (rows, features))
    w, bias = _weight("w", F32, sizes, turned), b.placeholder("bias", F32, (features,))
    linear = b.linear(x, b.permute(w, (1, 0)) if turned else w, bias)
    return ([x, w, bias, added], [b.apply("add", b.apply("tanh", linear), added)]), linear


def parts_of(sizes: Sizes, turned: bool, target: Target) -> tuple[Work, ...]:
    """The works of `one_product` in parts."""
    (inputs, outputs), _ = one_product(sizes, turned)
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return product_parts(Work(tuple(outputs), frozenset(inputs), layouts), target, spare=1 << 30)


def check_parts(sizes: Sizes, turned: bool, device: str = "cpu") -> None:
    """Run a product in parts; every value is right, and what is no number stays in its row and its feature."""
    (inputs, outputs), linear = one_product(sizes, turned)
    target = replace(GPU, dot=64, splits=True)
    given = values(inputs, special=True)
    held, works = dict(given), parts_of(sizes, turned, target)
    assert len(works) == 2
    for k, part in enumerate(works):
        kernel, reads = lower("k", part, target)
        assert k or kernel.family == "product"
        held |= dict(zip(part.outputs, cases.run(kernel, [held[n] for n in reads], device), strict=True))
    whole = replaced(tuple(outputs), frozenset(inputs), {linear: summed(linear)})
    cases.check_region(list(whole), given, [held[n] for n in outputs])


def values(inputs: list[Node], special: bool = False) -> dict[Node, np.ndarray]:
    """Random values by input; with some that are no numbers, in the first matrix and in its rows, where `special`."""
    given = {n: np.random.default_rng(k).standard_normal(n.shape).astype(n.dtype.numpy) for k, n in enumerate(inputs)}
    if special:
        x, w, *_ = given.values()
        x[0, 3], x[-1, 5], w.flat[7] = np.inf, np.nan, np.inf
    return given
