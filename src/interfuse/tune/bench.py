"""Fair timing of several ways to do one thing. In: functions by label. Out: seconds each, with an interval.

The contenders take turns, so that what disturbs the machine disturbs all of them; a first lap warms caches, workspaces
and just-in-time compilers and is not counted. On CUDA each contender is replayed as a CUDA graph where it can be
captured, and the second-level cache is filled with other data by reading, not by writing: dirty lines would be charged
to whoever comes next. On a CPU a sample tells whether threads waited for a processor, which other programs had: races
leave such samples out.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], Any]

STEADY, MOST_ROUNDS = 0.1, 60
"""Rounds go on, while there is time and no more than this many, until every spread is below STEADY."""

BURST_SECONDS = 2e-4
"""Short work is run again within one sample until about this much time has passed."""

CALM = 0.9
"""The share of a sample's time that its thread must have run for, lest it waited for a processor."""

UNSURE = 0.5
"""Doubt of a Timing from which on the machine was too busy for it to be kept."""

ENOUGH = 5
"""Samples without waiting that stand for all in a race."""

BUSY = "the machine was too busy to trust these times, which are not kept"

FLUSH_BYTES = 512 << 20
"""Bytes read between runs on CUDA: several times any second-level cache."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median with its 95% interval, from `runs` runs, in the share `waited` of which other
    programs had the processor.
    """

    median: float
    low: float
    high: float
    runs: int
    waited: float = 0.0

    @property
    def spread(self) -> float:
        """Width of the interval as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @property
    def doubt(self) -> float:
        """How far the machine was too busy for the time to be trusted: the larger of `spread` and `waited`."""
        return max(self.spread, self.waited)

    @property
    def unsure(self) -> bool:
        """True where the doubt is too large for the time to be kept."""
        return self.doubt >= UNSURE

    def in_us(self) -> dict[str, float]:
        """The median and its interval in microseconds, as the record holds them."""
        return {"median_us": self.median * 1e6, "low_us": self.low * 1e6, "high_us": self.high * 1e6}

    def mixed(self, other: Timing) -> Timing:
        """Half of both."""
        halves = ((getattr(self, n) + getattr(other, n)) / 2 for n in ("median", "low", "high"))
        median, low, high = halves
        return Timing(median, low, high, min(self.runs, other.runs), max(self.waited, other.waited))

    def overlaps(self, other: Timing) -> bool:
        """True where the two intervals share a point, so that neither is known to be faster."""
        return self.low <= other.high and other.low <= self.high


def summary(seconds: Sequence[float]) -> Timing:
    """The median of at least one sample with its 95% interval by order statistics (the range, below six samples)."""
    ordered = sorted(seconds)
    n = len(ordered)
    half = 0.98 * math.sqrt(n)  # 1.96 standard deviations of Binomial(n, 1/2)
    low = max(0, math.floor(n / 2 - half))
    high = min(n - 1, math.ceil(n / 2 + half))
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    return Timing(middle, ordered[low], ordered[high], n)


def compare(
    contenders: Mapping[str, Work],
    device: torch.device | str = "cpu",
    rounds: int = 15,
    seconds: float | None = None,
    told: Callable[[int, int], None] | None = None,
    replay: bool = True,
    cold: bool = True,
) -> dict[str, Timing]:
    """Each contender's Timing from `rounds` interleaved rounds; on CUDA as a graph, or with `replay=False` as calls;
    there the second-level cache holds other data before each, or with `cold=False` what the contender left there.

    With `seconds` given, fewer rounds (but at least three) once they are spent, and more, up to MOST_ROUNDS, while
    there is time, a Timing is not steady and the machine is not busy all along; samples whose thread waited for a
    processor are then left out where ENOUGH others are. What a contender returns is dropped before the next one runs.
    `told` hears how many of how many rounds are done.
    """
    device = torch.device(device)
    began = time.perf_counter()
    timer = _cuda_timer(contenders, device, replay, cold) if device.type == "cuda" else _host_timer(contenders)
    samples: dict[str, list[tuple[float, bool]]] = {label: [] for label in contenders}
    labels = list(contenders)
    most = rounds if seconds is None else max(rounds, MOST_ROUNDS)
    for number in range(most):
        if told is not None:
            told(number, most)
        # The order turns from round to round, so that nobody always runs after the same neighbour.
        for label in labels[number % len(labels) :] + labels[: number % len(labels)]:
            samples[label].append(timer(label))
        if seconds is None or number < 2:
            continue
        if time.perf_counter() - began > seconds:
            break
        if number + 1 >= rounds and (_all_busy(samples) or all(_calmly(s).doubt < STEADY for s in samples.values())):
            break
    return {label: _all(found) if seconds is None else _calmly(found) for label, found in samples.items()}


def _all(samples: Sequence[tuple[float, bool]]) -> Timing:
    return replace(summary([s for s, _ in samples]), waited=sum(waited for _, waited in samples) / len(samples))


def _all_busy(samples: Mapping[str, Sequence[tuple[float, bool]]]) -> bool:
    """True where most samples of each contender waited: more of them would tell no more."""
    return all(_all(found).waited > UNSURE for found in samples.values())


def _calmly(samples: Sequence[tuple[float, bool]]) -> Timing:
    """The Timing of those samples that did not wait, or of all where these are not ENOUGH."""
    calm = [s for s in samples if not s[1]]
    return _all(calm if len(calm) >= ENOUGH else samples)


def _host_timer(contenders: Mapping[str, Work]) -> Callable[[str], tuple[float, bool]]:
    """Seconds of one run by the clock: the median of a burst of runs, so that one stall within it does not count; and
    whether the burst waited for a processor: some thread of this process did, as Linux tells. Where it does not, the
    caller's thread was not running: that may have been asleep as well, until its helpers were done.
    """

    def once(work: Work) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    bursts = {}
    for label, work in contenders.items():
        quickest = min(once(work) for _ in range(3))
        bursts[label] = max(1, min(25, int(BURST_SECONDS / max(quickest, 1e-7))))
    queues = _queues()

    def lost(began: float) -> float:
        return _told(queues)[1] / 1e9 if queues else time.perf_counter() - began - time.thread_time()

    def timer(label: str) -> tuple[float, bool]:
        began = time.perf_counter()
        before = lost(began)
        seconds = statistics.median(once(contenders[label]) for _ in range(bursts[label]))
        return seconds, lost(began) - before > (1 - CALM) * (time.perf_counter() - began)

    return timer


def _queues() -> list[FileIO]:
    """For each thread of this process, what tells how long it has waited for a processor; none where Linux does not."""
    found = []
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            found.append(path.open("rb", buffering=0))
    return found if _told(found)[0] else []


def _told(queues: Sequence[FileIO]) -> tuple[int, int]:
    """Nanoseconds that threads have run and, while they could have, waited for a processor, all of them together."""
    ran = waited = 0
    for f in queues:
        with contextlib.suppress(OSError):  # the thread is no more
            f.seek(0)
            first, second, *_ = map(int, f.read().split())
            ran, waited = ran + first, waited + second
    return ran, waited


def _cuda_timer(
    contenders: Mapping[str, Work], device: torch.device, replay: bool, cold: bool
) -> Callable[[str], tuple[float, bool]]:
    """Seconds of one run by events on the current stream, after a read of FLUSH_BYTES or after a run."""
    with torch.cuda.device(device):
        ready = {label: _replayed(work) if replay else work for label, work in contenders.items()}
        filler = torch.ones(FLUSH_BYTES // 4, device=device)  # floats: the sum of integers writes them again, wider
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timer(label: str) -> tuple[float, bool]:
        with torch.cuda.device(device):
            if cold:
                filler.sum()
            else:
                ready[label]()
            start.record()
            ready[label]()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3, False

    return timer


def _replayed(work: Work) -> Work:
    """`work` captured as a CUDA graph, or as it is where capture fails; warmed up either way."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay
