"""The cost model. In: what a way to run a region asks of a device (cost/features.py), the device. Out: an Estimate.

On a GPU, as races measure: one CUDA graph, a second-level cache that holds something else. Four things take time and
overlap; the longest decides, and the nearer the others come the more they add:

    memory       distinct bytes less a share of those that kernels right before have had, those read again that the
                 cache has lost by then, and the rest of sectors that programs far apart use a part of, at the
                 bandwidth of that size
    cache        whole sectors that all programs ask for, at the second-level cache's bandwidth
    arithmetic   plain operations at the device's rate, exp, erf and div at theirs, by the warps that there are; and
                 products of f32 on tensor cores
    waiting      a program waits for its first bytes, and for its other warps at each meeting; as many programs as fit
                 the device wait at once

The numbers in `Fit` are fitted to measured kernels; everything else is counted or the device's own. On a
CPU the larger of memory and arithmetic counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from interfuse.cost.estimate import Estimate
from interfuse.cost.features import Features, features
from interfuse.cost.strides import strided_share
from interfuse.cost.traffic import kernel_bytes
from interfuse.device.profile import DeviceProfile
from interfuse.ir.index import at_sizes, product
from interfuse.ir.node import Node
from interfuse.ir.ops import TABLE
from interfuse.lower.kernel import Kernel, Let, Reduce, Role, Scan, Value, walk

CACHED_GAIN = 3.0
"""How much faster bytes come from a CPU's last-level cache than from memory, where nothing was measured."""

STRIDED_LOSS = 4.0
"""How many times slower an access of a CPU is whose lanes do not lie side by side."""

ROW_LAUNCH = 0.05
"""What one member's row in a pack's table costs, as a share of a launch."""

PRODUCTS = 3
"""Products on tensor cores that make one of f32."""

ALONE = 0.64
"""Share of the rate of a unit's tensor cores that one program reaches with f32."""

MOST_PROGRAMS = 32
"""Programs that a unit holds at once, whatever they need."""


@dataclass(frozen=True)
class Fit:
    """What counting cannot tell, fitted to the memory-bound kernels of bench/memory_cases.py on one H200.

    sharp       how little what overlaps adds: the parts are joined by the norm of this order
    near        share of the near curve that all programs together get of the second-level cache
    slots       share of the device's rate at which plain operations run
    special     how many times the measured exp, erf and div take within a kernel
    step        seconds that a program waits for memory before its first result
    meet        seconds of one meeting of a program's warps
    turn        seconds of one turn of a loop that waits for what it reads
    early       seconds by which a kernel ends earlier that begins while the one before it ends
    table       seconds that a pack waits for its table, which is copied ahead of it
    registers   registers of a thread for each element that it holds; `base` for none
    requests    memory instructions of a warp that one unit takes a second
    first       seconds that a kernel of the library waits for memory before its first result
    slack       how many times the time of its bytes a kernel of the library takes
    single      plain operations that the library takes for an element where it takes one at a time, at the full rate
    across      the same for an element that goes across memory
    walk        seconds of each step of a scan that the library walks one by one
    norm        seconds of a program of the library that normalises a row, and `each` for each element that a thread
                of it takes
    join        seconds that threads of a kernel of the library wait for each other in a reduction
    warps       warps of a unit that keep its arithmetic busy
    split       share of a third of their rate at which tensor cores multiply f32 that is split
    lost        share of the last-level cache from which on what is read again is lost
    warm        share of the bytes that kernels right before have had that the cache saves the way to memory
    """

    sharp: float = 5.24
    near: float = 1.38
    slots: float = 1.18
    special: float = 0.572
    step: float = 0.631e-6
    meet: float = 0.307e-6
    turn: float = 1.04e-6
    early: float = 0.208e-6
    table: float = 2.55e-6
    registers: float = 1.01
    base: float = 32.0
    requests: float = 0.343e9
    first: float = 0.949e-6
    slack: float = 1.19
    single: float = 92.0
    across: float = 246.0
    walk: float = 0.337e-6
    norm: float = 2.13e-6
    each: float = 0.476e-6
    join: float = 1.92e-6
    warps: float = 17.0
    split: float = 1.0
    lost: float = 0.5
    warm: float = 0.46


FITTED = Fit()
ERROR, ERROR_UNMEASURED = 0.4, 0.6
"""Error bars: about nine of ten candidates of cases that the numbers were not fitted to lie within the first on one
H200 (`python -m bench.fit`); on devices that were not measured nobody has looked.
"""


def predicted(f: Features, profile: DeviceProfile, fit: Fit = FITTED) -> Estimate:
    """Seconds of one launch on a GPU."""
    threads = f.warps * profile.lanes
    registers = min(profile.thread_registers, fit.base + fit.registers * f.lanes / threads)
    fitting = min(MOST_PROGRAMS, profile.threads / threads, profile.registers / (registers * threads))
    at_once = profile.units * max(1.0, math.floor(fitting))
    lost = f.again if min(f.programs, at_once) * f.span > fit.lost * profile.cache else 0.0
    lost += f.torn if f.reach > fit.lost * profile.cache else 0.0
    near = fit.warm * f.near if f.near <= fit.lost * profile.cache else 0.0
    memory = _memory(f.moved - near + lost, (f.read - near) / max(1.0, f.moved - near), profile)
    busy = min(f.programs, profile.units)
    cache = max(
        f.through / (fit.near * profile.rate("near", f.through)),
        f.requests / (busy * fit.requests),
    )
    rates, share = dict(profile.rates), min(1.0, f.programs * f.warps / (profile.units * fit.warps))
    special = sum(n / rates[op] for op, n in (("exp", f.exp), ("erf", f.erf), ("div", f.div)) if op in rates)
    arithmetic = (f.slots / (fit.slots * profile.flops_of("f32") / 2) + fit.special * special) / share
    arithmetic += f.split / _split_rate(f, profile, fit)
    waves = max(1.0, f.programs / at_once)
    waiting = waves * (fit.step + fit.meet * f.meets + fit.turn * f.turns)
    parts = (("memory", memory), ("cache", cache), ("arithmetic", arithmetic), ("waiting", waiting))
    work = sum(seconds**fit.sharp for _, seconds in parts) ** (1 / fit.sharp)
    launch = profile.replay or profile.launch
    if f.follows and profile.overlaps:
        work -= min(work, fit.early)
    return Estimate(
        launch + work,
        ERROR if profile.measured else ERROR_UNMEASURED,
        (("launch", launch), *parts),
        launch + _memory(f.moved, f.read / max(1.0, f.moved), profile),
        f.slots + 8 * f.exp + 16 * f.erf + 4 * f.div,
    )


def _split_rate(f: Features, profile: DeviceProfile, fit: Fit) -> float:
    """Operations a second of products of f32, each three of half the rate of f16: the units wait for the one that has
    most programs.
    """
    most = max(1, math.ceil(f.programs / profile.units))
    busy = max(1, f.programs) / (most * profile.units) * min(1.0, ALONE * most)
    return fit.split * profile.flops_of("f16") / 2 / PRODUCTS * busy


def _memory(moved: float, read: float, profile: DeviceProfile) -> float:
    """Seconds of so many bytes, of which a share is `read`."""
    slow, fast = profile.seconds("copy", moved), profile.seconds("read", moved)
    # Half of what a copy moves is read.
    return slow + (fast - slow) * max(0.0, 2 * read - 1)


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


def estimate(
    moved: float,
    flops: float,
    launches: int,
    profile: DeviceProfile,
    *,
    share: float = 1.0,
    slack: float = 1.0,
    reached: float = 1.0,
    dtype: str = "f32",
) -> Estimate:
    """Predicted seconds for `launches` launches that move `moved` bytes and do `flops` operations on `dtype` in all.

    share    the part of the device that the work keeps busy, from 0 to 1
    slack    how many times the bytes' time is needed
    reached  the share of the peak rate of operations that is reached
    """
    fits = profile.kind == "cpu" and not profile.curves and moved * slack <= profile.cache / 2
    memory = profile.seconds("copy", moved * slack) / (CACHED_GAIN if fits else 1.0)
    compute = flops / profile.flops_of(dtype)
    first = profile.replay or profile.launch
    launch = first + (launches - 1) * (profile.gap or first) if launches else 0.0
    return Estimate(
        launch + max(memory, compute / reached) / share,
        ERROR if profile.measured else ERROR_UNMEASURED,
        (("launch", launch), ("memory", memory / share), ("arithmetic", compute / (reached * share))),
        launch + max(memory / slack, compute),
        flops,
    )


def kernel_estimate(
    kernel: Kernel,
    profile: DeviceProfile,
    sizes: Mapping[str, int] | None = None,
    near: frozenset[str] = frozenset(),
) -> Estimate:
    """Predicted seconds of one launch of `kernel`; `sizes` gives the size symbols (else their least), `near` the
    parameters that kernels right before it have read or written.
    """
    if profile.kind != "cpu":
        return predicted(features(kernel, sizes or {}, near), profile)
    return _on_cpu((kernel,), profile, sizes or {})


def pack_estimate(
    kernels: Sequence[Kernel], profile: DeviceProfile, sizes: Mapping[str, int] | None = None
) -> Estimate:
    """Predicted seconds of one launch that runs all of `kernels`, writing its table included."""
    one = _launched(kernels, profile, sizes or {})
    table = table_seconds(len(kernels), profile)
    return replace(one, seconds=one.seconds + table, parts=(*one.parts, ("table", table)))


def table_seconds(rows: int, profile: DeviceProfile, fit: Fit = FITTED) -> float:
    """Seconds that a pack's table of so many rows takes."""
    if profile.kind == "cpu":
        return ROW_LAUNCH * rows * profile.launch
    return fit.table + ROW_LAUNCH * rows * profile.gap


def _launched(kernels: Sequence[Kernel], profile: DeviceProfile, sizes: Mapping[str, int]) -> Estimate:
    """One launch of the programs of all `kernels`."""
    if profile.kind != "cpu":
        known = {id(k): features(k, sizes) for k in {id(k): k for k in kernels}.values()}
        first, *others = (known[id(k)] for k in kernels)
        return predicted(sum(others, first), profile)
    return _on_cpu(kernels, profile, sizes)


def _on_cpu(kernels: Sequence[Kernel], profile: DeviceProfile, sizes: Mapping[str, int]) -> Estimate:
    axes = [[a for a in k.axes if a.role is Role.GRID] for k in kernels]
    grid = sum(math.prod(-(-at_sizes(a.extent, sizes) // a.block) for a in own) for own in axes)
    share = min(1.0, grid / profile.units)
    # Each kernel's bytes come from where they would come from alone: that is a matter of what ran before.
    each = [
        estimate(
            kernel_bytes(k, sizes),
            kernel_flops(k, sizes),
            0,
            profile,
            share=share,
            slack=1 + (STRIDED_LOSS - 1) * strided_share(k, sizes),
        )
        for k in kernels
    ]
    parts = [("launch", profile.launch)]
    parts += [(name, sum(dict(e.parts)[name] for e in each)) for name in ("memory", "arithmetic")]
    return Estimate(
        profile.launch + sum(e.seconds for e in each),
        each[0].error,
        tuple(parts),
        profile.launch + sum(e.floor for e in each),
        sum(e.flops for e in each),
    )


def linear_flops(linear: Node, sizes: Mapping[str, int] | None = None) -> float:
    """Operations of a `linear` node, a multiplication and an addition each; `sizes` gives the size symbols."""
    return 2.0 * at_sizes(product((*linear.inputs[0].shape, linear.shape[-1])), sizes or {})
