"""The profile of a device. In: figures from the table or the system. Out: a frozen value that planners read.

A profile is a spec: nothing here looks at a device, so plans can be made for hardware that is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

Curve = tuple[tuple[float, float], ...]
"""(bytes, bytes a second) at rising sizes."""

Named = tuple[tuple[str, float], ...]
"""Figures by name."""

MEASURED = ("bandwidth", "launch", "replay", "gap", "barrier", "rates", "curves")
"""What a probe measures; everything else is known."""

SPLITTING = 80
"""The first of NVIDIA's architectures whose tensor cores multiply numbers with the exponents of f32."""

OVERLAPPING = 90
"""The first of NVIDIA's architectures that can begin a kernel while the one before it ends."""

SHARING = range(90, 120)
"""Those on which four warps share a multiplication of tensor cores, which read both operands in shared memory."""


@dataclass(frozen=True)
class DeviceProfile:
    """One GPU or CPU.

    kind        "cpu", "cuda" or "hip"; `arch` what the compiler calls it: "sm_90", "gfx942", "avx512"
    units       streaming multiprocessors, compute units, or the cores that this process may use
    bandwidth   bytes a second that copying through device memory reaches, read and written together
    cache       bytes of the last level of cache; `unit_cache` bytes of the private one next to a unit
    flops       operations a second by element type: ((name, rate), ...); matrix units where the type has them
    launch      seconds that one kernel launch costs the host
    replay      seconds that a CUDA graph of one kernel takes beside the kernel's work; on a CPU those of a call
    gap         seconds from the end of one kernel of a CUDA graph to the start of the next
    barrier     seconds in which all programs of a kernel meet
    rates       elements a second of exp, erf and div on f32, out of registers
    curves      bandwidth by the bytes that a kernel moves in all, what `replay` says left out: "copy" and "read" from
                memory, "near" a copy within the last level of cache; on a CPU "write" too, and each also on one core
                ("copy 1")
    lanes       threads in a warp, or 32-bit vector lanes of a CPU
    shared_block, shared_unit     bytes of shared memory that one program, one unit may take
    registers, thread_registers   32-bit registers of a unit, and the most for one thread
    threads     threads in flight on a unit
    corrections what predictions of a schedule family are multiplied by, where races have shown them to be off
    measured    True where MEASURED come from a probe of this very device
    """

    name: str
    kind: str
    arch: str
    units: int
    bandwidth: float
    cache: int
    flops: tuple[tuple[str, float], ...]
    launch: float
    lanes: int
    unit_cache: int = 0
    shared_block: int = 0
    shared_unit: int = 0
    registers: int = 0
    thread_registers: int = 0
    threads: int = 1
    replay: float = 0.0
    gap: float = 0.0
    barrier: float = 0.0
    rates: Named = ()
    curves: tuple[tuple[str, Curve], ...] = ()
    corrections: Named = ()
    measured: bool = False

    def flops_of(self, dtype: str) -> float:
        """Operations a second on the element type named (f32, bf16, ...); a type without an entry has f32's rate."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["f32"])

    def rate(self, curve: str, moved: float) -> float:
        """Bytes a second at which a kernel moves `moved` bytes in all, by the curve named; without one, bandwidth.

        Between two sizes it is a power of the size. Below the first one the time is that of the first: latency.
        """
        points = dict(self.curves).get(curve, ())
        if not points:
            return self.bandwidth
        if moved <= points[0][0]:
            return points[0][1] * max(moved, 1.0) / points[0][0]
        for (low, slow), (high, fast) in pairwise(points):
            if moved < high:
                share = math.log(moved / low) / math.log(high / low)
                return slow * (fast / slow) ** share
        return points[-1][1]

    def seconds(self, curve: str, moved: float) -> float:
        """Seconds in which a kernel moves `moved` bytes, by the curve named."""
        return moved / self.rate(curve, moved) if moved > 0 else 0.0

    def correction(self, family: str) -> float:
        """What predicted seconds of the family are multiplied by."""
        return dict(self.corrections).get(family, 1.0)

    def without(self, dtype: str) -> DeviceProfile:
        """The device without a rate of its own for the element type."""
        return replace(self, flops=tuple(f for f in self.flops if f[0] != dtype))

    def scaled(self, share: float) -> DeviceProfile:
        """A device with `share` times the bandwidth and the arithmetic."""
        return replace(
            self,
            bandwidth=self.bandwidth * share,
            flops=tuple((n, rate * share) for n, rate in self.flops),
            rates=tuple((n, rate * share) for n, rate in self.rates),
            curves=tuple((n, tuple((b, rate * share) for b, rate in points)) for n, points in self.curves),
        )

    def measurement(self) -> dict[str, Any]:
        """What was measured, as JSON values."""
        return {name: getattr(self, name) for name in MEASURED}

    def with_measurement(self, found: Any) -> DeviceProfile | None:
        """The profile with what `measurement` gave; None where `found` is something else."""
        kinds: Mapping[str, Any] = {f.name: f.type for f in fields(self)}
        try:
            numbers: dict[str, Any] = {n: float(found[n]) for n in MEASURED if kinds[n] == "float"}
            rates = tuple((str(n), float(v)) for n, v in found["rates"])
            curves = tuple((str(n), tuple((float(b), float(r)) for b, r in points)) for n, points in found["curves"])
        except (KeyError, TypeError, ValueError):
            return None
        return replace(self, **numbers, rates=rates, curves=curves, measured=True)

    @property
    def overlaps(self) -> bool:
        """True where a kernel may begin while the one before it ends."""
        return self.kind == "cuda" and int(self.arch.removeprefix("sm_")) >= OVERLAPPING

    @property
    def dot(self) -> int:
        """Rows of their first operand that the tensor cores of a GPU take at once: four warps of some share theirs."""
        return 64 if self.kind == "cuda" and int(self.arch.removeprefix("sm_")) in SHARING else 16

    @property
    def splits(self) -> bool:
        """True where tensor cores multiply f32 split in two numbers, or a CPU's tile registers f32 split in three."""
        if self.kind == "cpu":
            return "split" in dict(self.flops)
        return self.kind == "cuda" and int(self.arch.removeprefix("sm_")) >= SPLITTING

    @property
    def ring(self) -> int:
        """Bytes of shared memory that warps of a program can fill while others of it compute."""
        return self.shared_block if self.overlaps else 0

    @property
    def target(self) -> str:
        """How the off-line compiler names it: "cuda:90", "hip:gfx942"; the architecture itself for a CPU."""
        if self.kind == "cuda":
            return f"cuda:{self.arch.removeprefix('sm_')}"
        return f"hip:{self.arch}" if self.kind == "hip" else self.arch

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in self.flops)
        lines = [
            f"{self.name} ({self.kind}, {self.arch}): {self.units} units, {self.bandwidth / 1e9:.0f} GB/s, "
            f"cache {self.cache / 2**20:.4g} MiB, launch {self.launch * 1e6:.3g} us",
            f"  TFLOP/s: {rates}",
        ]
        if self.kind != "cpu":
            lines.append(
                f"  a unit: {self.threads} threads in warps of {self.lanes}, {self.registers} registers "
                f"({self.thread_registers} a thread), {self.shared_unit} bytes of shared memory "
                f"({self.shared_block} a program)"
            )
        else:
            lines.append(f"  a core: {self.lanes} lanes of 32 bits, private cache {self.unit_cache / 2**10:.4g} KiB")
        times = {"graph of one kernel": self.replay, "gap in a graph": self.gap, "barrier": self.barrier}
        times = {} if self.kind == "cpu" else times
        if known := [f"{name} {seconds * 1e6:.3g} us" for name, seconds in times.items() if seconds]:
            lines.append("  " + ", ".join(known))
        if self.rates:
            lines.append("  G elements/s: " + ", ".join(f"{n} {rate / 1e9:.4g}" for n, rate in self.rates))
        lines += [
            f"  {name}, GB/s: " + ", ".join(f"{_size(moved)} {rate / 1e9:.4g}" for moved, rate in points)
            for name, points in self.curves
        ]
        if self.corrections:
            by_family = ", ".join(f"{family} x{by:.2f}" for family, by in self.corrections)
            lines.append(f"  predictions corrected by races: {by_family}")
        lines.append("  measured here" if self.measured else "  from the table, not measured")
        return "\n".join(lines)


def _size(moved: float) -> str:
    """Bytes as people write them: 64 KiB, 1 GiB."""
    power = min(3, int(math.log2(max(moved, 1))) // 10)
    return f"{moved / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
