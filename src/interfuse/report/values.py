"""What a ledger holds. In: nothing. Out: frozen plain values, each a figure with its meaning and unit.

None always means "not measured" (or not recorded), never zero. These field names are the ledger's JSON form, described
in docs/ledger.md: changing one changes the schema.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
"""Version of the JSON form; it rises when a field changes its meaning or goes away."""

FREE_VIEWS = "free: they launch nothing"
"""The reason under which views are listed as not fused."""


@dataclass(frozen=True)
class Change:
    """A figure before (as eager runs) and after (as Interfuse runs); either may be None."""

    before: float | None = None
    after: float | None = None

    @property
    def ratio(self) -> float | None:
        """after / before; None where one is missing or before is 0."""
        return None if self.before is None or self.after is None or self.before == 0 else self.after / self.before


@dataclass(frozen=True)
class Model:
    """What was compiled, where: `batch` and `dtype` as people say them, `plan` the plan's short key.

    `cached` says that every kernel was there already, built before and kept in the cache folder. `bandwidth` (bytes a
    second) and `peak_flops` (f32, a second) are what predictions take the device to reach, and `profiled` says
    whether they were measured on it.
    """

    name: str = "model"
    device: str = ""
    device_name: str = ""
    dtype: str = ""
    torch: str = ""
    batch: str = ""
    plan: str = ""
    cached: bool = False
    bandwidth: float | None = None
    peak_flops: float | None = None
    profiled: bool = False


@dataclass(frozen=True)
class Measure:
    """One contender measured as a whole: milliseconds a call, launches seen by the profiler, peak bytes, rms error.

    In the share `waited` of its runs other programs had the processor. The error is not judged where it draws other
    `random` numbers than the float64 run.
    """

    name: str
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    runs: int | None = None
    launches: int | None = None
    peak_bytes: int | None = None
    error_rms: float | None = None
    random: bool = False
    waited: float = 0.0

    @property
    def spread(self) -> float:
        """Half the 95% interval as a share of the median; 0 where nothing was timed."""
        return ((self.high_ms or 0) - (self.low_ms or 0)) / (2 * self.median_ms) if self.median_ms else 0.0

    @property
    def busy(self) -> bool:
        """True where the machine was too busy for the time to say much."""
        return self.spread > 1 or self.waited >= 0.5


@dataclass(frozen=True)
class Candidate:
    """One way to run a region: counted bytes, operations and launches, predicted microseconds, what the race measured.

    `parts` are the microseconds that the cost model gives to each thing that takes time, `ceiling_us` what moving the
    bytes alone would take, `kernels` the generated kernels that it launches. `factor` is what races before this
    one made of the prediction. `dram_*` is what hardware counters
    say that it read from and wrote to device memory, and the microseconds that this takes at the device's bandwidth.
    """

    label: str
    family: str
    launches: int
    bytes: int
    predicted_us: float | None = None
    error_bar: float | None = None
    factor: float = 1.0
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    error_rms: float | None = None
    error_share: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    ceiling_us: float | None = None
    flops: float | None = None
    kernels: tuple[str, ...] = ()
    dram_read: int | None = None
    dram_written: int | None = None
    dram_us: float | None = None

    @property
    def dram_bytes(self) -> int | None:
        """Bytes that crossed device memory, by hardware counters."""
        return None if self.dram_read is None or self.dram_written is None else self.dram_read + self.dram_written

    @property
    def missed(self) -> bool:
        """True where the measured time lies beyond the prediction's error bar."""
        if None in (self.predicted_us, self.median_us, self.error_bar) or not self.predicted_us:
            return False
        return abs(self.median_us / self.predicted_us - 1) > self.error_bar  # type: ignore[operator]

    @property
    def bound(self) -> str:
        """The part that takes the longest; "" where there are none."""
        return max(self.parts, key=lambda part: part[1])[0] if self.parts else ""


@dataclass(frozen=True)
class Rejected:
    """A merge that was considered and turned down: with what, and why."""

    merge: str
    reason: str


@dataclass(frozen=True)
class Region:
    """One region: its captured calls and model source lines, every candidate, the choice and the reason for it.

    `before_*` is what eager runs for its calls; `fallback` the error that sent it to the library, or ""; `busy` says
    that its race was on a machine too busy to trust it.
    """

    subject: str
    name: str
    calls: tuple[int, ...]
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    before_launches: int
    before_bytes: int
    candidates: tuple[Candidate, ...]
    chosen: int
    reason: str
    rejected: tuple[Rejected, ...] = ()
    fallback: str = ""
    busy: bool = False

    @property
    def choice(self) -> Candidate:
        """The candidate that runs."""
        return self.candidates[self.chosen]

    @property
    def library(self) -> Candidate:
        """The captured calls as they are; the choice where no other candidate was recorded."""
        return next((c for c in self.candidates if c.family == "library"), self.choice)

    @property
    def ceiling_us(self) -> float | None:
        """Microseconds below which no candidate could come: one launch that moves the fewest bytes, and computes."""
        return min((c.ceiling_us for c in self.candidates if c.ceiling_us is not None), default=None)

    @property
    def decision(self) -> str:
        """fused; library (others were possible); kept (nothing else was possible); fell back (a kernel failed)."""
        if self.fallback:
            return "fell back"
        if self.choice.family != "library":
            return "fused"
        return "library" if len(self.candidates) > 1 else "kept"


@dataclass(frozen=True)
class Row:
    """Regions of one name and one decision together: every figure but `error_ratio` is the sum over `times` regions.

    `measured_us` is the race's: the library's time, then the chosen candidate's. `error_ratio` is the worst region's
    error against float64 over the library's; `reason` is the first region's. `ceiling_us` is what moving the bytes
    alone would take, `dram_bytes` what hardware counters say.
    """

    name: str
    times: int
    launches: Change
    bytes: Change
    predicted_us: float | None
    measured_us: Change
    error_ratio: float | None
    decision: str
    label: str
    reason: str
    ceiling_us: float | None = None
    dram_bytes: Change = Change()

    @property
    def of_ceiling(self) -> float | None:
        """The ceiling over the measured time: 1 is as fast as the bytes can move."""
        return Change(self.measured_us.after, self.ceiling_us).ratio


@dataclass(frozen=True)
class Totals:
    """The whole model: counted launches and bytes, launches that the profiler saw, times, rms error, peak memory.

    `dram_bytes` is what hardware counters say of the regions that they were read for.
    """

    launches: Change
    profiled_launches: Change
    bytes: Change
    predicted_us: Change
    time_ms: Change
    error_rms: Change
    peak_bytes: Change
    dram_bytes: Change = Change()


@dataclass(frozen=True)
class Unfused:
    """Captured calls that stay library calls for one reason: how many of each target."""

    reason: str
    targets: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Kernel:
    """One generated kernel: its source file, cache key, what building it took and what the assembler reports.

    `occupancy` is the share of a unit's threads that can be in flight.
    """

    name: str
    family: str = ""
    source_path: str = ""
    key: str = ""
    cached: bool = False
    build_seconds: float | None = None
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    warps: int | None = None
    occupancy: float | None = None


@dataclass(frozen=True)
class Stage:
    """Seconds that one stage of the compile took, over all graphs of the model."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Account:
    """Everything that the records of one model say; `measures` are the contenders, eager first."""

    model: Model
    totals: Totals
    rows: tuple[Row, ...]
    unfused: tuple[Unfused, ...]
    fallbacks: tuple[str, ...]
    warnings: tuple[str, ...]
    measures: tuple[Measure, ...]
    regions: tuple[Region, ...]
    kernels: tuple[Kernel, ...]
    stages: tuple[Stage, ...]
