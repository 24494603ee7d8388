"""The probe: this device measured once. In: its profile, a way to build kernels. Out: the profile, measured.

What is timed are kernels that the compiler generates: copies, reads (row sums) and, on a CPU, writes at rising sizes; a
kernel on one element, alone and many times in a row; sums of exponentials, error functions and quotients of what is in
registers; and on a GPU programs that all meet, again and again. On a GPU everything runs in a CUDA graph with a
second-level cache that holds something else, as races do; what a graph of nothing takes is left out of every rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from interfuse.base.errors import DeviceError
from interfuse.base.store import Store
from interfuse.device.profile import Curve, DeviceProfile
from interfuse.emit.triton import TritonSource
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import Target
from interfuse.lower.work import Work
from interfuse.run import gpu
from interfuse.tune.bench import compare

Build = Callable[[Sequence[Kernel]], Mapping[str, Any]]
Told = Callable[[str, int, int], None]
"""Hears what is measured, and how many of how many steps are done."""

VERSION = 1
"""Rises where what is measured changes: what an older probe found is not read then."""

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
"""Bytes that the timed kernels move in all."""

ROUNDS = 9
TIMES, MEETINGS, APPLIED = 33, 65, 24
"""How often the kernel of one element runs in a row, all programs meet, and an operator is applied to an element."""

TRIES = 4
"""How often a time is taken that stays unsure."""

LEAST = 1e-7
"""Seconds below which a difference of two times is noise."""

ELEMENTS = 1 << 22
"""What the operators are applied to."""

OPERATORS = ("exp", "erf", "div")
AGAIN = 5
"""How often a copy runs while its bytes are cached."""

BARRIER = '''import triton
import triton.language as tl


@triton.jit
def meet(count_ptr, times, PROGRAMS: tl.constexpr):
    """All programs meet `times` times; `count` begins at 0."""
    for k in range(times):
        tl.atomic_add(count_ptr, 1, sem="acq_rel")
        while tl.atomic_add(count_ptr, 0, sem="acquire") < (k + 1) * PROGRAMS:
            pass
'''


def stored(profile: DeviceProfile, store: Store, key: str) -> DeviceProfile:
    """The profile with what an earlier probe of this device found, or as it is."""
    return profile.with_measurement(store.get(_name(key))) or profile


def probe(
    profile: DeviceProfile, target: Target, device: torch.device, build: Build, told: Told | None = None
) -> DeviceProfile:
    """The profile measured: a few seconds. `build` gives launchers by kernel name."""
    tell = told or (lambda what, done, total: None)
    sizes = [n for n in SIZES if n <= _most(device)]
    tell("building the probe's kernels", 0, 3)
    bench = _Bench(device, sizes, build(_kernels(sizes, target, device.type == "cpu")))
    tell("times of single kernels", 1, 3)
    found = bench.singles() if device.type == "cpu" else bench.gpu_singles(profile.units)
    found["rates"] = bench.rates()
    tell("bandwidths", 2, 3)
    curves = bench.cpu_curves() if device.type == "cpu" else bench.gpu_curves(found, profile.cache)
    return replace(profile, **found, curves=curves, bandwidth=dict(curves)["copy"][-1][1], measured=True)


def keep(profile: DeviceProfile, store: Store, key: str) -> None:
    """Keep what the probe found for later processes."""
    store.put(_name(key), profile.measurement())


def _name(key: str) -> str:
    return f"probe {VERSION} of {key}"


def _most(device: torch.device) -> int:
    """The largest buffers to measure: a quarter of what is free on a GPU, 256 MiB on a CPU."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 256 * MIB


# --- Kernels.


def _kernels(sizes: Sequence[int], target: Target, writes: bool) -> list[Kernel]:
    found = [_kernel("null", _input(1), lambda x: b.apply("neg", x), target)]
    for size in sizes:
        found.append(_kernel(f"copy_{size}", _input(size // 8), lambda x: b.apply("neg", x), target))
        found.append(_kernel(f"read_{size}", _input(size // 4096, 1024), lambda x: b.reduce("sum", x, (1,)), target))
        if writes:
            spread = partial(b.expand, shape=(size // 4,))
            found.append(_kernel(f"write_{size}", _input(1), spread, target))
    for op in OPERATORS:
        for count in (1, APPLIED):
            found.append(_kernel(f"{op}_{count}", _input(ELEMENTS), partial(_applied, op, count), target))
    return found


def _input(*shape: int) -> Node:
    return b.placeholder("x", F32, shape)


def _applied(op: str, count: int, x: Node) -> Node:
    """The sum of `op` of so many numbers beside each element."""
    total: Node | None = None
    for k in range(count):
        near = b.apply("add", x, b.like((k + 1) / count, x))
        term = b.apply(op, x, near) if op == "div" else b.apply(op, near)
        total = term if total is None else b.apply("add", total, term)
    assert total is not None
    return total


def _kernel(name: str, x: Node, computed: Callable[[Node], Node], target: Target) -> Kernel:
    out = computed(x)
    layouts = {n: contiguous(n.shape) for n in (x, out)}
    return lower(f"probe_{name}", Work((out,), frozenset((x,)), layouts), target)[0]


# --- Times.


class _Bench:
    """What the kernels `run`, by name, take on the device; `sizes` are those that there are copies and reads of."""

    def __init__(self, device: torch.device, sizes: Sequence[int], run: Mapping[str, Any]) -> None:
        self._device, self._sizes, self._run = device, sizes, run
        least = 4 * (2 * ELEMENTS)
        self._memory = torch.ones(max(*sizes, least) // 4, device=device)
        self._out = torch.ones(max(sizes[-1], least) // 4, device=device)

    def _call(self, name: str, times: int = 1) -> Callable[[], None]:
        """Launch the kernel so many times, from one buffer to another."""
        launch, tensors = self._run[f"probe_{name}"], (self._memory, self._out)

        def call() -> None:
            for _ in range(times):
                launch(tensors)

        return call

    def _seconds(self, **calls: Callable[[], None]) -> dict[str, float]:
        """Medians; on a CPU, which others use too, what varies too much is timed again. DeviceError where it still
        does: figures of a busy machine would mislead every later compile.
        """
        found: dict[str, float] = {}
        for _ in range(TRIES):
            timed = compare({n: c for n, c in calls.items() if n not in found}, self._device, ROUNDS)
            sure = {n: t.median for n, t in timed.items() if not t.unsure or self._device.type != "cpu"}
            found.update(sure)
            if len(found) == len(calls):
                return found
        name, worst = max(timed.items(), key=lambda pair: pair[1].doubt)
        varies = f"what {name} takes varies by {100 * worst.spread:.0f} %"
        waited = f"{name} waited for a processor in {100 * worst.waited:.0f} % of its runs"
        raise DeviceError(
            f"the machine is too busy to be measured: {varies if worst.spread >= worst.waited else waited}; nothing is "
            "kept, so probe again when less runs beside."
        )

    def singles(self) -> dict[str, Any]:
        """What a kernel of one element takes."""
        null = self._seconds(null=self._call("null"))["null"]
        return {"launch": null, "replay": null, "gap": null}

    def gpu_singles(self, units: int) -> dict[str, Any]:
        """The same alone and in a row, for the host and the device; and how long programs, one a unit, take to meet."""
        t = self._seconds(
            one=self._call("null"),
            many=self._call("null", TIMES),
            meet_once=self._meet(units, 1),
            meet=self._meet(units, MEETINGS),
        )
        return {
            "launch": self._launch(),
            "replay": t["one"],
            "gap": max(LEAST, (t["many"] - t["one"]) / (TIMES - 1)),
            "barrier": max(LEAST, (t["meet"] - t["meet_once"]) / (MEETINGS - 1)),
        }

    def _launch(self) -> float:
        """Seconds of the host for one launch of many."""
        call = self._call("null", TIMES)
        best = float("inf")
        for _ in range(ROUNDS):
            torch.cuda.synchronize(self._device)
            began = time.perf_counter()
            call()
            best = min(best, (time.perf_counter() - began) / TIMES)
        torch.cuda.synchronize(self._device)
        return best

    def _meet(self, units: int, times: int) -> Callable[[], None]:
        # Only a cooperative launch promises that all programs are there at once.
        arguments, constants = (("count_ptr", "*i32"), ("times", "i32")), (("PROGRAMS", units),)
        source = TritonSource(BARRIER, "meet", arguments, constants, units, 4, team=units)
        launcher = gpu.load(source, Kernel("meet", (), (), (), symbols=("times",)))
        count = torch.zeros(1, dtype=torch.int32, device=self._device)

        def call() -> None:
            count.zero_()
            launcher((count,), (times,))

        return call

    def rates(self) -> tuple[tuple[str, float], ...]:
        """Elements a second of each operator, from what more of it adds to a kernel."""
        calls = {f"{op}_{count}": self._call(f"{op}_{count}") for op in OPERATORS for count in (1, APPLIED)}
        t = self._seconds(**calls)
        return tuple(
            (op, ELEMENTS * (APPLIED - 1) / max(LEAST, t[f"{op}_{APPLIED}"] - t[f"{op}_1"])) for op in OPERATORS
        )

    def gpu_curves(self, found: Mapping[str, Any], cache: int) -> tuple[tuple[str, Curve], ...]:
        """Copies and reads from memory, and copies that run again and again while their bytes are cached."""
        sizes, near = self._sizes, [n for n in self._sizes if n <= cache]
        kinds = ("copy", "read")
        calls = {f"{kind}_{n}": self._call(f"{kind}_{n}") for kind in kinds for n in sizes}
        again = {f"near_{n}": self._call(f"copy_{n}", AGAIN) for n in near}
        t = self._seconds(**calls, **again)
        curves = [(kind, tuple((n, _rate(n, t[f"{kind}_{n}"] - found["replay"])) for n in sizes)) for kind in kinds]
        warm = {n: (t[f"near_{n}"] - t[f"copy_{n}"]) / (AGAIN - 1) - found["gap"] for n in near}
        return (*curves, ("near", tuple((n, _rate(n, warm[n])) for n in near)))

    def cpu_curves(self) -> tuple[tuple[str, Curve], ...]:
        """Copies, reads and writes on all threads and on one; what fits a cache is there, as when a model runs."""
        threads, curves = torch.get_num_threads(), []
        for count, suffix in ((threads, ""), (1, " 1")):
            torch.set_num_threads(count)
            try:
                null = self.singles()["replay"]
                calls = {f"{k}_{n}": self._call(f"{k}_{n}") for k in ("copy", "read", "write") for n in self._sizes}
                t = self._seconds(**calls)
            finally:
                torch.set_num_threads(threads)
            for kind in ("copy", "read", "write"):
                points = tuple((n, _rate(n, t[f"{kind}_{n}"] - null)) for n in self._sizes)
                curves.append((kind + suffix, points))
        return tuple(curves)


def _rate(moved: int, seconds: float) -> float:
    return moved / max(LEAST, seconds)
