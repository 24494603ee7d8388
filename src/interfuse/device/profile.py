"""The profile of a device. In: figures from the table or the system. Out: a frozen value that planners read.

A profile is a spec: nothing here looks at a device, so plans can be made for hardware that is absent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProfile:
    """One GPU or CPU.

    kind        "cpu", "cuda" or "hip"; `arch` what the compiler calls it: "sm_90", "gfx942", "avx512"
    units       streaming multiprocessors, compute units, or the cores that this process may use
    bandwidth   bytes a second that copying through device memory reaches, read and written together
    cache       bytes of the last level of cache; `unit_cache` bytes of the private one next to a unit
    flops       operations a second by element type: ((name, rate), ...); matrix units where the type has them
    launch      seconds that one kernel launch costs the host
    lanes       threads in a warp, or 32-bit vector lanes of a CPU
    shared_block, shared_unit     bytes of shared memory that one program, one unit may take
    registers, thread_registers   32-bit registers of a unit, and the most for one thread
    threads     threads in flight on a unit
    measured    True where bandwidth and launch come from a probe of this very device
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
    measured: bool = False

    def flops_of(self, dtype: str) -> float:
        """Operations a second on the element type named (f32, bf16, ...); a type without an entry has f32's rate."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["f32"])

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
        lines.append("  bandwidth and launch cost measured here" if self.measured else "  from the table, not measured")
        return "\n".join(lines)
