"""What a compiled kernel takes of a GPU. In: the assembler's figures, a device profile. Out: fits, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from interfuse.base.store import plain
from interfuse.device.profile import DeviceProfile


@dataclass(frozen=True)
class Resources:
    """One kernel compiled for one target: `registers` a thread (vector ones on AMD), `spills` and `shared` in bytes.

    `spills` are stores and loads of registers to local memory, a thread; `shared` is a program's; `assembly` the PTX or
    AMDGCN text, empty unless it was asked for; `seconds` the time that the compilation took; `hash` names the compiled
    kernel in Triton's cache.
    """

    entry: str
    target: str
    registers: int
    spills: int
    shared: int
    warps: int
    seconds: float = 0.0
    assembly: str = ""
    hash: str = ""

    @staticmethod
    def from_json(value: Any) -> Resources | None:
        """What `asdict` made of one; None where the value is something else."""
        try:
            return plain(Resources, value)
        except ValueError:
            return None


QUARTERS = 4
"""Parts of a unit, each with registers of its own."""

MOST_PROGRAMS, RESERVED = 32, 1 << 10
"""Programs that a unit holds whatever they need, and bytes of shared memory that the device keeps for each."""


def programs_at_once(resources: Resources, profile: DeviceProfile) -> int:
    """How many programs a unit of the device holds at once, by registers, shared memory and threads; 0 = cannot run."""
    threads = resources.warps * profile.lanes
    # Registers are given to whole warps in pieces of eight a thread, by the quarter of a unit that runs the warp.
    registers = -(-max(resources.registers, 1) // 8) * 8 * profile.lanes
    limits = [profile.threads // threads, QUARTERS * (profile.registers // QUARTERS // registers) // resources.warps]
    if resources.shared:
        limits.append(profile.shared_unit // resources.shared)
    return min(limits)


def teams_at_once(resources: Resources, profile: DeviceProfile, team: int) -> int:
    """How many teams of so many programs the device holds at once."""
    shared = profile.shared_unit // (resources.shared + RESERVED)
    return min(programs_at_once(resources, profile), shared, MOST_PROGRAMS) * profile.units // team


def occupancy(resources: Resources, profile: DeviceProfile) -> float:
    """The share of a unit's threads that can be in flight, 0 to 1."""
    return programs_at_once(resources, profile) * resources.warps * profile.lanes / profile.threads


def check(resources: Resources, profile: DeviceProfile, team: int = 0) -> str | None:
    """None where the kernel may run on the device, else the reason: spills, registers, threads, shared memory, or that
    a `team` of its programs is not there at once.
    """
    name = profile.name
    if resources.spills:
        return f"spills {resources.spills} bytes of registers a thread: take a smaller tile or more warps"
    if resources.registers > profile.thread_registers:
        return f"{resources.registers} registers a thread, {name} has {profile.thread_registers}"
    if resources.shared > profile.shared_block:
        return f"{resources.shared} bytes of shared memory a program, {name} has {profile.shared_block}"
    if programs_at_once(resources, profile) < 1:
        return f"{resources.warps} warps of {resources.registers} registers a thread do not fit a unit of {name}"
    if team and profile.kind != "cuda":
        return f"programs that wait for each other run on NVIDIA GPUs alone, not on {name}"
    if team and teams_at_once(resources, profile, team) < 1:
        return f"a team of {team} programs is more than {name} holds at once"
    return None
