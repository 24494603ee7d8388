"""Timing. In: samples, contenders that note their turns. Out: medians with intervals, fair turns."""

from __future__ import annotations

import io
import itertools
import time

import pytest
import torch

from interfuse.tune import bench
from interfuse.tune.bench import Timing, compare, summary


def test_the_interval_stands_around_the_median() -> None:
    t = summary([float(k) for k in range(100)])
    assert t == Timing(49.5, 40.0, 60.0, 100)
    assert summary([3.0]) == Timing(3.0, 3.0, 3.0, 1)
    assert summary([3.0, 1.0, 2.0]) == Timing(2.0, 1.0, 3.0, 3)


def test_overlap() -> None:
    a = Timing(2.0, 1.0, 3.0, 9)
    assert a.overlaps(Timing(4.0, 3.0, 5.0, 9))
    assert Timing(4.0, 3.0, 5.0, 9).overlaps(a)
    assert not a.overlaps(Timing(4.0, 3.5, 5.0, 9))


def test_contenders_take_turns_and_the_first_one_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def timer(label: str) -> tuple[float, bool]:
        turns.append(label)
        return float(len(turns)), False

    monkeypatch.setattr(bench, "_host_timer", lambda contenders: timer)
    found = compare(dict.fromkeys("abc", lambda: None), rounds=4)
    assert "".join(turns) == "abcbcacababc"
    assert found["a"] == Timing(7.0, 1.0, 10.0, 4)


def test_a_stall_within_a_burst_of_short_work_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, runs = [0.0], [0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def work() -> None:
        runs[0] += 1
        now[0] += 1.0 if runs[0] % 5 == 0 else 2**-16

    assert compare({"a": work}, rounds=3)["a"].median == 2**-16
    assert runs[0] == 3 + 3 * 13


def test_rounds_go_on_while_times_are_unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    for values, runs in (([1.0], 5), ([1.0, 2.0], bench.MOST_ROUNDS)):
        turn = itertools.cycle(values)
        monkeypatch.setattr(bench, "_host_timer", lambda contenders, turn=turn: lambda label: (next(turn), False))
        assert compare({"a": print}, rounds=5, seconds=100.0)["a"].runs == runs
        assert compare({"a": print}, rounds=5)["a"].runs == 5


def test_a_spent_budget_ends_the_rounds_after_three() -> None:
    found = compare({"a": lambda: None, "b": lambda: None}, rounds=50, seconds=0.0)
    assert {t.runs for t in found.values()} == {3}


def test_a_race_leaves_out_samples_that_waited_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = itertools.cycle([(9.0, True), (1.0, False), (9.0, True)])
    monkeypatch.setattr(bench, "_host_timer", lambda contenders: lambda label: next(turn))
    assert compare({"a": print}, rounds=15, seconds=100.0)["a"] == Timing(1.0, 1.0, 1.0, 5)
    whole = compare({"a": print}, rounds=15)["a"]
    assert (whole.median, whole.runs, whole.waited) == (9.0, 15, 10 / 15)
    turn = itertools.cycle([(9.0, True), (1.0, False), (9.0, True)])
    few = compare({"a": print}, rounds=50, seconds=0.0)["a"]
    assert (few.runs, few.waited) == (3, 2 / 3)
    assert few.unsure and few.doubt == few.spread == 8 / 9


def test_where_all_samples_waited_the_race_ends_and_the_time_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_host_timer", lambda contenders: lambda label: (1.0, True))
    found = compare({"a": print}, rounds=5, seconds=100.0)["a"]
    assert (found.runs, found.waited, found.spread, found.doubt) == (5, 1.0, 0.0, 1.0)


def test_waiting_is_what_the_system_says_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is asleep until its helpers are done does not wait for a processor."""
    clock, queue = {"now": 0.0}, {"ns": 0}

    class Queue(io.BytesIO):
        def read(self, *_: object) -> bytes:
            return b"7 %d 1" % queue["ns"]

    monkeypatch.setattr(bench, "_queues", lambda: [Queue()])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(bench.time, "thread_time", lambda: 0.0)

    def work(share: float) -> None:
        clock["now"] += 0.01
        queue["ns"] += int(0.01e9 * share)

    found = compare({"asleep": lambda: work(0.0), "little": lambda: work(0.05), "waits": lambda: work(0.2)}, rounds=4)
    assert {label: t.waited for label, t in found.items()} == {"asleep": 0.0, "little": 0.0, "waits": 1.0}


def test_a_real_sleep_is_not_a_wait() -> None:
    if not bench._queues():
        pytest.skip("this system does not tell who waits for a processor")
    found = compare({"asleep": lambda: time.sleep(0.003)}, rounds=9)
    assert found["asleep"].waited < 1.0  # other tests run beside


def test_a_thread_that_does_not_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_queues", list)
    clocks = {"perf_counter": 0.0, "thread_time": 0.0}
    for name in clocks:
        monkeypatch.setattr(bench.time, name, lambda name=name: clocks[name])

    def work(share: float) -> None:
        clocks["perf_counter"] += 0.01
        clocks["thread_time"] += 0.01 * share

    found = compare({"runs": lambda: work(0.95), "waits": lambda: work(0.85)}, rounds=4)
    assert {label: t.waited for label, t in found.items()} == {"runs": 0.0, "waits": 1.0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_cuda_work_is_replayed_and_what_cannot_be_captured_runs_plainly() -> None:
    x = torch.ones(1 << 20, device="cuda")
    found = compare({"add": lambda: x + 1, "item": lambda: float(x.sum())}, "cuda", rounds=5)
    assert all(0 < t.median < 1 for t in found.values())
    assert float((x + 1).sum()) == 2 << 20


def test_half_of_two_timings() -> None:
    assert Timing(2.0, 1.0, 3.0, 9).mixed(Timing(4.0, 3.0, 7.0, 6)) == Timing(3.0, 2.0, 5.0, 6)
    assert Timing(2.0, 2.0, 2.0, 9).mixed(Timing(2.0, 2.0, 2.0, 9, 0.5)).doubt == 0.5
