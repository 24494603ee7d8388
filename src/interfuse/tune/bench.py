"""Fair timing of several ways to do one thing. In: functions by label. Out: seconds each, with an interval.

The contenders take turns, so that what disturbs the machine disturbs all of them; a first lap warms caches, workspaces
and just-in-time compilers and is not counted. On CUDA each contender is replayed as a CUDA graph where it can be
captured, and the second-level cache is filled with other data by reading, not by writing: dirty lines would be charged
to whoever comes next.
"""
from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], Any]

FLUSH_BYTES = 512 << 20
"""Bytes read between runs on CUDA: several times any second-level cache."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median with its 95% interval, from `runs` runs."""

    median: float
    low: float
    high: float
    runs: int

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


def compare(contenders: Mapping[str, Work], device: torch.device | str = "cpu", rounds: int = 15,
            seconds: float | None = None) -> dict[str, Timing]:
    """Each contender's Timing from `rounds` interleaved rounds, fewer (but at least three) once `seconds` are spent.

    What a contender returns is dropped before the next one runs.
    """
    device = torch.device(device)
    began = time.perf_counter()
    timer = _cuda_timer(contenders, device) if device.type == "cuda" else _host_timer(contenders)
    samples: dict[str, list[float]] = {label: [] for label in contenders}
    labels = list(contenders)
    for number in range(rounds):
        # The order turns from round to round, so that nobody always runs after the same neighbour.
        for label in labels[number % len(labels):] + labels[:number % len(labels)]:
            samples[label].append(timer(label))
        if seconds is not None and number >= 2 and time.perf_counter() - began > seconds:
            break
    return {label: summary(found) for label, found in samples.items()}


def _host_timer(contenders: Mapping[str, Work]) -> Callable[[str], float]:
    """Seconds of one run by the clock; very short work is repeated so that the clock's steps do not matter."""
    repeats = {}
    for label, work in contenders.items():
        work()
        began = time.perf_counter()
        work()
        repeats[label] = max(1, min(100, int(2e-4 / max(time.perf_counter() - began, 1e-7))))

    def timer(label: str) -> float:
        work, count = contenders[label], repeats[label]
        began = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - began) / count
    return timer


def _cuda_timer(contenders: Mapping[str, Work], device: torch.device) -> Callable[[str], float]:
    """Seconds of one run by events on the current stream, after a read of FLUSH_BYTES."""
    with torch.cuda.device(device):
        ready = {label: _replayed(work) for label, work in contenders.items()}
        filler = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timer(label: str) -> float:
        with torch.cuda.device(device):
            filler.sum()
            start.record()
            ready[label]()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3
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
