"""The table of known devices. In: a name. Out: its DeviceProfile, from the makers' data sheets.

Bandwidth is 0.88 of the data sheet's, the share that a large copy reaches (measured: 4249 of 4800 GB/s on an H200).
Matrix rates are dense, without sparsity. Launch cost is what one eager operator costs the host. What a probe measured
on an H200 stands for the other GPUs too: what a kernel takes beside its bytes is the same, bandwidths go by the data
sheets', the last level of cache and the operators by the rate of f32.
"""

from __future__ import annotations

from dataclasses import replace

from interfuse.base.errors import DeviceError
from interfuse.device.profile import Curve, DeviceProfile

KIB, MIB, T = 1 << 10, 1 << 20, 1e12
REACHED = 0.88


def _rates(flops: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((name, rate * T) for name, rate in flops.items())


def _nvidia(
    name: str,
    arch: str,
    units: int,
    sheet_gb: float,
    cache_mib: int,
    flops: dict[str, float],
    shared: tuple[int, int] = (227, 228),
    threads: int = 2048,
) -> DeviceProfile:
    """An NVIDIA GPU; `shared` is KiB a program and a unit, `flops` in TFLOP/s."""
    return DeviceProfile(
        name,
        "cuda",
        arch,
        units,
        sheet_gb * 1e9 * REACHED,
        cache_mib * MIB,
        _rates(flops),
        launch=5e-6,
        lanes=32,
        unit_cache=shared[1] * KIB,
        shared_block=shared[0] * KIB,
        shared_unit=shared[1] * KIB,
        registers=65536,
        thread_registers=255,
        threads=threads,
    )


_COPY_US = (
    (64, 0.608),
    (256, 0.608),
    (1024, 0.608),
    (4096, 1.38),
    (16384, 3.78),
    (65536, 14.7),
    (262144, 62.5),
    (1048576, 257),
)
_READ_US = (
    (64, 0.608),
    (256, 0.64),
    (1024, 0.832),
    (4096, 1.63),
    (16384, 4.35),
    (65536, 15),
    (262144, 59.1),
    (1048576, 232),
)
_NEAR_US = (
    (64, 0.231),
    (256, 0.351),
    (1024, 0.303),
    (4096, 0.647),
    (16384, 2.42),
)
"""On an H200: KiB that a kernel moves, and the microseconds that it takes beyond those of a graph of nothing."""

_H200_BANDWIDTH, _H200_F32 = 4249e9, 67e12
_RATES = (("exp", 3.28e12), ("erf", 0.825e12), ("div", 1.97e12))


def _scaled(profile: DeviceProfile) -> DeviceProfile:
    """A GPU with what an H200 was measured to do, as far as the data sheets say that it is faster or slower."""
    memory, compute = profile.bandwidth / _H200_BANDWIDTH, profile.flops_of("f32") / _H200_F32
    curves = (
        ("copy", _curve(_COPY_US, memory)),
        ("read", _curve(_READ_US, memory)),
        ("near", _curve(_NEAR_US, compute)),
    )
    rates = tuple((name, rate * compute) for name, rate in _RATES)
    return replace(profile, replay=3.65e-6, gap=1.2e-6, barrier=0.9e-6, rates=rates, curves=curves)


def _curve(points: tuple[tuple[int, float], ...], times: float) -> Curve:
    """Bandwidths where the largest size goes `times` as fast; what a smaller one takes beside its bytes stays."""
    (most, longest) = points[-1]
    each = longest * 1e-6 / most  # seconds a KiB
    return tuple((k * KIB, k * KIB / (max(us * 1e-6 - k * each, 0.0) + k * each / times)) for k, us in points)


_AMPERE = {"f64": 9.7, "f32": 19.5, "f16": 312.0, "bf16": 312.0, "i8": 624.0}
_HOPPER = {"f64": 33.5, "f32": 67.0, "f16": 989.0, "bf16": 989.0, "f8e4m3": 1979.0, "i8": 1979.0}

_GPUS = tuple(
    _scaled(gpu)
    for gpu in (
        _nvidia("A100", "sm_80", 108, 2039, 40, _AMPERE, (163, 164)),
        _nvidia("H100", "sm_90", 132, 3350, 50, _HOPPER),
        replace(_nvidia("H200", "sm_90", 132, 4800, 60, _HOPPER), bandwidth=4249e9, launch=11.9e-6),
        _nvidia(
            "B200",
            "sm_100",
            148,
            8000,
            126,
            {"f64": 37.0, "f32": 74.0, "f16": 2250.0, "bf16": 2250.0, "f8e4m3": 4500.0, "i8": 4500.0},
        ),
        _nvidia(
            "L40S",
            "sm_89",
            142,
            864,
            96,
            {"f64": 1.4, "f32": 91.6, "f16": 362.0, "bf16": 362.0, "f8e4m3": 733.0, "i8": 733.0},
            (99, 100),
            1536,
        ),
        _nvidia(
            "RTX 4090",
            "sm_89",
            128,
            1008,
            72,
            {"f64": 1.3, "f32": 82.6, "f16": 165.2, "bf16": 165.2, "f8e4m3": 330.3, "i8": 660.6},
            (99, 100),
            1536,
        ),
        DeviceProfile(
            "MI300X",
            "hip",
            "gfx942",
            304,
            5300e9 * REACHED,
            256 * MIB,
            _rates({"f64": 81.7, "f32": 163.4, "f16": 1307.4, "bf16": 1307.4, "f8e4m3": 2614.9, "i8": 2614.9}),
            launch=6e-6,
            lanes=64,
            unit_cache=32 * KIB,
            shared_block=64 * KIB,
            shared_unit=64 * KIB,
            registers=131072,
            thread_registers=512,
            threads=2048,
        ),
    )
)


SPLIT = 1.6
"""How many times as fast as vectors tile registers multiply f32 in pieces."""


def cpu(arch: str, lanes: int, cores: int = 8, bf16: int = 1, tiles: bool = False) -> DeviceProfile:
    """A generic server CPU with 32-bit vectors of `lanes` and `cores` cores at 3 GHz, whose products of bf16 are `bf16`
    times as fast as those of f32; with `tiles` it has tile registers.
    """
    rate = 3e9 * cores * lanes * 2 * 2  # two fused multiply-adds a cycle
    return DeviceProfile(
        f"CPU {arch}",
        "cpu",
        arch,
        cores,
        12e9 * cores,
        32 * MIB,
        (("f64", rate / 2), ("f32", rate), ("bf16", bf16 * rate), *((("split", SPLIT * rate),) if tiles else ())),
        launch=3e-6,
        replay=3e-6,
        gap=3e-6,
        lanes=lanes,
        unit_cache=MIB,
    )


TABLE: dict[str, DeviceProfile] = {p.name: p for p in (*_GPUS, cpu("avx512", 16), cpu("avx2", 8), cpu("portable", 4))}
"""Every known device by name."""


def gpus() -> tuple[str, ...]:
    """The names of the known GPUs."""
    return tuple(p.name for p in _GPUS)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def find(name: str) -> DeviceProfile:
    """The device whose name is `name` or stands in it ("NVIDIA H100 80GB HBM3"); DeviceError lists the known ones."""
    wanted = _plain(name)
    # Longest first, so that a name that holds another one wins.
    for known in sorted(TABLE, key=len, reverse=True):
        if _plain(known) in wanted:
            return TABLE[known]
    raise DeviceError(f"there is no device {name!r} in the table; take one of {', '.join(sorted(TABLE))}.")
