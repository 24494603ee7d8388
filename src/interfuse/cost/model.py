"""The cost model. In: bytes, flops and launches of a way to run a region, and a device profile. Out: an Estimate.

time = launches x launch cost + the larger of bytes over bandwidth and flops over rate. Bandwidth falls where too few
rows keep the units busy, and rises where everything fits the last-level cache. The error bar is wide until a device
has been measured: the race decides what the bar cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from interfuse.cost.estimate import Estimate
from interfuse.cost.traffic import kernel_bytes
from interfuse.device.profile import DeviceProfile
from interfuse.ir.index import Expr, at_sizes, combine, product, symbols
from interfuse.ir.node import Node
from interfuse.ir.ops import TABLE
from interfuse.lower.bounds import share
from interfuse.lower.kernel import (
    Kernel,
    Let,
    Load,
    Reduce,
    Role,
    Scan,
    Store,
    Value,
    bounds_of,
    step_along,
    walk,
)

CACHED_GAIN = 3.0
"""How much faster bytes come from the last-level cache than from memory."""

STRIDED_LOSS = 4.0
"""How many times slower an access is whose lanes do not lie side by side."""

ROW_LAUNCH = 0.05
"""What one member's row in a pack's table costs, as a share of a launch."""


def kernel_flops(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Arithmetic of one launch, by the table's cost classes; `sizes` gives the size symbols."""

    def extent(value: Value) -> int:
        return math.prod(at_sizes(kernel.axis(a).extent, sizes) for a in value.axes)

    total = 0
    for s in walk(kernel.body):
        if isinstance(s, Let) and s.op in TABLE:
            total += TABLE[s.op].cost * extent(s.out)
        elif isinstance(s, (Reduce, Scan)):
            total += TABLE[s.op].cost * extent(s.arg)
    return total


def _straight(index: Expr) -> Expr:
    """The index as it is where nothing is at its least or most: past the ends that a padding reflects or repeats."""
    if not index.args:
        return index
    if index.op in ("min", "max"):
        return max((_straight(a) for a in index.args), key=lambda a: len(symbols(a)))
    return combine(index.op, [_straight(a) for a in index.args])


def strided_share(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """The share of accesses whose neighbours along the lanes do not lie side by side; along the best of several axes
    of lanes. What is read within bounds counts as often as it is read.
    """
    extents = {a.name: at_sizes(a.extent, sizes) for a in kernel.axes}
    accesses = [
        (replace(s, index=_straight(s.index)), math.prod(share(b, extents, sizes) for b in bounds_of(s)))
        for s in walk(kernel.body)
        if isinstance(s, (Load, Store))
    ]
    lanes = [a.symbol for a in kernel.axes if a.block > 1] or [kernel.axes[-1].symbol]
    bad = min(sum(w for s, w in accesses if step_along(s, lane) not in (0, 1, -1)) for lane in lanes)
    return bad / max(sum(w for _, w in accesses), 1)


def estimate(bytes_moved: float, flops: float, launches: int, profile: DeviceProfile, share: float = 1.0) -> Estimate:
    """Predicted seconds for `launches` launches that move `bytes_moved` bytes and do `flops` operations in all.

    `share` is the part of the device that the work keeps busy, from 0 to 1.
    """
    bandwidth = profile.bandwidth * (CACHED_GAIN if bytes_moved <= profile.cache / 2 else 1.0)
    memory = bytes_moved / (bandwidth * share)
    compute = flops / (profile.flops_of("f32") * share)
    launch = launches * profile.launch
    return Estimate(
        launch + max(memory, compute),
        0.3 if profile.measured else 0.6,
        (("launch", launch), ("memory", memory), ("compute", compute)),
    )


def kernel_estimate(kernel: Kernel, profile: DeviceProfile, sizes: Mapping[str, int] | None = None) -> Estimate:
    """Predicted seconds of one launch of `kernel`; `sizes` gives the size symbols (else their least)."""
    return _launched((kernel,), profile, sizes or {})


def pack_estimate(
    kernels: Sequence[Kernel], profile: DeviceProfile, sizes: Mapping[str, int] | None = None
) -> Estimate:
    """Predicted seconds of one launch that runs all of `kernels`, writing its table included."""
    one = _launched(kernels, profile, sizes or {})
    table = ROW_LAUNCH * len(kernels) * profile.launch
    return replace(one, seconds=one.seconds + table, parts=(*one.parts, ("table", table)))


def _launched(kernels: Sequence[Kernel], profile: DeviceProfile, sizes: Mapping[str, int]) -> Estimate:
    """One launch of the programs of all `kernels`."""
    axes = [[a for a in k.axes if a.role is Role.GRID] for k in kernels]
    grid = sum(math.prod(-(-at_sizes(a.extent, sizes) // a.block) for a in own) for own in axes)
    share = min(1.0, grid / profile.units)
    # Each kernel's bytes come from where they would come from alone: that is a matter of what ran before.
    parts = [
        estimate(
            kernel_bytes(k, sizes) * (1 + (STRIDED_LOSS - 1) * strided_share(k, sizes)),
            kernel_flops(k, sizes),
            0,
            profile,
            share,
        )
        for k in kernels
    ]
    totals = [("launch", profile.launch)] + [
        (name, sum(dict(p.parts)[name] for p in parts)) for name in ("memory", "compute")
    ]
    return Estimate(profile.launch + sum(p.seconds for p in parts), parts[0].error, tuple(totals))


def linear_flops(linear: Node, sizes: Mapping[str, int] | None = None) -> float:
    """Operations of a `linear` node, a multiplication and an addition each; `sizes` gives the size symbols."""
    return 2.0 * at_sizes(product((*linear.inputs[0].shape, linear.shape[-1])), sizes or {})
