"""Like regions of several sizes, for every backend's tests of packs. In: a target. Out: kernels, members, values.

`CASES` gives by name a maker of a region from a shape; regions of one maker differ in sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from interfuse.capture.torch_types import to_torch
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32, I64, DType
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.pack import likeness, pack
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from interfuse.tune.trial import index_ends
from tests.strategies import arrays_for

SHAPES = ((3, 5), (64, 32), (1, 7), (40, 1000), (16, 16))
Region = tuple[list[Node], list[Node]]


@dataclass(frozen=True)
class Packed:
    """A packed kernel with the region, the kernel alone, its inputs in order and the sizes of each member."""

    kernel: Kernel
    regions: list[Region]
    alone: list[Kernel]
    orders: list[tuple[Node, ...]]
    sizes: list[tuple[int, ...]]
    made: dict[int, Mapping[Node, np.ndarray]] = field(default_factory=dict)

    def arrays(self, k: int) -> Mapping[Node, np.ndarray]:
        """Random values of member k's inputs."""
        if k not in self.made:
            found = arrays_for(self.regions[k][0], "random")
            ends = index_ends(self.regions[k][1], self.regions[k][0])
            self.made[k] = {n: np.abs(a) % ends[n] if n in ends else a for n, a in found.items()}
        return self.made[k]

    def ran(self, launch: Callable[..., Any], members: Sequence[int]) -> list[list[torch.Tensor]]:
        """The outputs of these members, run in one launch."""
        tensors: list[torch.Tensor] = []
        outs, sizes = [], []
        for k in members:
            arrays = self.arrays(k)
            own = [torch.full(n.shape, 77, dtype=to_torch(n.dtype)) for n in self.regions[k][1]]
            tensors += [torch.from_numpy(np.ascontiguousarray(arrays[n])) for n in self.orders[k]] + own
            sizes += self.sizes[k]
            outs.append(own)
        launch(tensors, sizes)
        return outs


def _in(name: str, *shape: int, dtype: DType = F32) -> Node:
    return b.placeholder(name, dtype, shape)


def _like(value: float, x: Node) -> Node:
    return b.broadcast(b.constant(value, x.dtype), x.shape)


def _bias_relu(rows: int, cols: int) -> Region:
    x, bias = _in("x", rows, cols), _in("bias", cols)
    total = b.apply("add", x, b.broadcast(bias, x.shape))
    return [x, bias], [b.apply("maximum", total, _like(0.0, total))]


def _step(rows: int, cols: int) -> Region:
    """A parameter and its moment, both updated, with a scale that lies in memory."""
    p, m, g = (_in(n, rows, cols) for n in "pmg")
    scale = _in("scale")
    moment = b.apply("add", b.apply("mul", m, _like(0.9, m)), b.apply("mul", g, b.broadcast(scale, g.shape)))
    return [p, m, g, scale], [b.apply("sub", p, b.apply("mul", moment, _like(0.1, p))), moment]


def _narrow(rows: int, cols: int) -> Region:
    x = _in("x", rows, cols)
    return [x], [b.cast(x, BF16)]


def _turned(rows: int, cols: int) -> Region:
    x = _in("x", rows, cols)
    return [x], [b.apply("tanh", b.permute(x, (1, 0)))]


def _norm(rows: int, cols: int) -> Region:
    x = _in("x", rows, cols)
    return [x], [b.apply("sqrt", b.reduce("sum", b.apply("mul", x, x), (1,)))]


def _softmax(rows: int, cols: int) -> Region:
    x = _in("x", rows, cols)
    e = b.apply("exp", b.apply("sub", x, b.expand(b.reduce("max", x, (1,), keepdims=True), x.shape)))
    return [x], [b.apply("div", e, b.expand(b.reduce("sum", e, (1,), keepdims=True), x.shape))]


def _joined(rows: int, cols: int) -> Region:
    """Two tables side by side."""
    x, y = _in("x", rows, cols), _in("y", rows, cols)
    return [x, y], [b.apply("tanh", b.concat((x, y), 1))]


def _columns(rows: int, cols: int) -> Region:
    x = _in("x", rows, cols)
    return [x], [b.reduce("sum", b.apply("tanh", x), (0,))]


def _looked_up(rows: int, cols: int) -> Region:
    """Rows of a table, each times its column's scale."""
    table, ids, scale = _in("table", rows, cols), _in("ids", 6, dtype=I64), _in("scale", cols)
    found = b.gather(table, b.expand(b.reshape(ids, (6, 1)), (6, cols)), 0)
    return [table, ids, scale], [b.apply("mul", found, b.broadcast(scale, (6, cols)))]


CASES: Mapping[str, Callable[[int, int], Region]] = {
    "bias_relu": _bias_relu,
    "step": _step,
    "narrow": _narrow,
    "turned": _turned,
    "norm": _norm,
    "softmax": _softmax,
    "columns": _columns,
    "looked_up": _looked_up,
    "joined": _joined,
}


def lowered(region: Region, target: Target, name: str = "one") -> tuple[Kernel, tuple[Node, ...]]:
    """The kernel of a region alone, contiguous in and out, and its inputs in order."""
    inputs, outputs = region
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    return lower(name, Work(tuple(outputs), frozenset(inputs), layouts), target)


def packs(
    name: str, target: Target, unit: int = 1, shapes: Sequence[tuple[int, int]] = SHAPES, least: int = 2
) -> list[Packed]:
    """Every pack that `shapes` of case `name` make, by likeness."""
    groups: dict[object, list[tuple[Region, Kernel, tuple[Node, ...]]]] = {}
    for shape in shapes:
        region = CASES[name](*shape)
        kernel, order = lowered(region, target)
        groups.setdefault(likeness(kernel, unit), []).append((region, kernel, order))
    found = []
    for group in groups.values():
        if len(group) < least:
            continue
        regions, kernels, orders = (list(part) for part in zip(*group, strict=True))
        kernel, sizes = pack(kernels, f"pack_{name}", unit=unit)
        found.append(Packed(kernel, regions, kernels, orders, [tuple(map(int, row)) for row in sizes]))  # type: ignore[arg-type]
    return found
