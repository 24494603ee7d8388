"""What captured calls cost. In: a call, the sizes, a device. Out: counted Asked, and an Estimate from it.

The library's element-wise kernels run at the speed of their bytes where all operands lie as the result does. Others,
and its reductions, take an element at a time, so many operations each; what goes across memory, as scans and transposed
copies do, takes more, and a scan along an axis that is not the innermost walks it one memory access after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from interfuse.cost.estimate import Estimate
from interfuse.cost.model import FITTED, Fit, estimate, linear_flops
from interfuse.cost.traffic import GATHERS, call_bytes, view
from interfuse.device.profile import DeviceProfile
from interfuse.ir.graph import Call
from interfuse.ir.index import at_sizes
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import REDUCES, SCANS

LINEAR_RATE = 0.7
"""Share of the peak rate that a library matrix product reaches."""


VECTORS = frozenset(("aten.native_layer_norm.default",))
"""Reductions of the library that read whole vectors, where rows are multiples of LANES elements."""

LANES = 8


@dataclass(frozen=True)
class Asked:
    """One captured call: bytes and launches as counted.

    single        elements that are taken one at a time: reduced, or with an operand that lies otherwise than the result
    across        elements that go across memory: scanned, copied from what is transposed, or divided by a sum along an
                  axis that is not the innermost
    norms         rows that are normalised, a program each
    rows          reductions that run side by side where each is needed to go on, as in a softmax; 0 for any number
    steps         steps of a scan along an axis that is not the innermost
    meets         1 where threads wait for each other's results, as in a reduction or a scan
    flops, dtype  operations of a matrix product, and on what
    """

    bytes: int
    launches: int
    single: int = 0
    across: int = 0
    rows: int = 0
    norms: int = 0
    steps: int = 0
    meets: int = 0
    flops: float = 0.0
    dtype: str = "f32"


def asked(call: Call, sizes: Mapping[str, int]) -> Asked:
    """What the call asks of a device; `sizes` gives the size symbols."""
    found = Asked(call_bytes(call, sizes), call.launches)
    outs = [o for o in call.outs if o is not None]
    if call.opaque or not found.bytes:
        return found
    largest = max((at_sizes(o.size, sizes) for o in outs), default=0)
    lies = max((_lies(n, outs[0], sizes) for n in call.operands), default=DENSE) if outs else DENSE
    plain = call.target not in GATHERS and len(outs) == 1
    for node in topological(outs, set(call.operands)):
        if node in call.operands:
            continue
        if node.op == "linear":
            return replace(found, flops=linear_flops(node, sizes), dtype=node.dtype.name)
        if node.op in REDUCES:
            plain = False
            found = _reduced(found, node, call.target, largest, sizes)
        elif node.op in SCANS:
            plain = False
            count, steps = at_sizes(node.size, sizes), _steps(node, sizes)
            found = replace(found, across=max(found.across, count), steps=max(found.steps, steps), meets=1)
    if lies == ACROSS and call.target not in GATHERS:
        found = replace(found, across=max(found.across, largest))  # the library copies it first
    return replace(found, single=largest) if plain and lies == APART else found


def _reduced(found: Asked, node: Node, target: str, largest: int, sizes: Mapping[str, int]) -> Asked:
    """What is asked, with a reduction more."""
    shape = [at_sizes(d, sizes) for d in node.inputs[0].shape]
    count, rows = math.prod(shape), at_sizes(node.size, sizes)
    if largest < count:
        return replace(found, single=max(found.single, count), meets=1)
    # Something of every element goes on, so that each row waits for its own sum.
    innermost = max((k for k, d in enumerate(shape) if d > 1), default=0)
    if innermost not in node.attr("axes"):
        return replace(found, across=max(found.across, count), meets=1)
    vectors = target in VECTORS and shape[-1] % LANES == 0
    single, norms = max(found.single, 0 if vectors else count), rows if target in VECTORS else 0
    return replace(found, single=single, rows=max(found.rows, rows), norms=max(found.norms, norms), meets=1)


DENSE, APART, ACROSS = range(3)


def _lies(operand: Node, out: Node, sizes: Mapping[str, int]) -> int:
    """How an operand lies beside a dense result: alike, otherwise but along it, or across it."""
    shape = [at_sizes(d, sizes) for d in operand.shape]
    if math.prod(shape) <= 1:
        return DENSE  # a number
    if shape != [at_sizes(d, sizes) for d in out.shape]:
        return APART
    strides = [at_sizes(d, sizes) for d in view(operand).strides]
    wide = [(d, s) for d, s in zip(shape, strides, strict=True) if d > 1]
    if wide[-1][1] > 1:
        return ACROSS
    dense = all(outer == inner * d for (_, outer), (d, inner) in pairwise(wide))
    return DENSE if dense and wide[-1][1] == 1 else APART


def _steps(scan: Node, sizes: Mapping[str, int]) -> int:
    axis = scan.attr("axis")
    inner = math.prod(at_sizes(d, sizes) for d in scan.shape[axis + 1 :])
    return at_sizes(scan.shape[axis], sizes) if inner > 1 else 0


def library_estimate(call: Asked, profile: DeviceProfile, fit: Fit = FITTED) -> Estimate:
    """Predicted seconds of one captured call."""
    one = estimate(
        call.bytes,
        call.flops,
        call.launches,
        profile,
        slack=fit.slack,
        reached=LINEAR_RATE,
        dtype=call.dtype,
    )
    if profile.kind == "cpu" or not (call.single or call.across or call.meets):
        return one
    share = min(1.0, call.rows / profile.units) if call.rows else 1.0
    work = (fit.single * call.single / share + fit.across * call.across) / (profile.flops_of("f32") / 2)
    passing = max(work, call.steps * fit.walk, call.norms / profile.units * fit.norm)
    waiting = call.meets * fit.join
    parts = dict(one.parts)
    seconds = parts["launch"] + max(one.seconds - parts["launch"], passing) + waiting
    return replace(one, seconds=seconds, parts=(*one.parts, ("passing", passing), ("waiting", waiting)))
