"""The race. In: regions with right, wrong, failing, equal candidates. Out: the choice, its reason, what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interfuse.base import knobs
from interfuse.base.record import Record
from interfuse.base.store import Store
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32, I64
from interfuse.ir.graph import Graph, Input, Literal, Output
from interfuse.ir.index import sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.plan.plan import KernelStep, Plan, Region
from interfuse.tune import bench, trial
from interfuse.tune import race as race_module
from interfuse.tune.bench import Timing
from interfuse.tune.judge import Error
from interfuse.tune.race import Result, decide, measured, race, race_plan
from tests.run.made import call, candidate, first, fused_plan, kernel, library, second

CPU = torch.device("cpu")


def wrong(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    torch.add(tensors[0], tensors[1], out=tensors[2]).mul_(1.0001)


def failing(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    raise RuntimeError("no such luck")


def result(library: Timing | None, **others: Timing) -> Result:
    times = {} if library is None else {"library": library}
    return Result({**times, **others}, {})


def region_of(*candidates: object) -> Region:
    return Region("r", (), (), (), tuple(candidates))  # type: ignore[arg-type]


def at(median: float, width: float = 0.1) -> Timing:
    return Timing(median, median - width, median + width, 15)


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({"library": at(9), "a": at(3), "b": at(5)}, "a"),
        ({"library": at(2), "a": at(3), "b": at(5)}, "library"),
        ({"library": at(9), "a": at(3), "b": at(3.05)}, "b"),  # tied: fewer launches
        ({"library": at(9), "a": at(3), "b": at(3.15)}, "a"),  # not tied: further apart than launches are worth
        ({"library": at(9), "a": at(3.05), "c": at(3)}, "a"),  # tied, launches too: the earlier one
        ({"library": at(3.02), "b": at(3.05)}, "library"),  # tied with the library but not below it
        ({"library": at(3.05), "b": at(3.02)}, "b"),
        ({"library": at(3.02), "b": at(3.05), "a": at(3)}, "a"),  # fewer launches are no help above the library's time
        ({"a": at(1)}, "library"),  # the library was not timed: nothing is known
    ],
    ids=range(9),
)
def test_decisions(times: dict[str, Timing], want: str) -> None:
    two = replace(candidate("a"), launches=2)
    region = region_of(two, candidate("b"), replace(candidate("c"), launches=2), replace(library(), launches=3))
    chosen, _ = decide(region, Result(times))
    assert region.candidates[chosen].label == want


def test_the_reason_names_times_and_what_is_left_out() -> None:
    region = region_of(candidate("a"), library())
    assert decide(region, result(at(4e-6, 0), a=at(2e-6, 0)))[1] == "2.00x faster than the library"
    assert decide(region, result(at(1e-6, 0), a=at(2e-6, 0)))[1] == "the library beat the best other, which took 2.00x"
    tied = region_of(library(), replace(candidate("a"), launches=library().launches))
    said = decide(tied, result(at(3e-6, 1e-7), a=at(2.97e-6, 1e-7)))
    assert said == (0, "the library is tied with the best other, which took 0.99x")
    out = Result({}, {}, {"a": "fails: RuntimeError: no"})
    assert decide(region, out) == (1, "a fails: RuntimeError: no")


def test_a_right_kernel_is_timed_and_wrong_or_failing_ones_are_out() -> None:
    plan, _ = fused_plan()
    (region,) = plan.regions
    found = measured(region, plan.graph, {"first": first, "second": second}, CPU)
    assert set(found.times) == {"fused", "library"}
    assert found.out == {}
    assert found.judged == "float64"
    assert found.errors["library"].ok
    found = measured(region, plan.graph, {"first": first, "second": wrong}, CPU)
    assert set(found.times) == set()
    assert "times what is allowed" in found.out["fused"]
    assert decide(region, found)[0] == 1
    found = measured(region, plan.graph, {"first": first, "second": failing}, CPU)
    assert found.out == {"fused": "fails: RuntimeError: no such luck"}


def test_results_are_stored_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    launchers = {"first": first, "second": second}
    with knobs.override(cache_dir=tmp_path) as given:
        record = Record()
        monkeypatch.setattr(bench, "UNSURE", float("inf"))
        chosen = race_plan(plan, launchers, CPU, "device", given, record)
        (event,) = record.of("race")
        assert event.subject == "0:both"
        assert event.facts["chosen"] == chosen.regions[0].choice.label
        assert set(event.facts["times"]["library"]) == {"median_us", "low_us", "high_us"}
        assert set(event.facts["errors"]["fused"]) == {"rms", "share"}
        assert event.facts["stored"] is False

        def never(*args: object) -> None:
            raise AssertionError("measured again")

        monkeypatch.setattr(race_module, "measured", never)
        again = Record()
        assert race_plan(plan, launchers, CPU, "device", given, again) == chosen
        assert again.of("race")[0].facts["stored"] is True
        with pytest.raises(AssertionError, match="measured again"):
            race_plan(plan, launchers, CPU, "another device", given, Record())


@pytest.mark.parametrize("broken", ["abc", float("nan"), None, [1]])
def test_a_broken_result_is_measured_again(broken: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    launchers = {"first": first, "second": second}
    monkeypatch.setattr(bench, "UNSURE", float("inf"))
    with knobs.override(cache_dir=tmp_path) as given:
        race_plan(plan, launchers, CPU, "device", given, Record())
        store = Store(tmp_path / "results.sqlite")
        found = {key: value for key, value in store.under("").items() if isinstance(value, dict) and "times" in value}
        for key, value in found.items():
            store.put(key, {**value, "times": {k: {**t, "median": broken} for k, t in value["times"].items()}})
        store.close()
        for stored in (False, True):
            record = Record()
            race_plan(plan, launchers, CPU, "device", given, record)
            assert found and record.of("race")[0].facts["stored"] is stored


def test_equal_regions_are_measured_once_and_a_spent_budget_measures_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    twice = replace(plan, regions=(*plan.regions, *plan.regions))
    count: list[int] = []

    def counting(*args: object) -> Result:
        count.append(1)
        return result(at(2), fused=at(1))

    monkeypatch.setattr(race_module, "measured", counting)
    with knobs.override(cache=False) as given:
        race_plan(twice, {}, CPU, "d", given, Record())
        assert len(count) == 1
    with knobs.override(cache=False, race_seconds=0.0) as given:
        record = Record()
        assert race_plan(plan, {}, CPU, "d", given, record).regions == plan.regions
        assert record.of("race")[0].facts["reason"] == "budget spent"


def test_one_region_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    store, record = Store(None), Record()
    launchers = {"first": first, "second": second}
    monkeypatch.setattr(bench, "UNSURE", float("inf"))
    got = race(plan.regions[0], plan.graph, launchers, CPU, store, 5.0, record, "key", "7:both")
    assert record.of("race")[0].subject == "7:both"
    assert got.reason
    assert store.get("key") is not None
    alone = replace(plan.regions[0], candidates=(library(0, 1),))
    assert race(alone, plan.graph, {}, CPU, store, 5.0, record, "other") is alone


def test_unsure_times_are_used_but_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    for width, waited, kept in ((0.1, 0.4, True), (0.9, 0.0, False), (0.1, 0.5, False)):
        library = replace(at(4, width), waited=waited)
        monkeypatch.setattr(race_module, "measured", lambda *args, w=width, t=library: result(t, fused=at(1, w)))
        store, record = Store(None), Record()
        chosen = race(plan.regions[0], plan.graph, {}, CPU, store, 5.0, record, "key")
        assert chosen.choice.label == "fused"
        assert (store.get("key") is not None) == kept
        assert chosen.reason == ("4.00x faster than the library" if kept else bench.BUSY)
        assert record.of("race")[0].facts["busy"] == (not kept)


def test_a_busy_machine_is_told_of_once_and_corrects_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    waited = result(replace(at(4), waited=0.8), fused=replace(at(1), waited=0.8))
    monkeypatch.setattr(race_module, "measured", lambda *args: waited)
    twice = replace(plan, regions=(*plan.regions, replace(plan.regions[0], key="another")))
    with knobs.override(cache_dir=tmp_path) as given:
        record = Record()
        race_plan(twice, {}, CPU, "d", given, record, probe_key="here")
        assert [e.facts["error"] for e in record.of("warning")] == [race_module.TOO_BUSY]
        store = Store(tmp_path / "results.sqlite")
        assert not store.under("")
        store.close()


def test_stored_nonsense_is_measured_again() -> None:
    assert Result.from_json({"times": 3}) is None
    assert Result.from_json(None) is None
    full = Result({"a": at(1)}, {"a": Error(0.1, 0.2)}, {"b": "why"}, "eager")
    assert Result.from_json(full.to_json()) == full
    old = full.to_json()
    del old["times"]["a"]["waited"]
    assert Result.from_json(old) is None  # of when nobody looked whether the machine was busy


def test_sizes_that_change_are_not_measured() -> None:
    x = b.placeholder("x", F32, (sym("s0", 1, 9), 4))
    y = b.apply("exp", x)
    graph = Graph(
        (Input(x, contiguous(x.shape)),), (call("aten.exp.default", (x,), y),), (Output(y, contiguous(y.shape)),)
    )
    step = KernelStep(kernel("k", [x], [y]), (x,), (y,))
    plan = Plan(graph, (Region("exp", (0,), (x,), (y,), (candidate("k", step), library(0))),))
    record = Record()
    with knobs.override(cache=False) as given:
        assert race_plan(plan, {}, CPU, "d", given, record) == plan
    assert "sizes change" in record.of("race")[0].facts["reason"]


def test_made_up_inputs_have_the_captured_types_and_layouts() -> None:
    nodes = [b.placeholder("a", BF16, (3, 4)), b.placeholder("b", I64, (5,)), b.placeholder("c", F32, (7,))]
    layouts = [Layout((1, 3)), Layout((2,)), Layout((0,))]
    graph = Graph(tuple(Input(n, lay) for n, lay in zip(nodes, layouts, strict=True)), (), ())
    a, ints, c = trial.made_up(graph, CPU)
    assert (a.dtype, a.stride()) == (torch.bfloat16, (1, 3))
    assert (ints.dtype, ints.stride(), set(ints.tolist()) <= {0, 1}) == (torch.int64, (2,), True)
    assert (c.stride(), len(set(c.tolist()))) == ((0,), 1)
    assert torch.equal(trial.made_up(graph, CPU)[0], a)


def test_the_exact_run_is_in_float64_also_where_a_call_names_a_type() -> None:
    x = b.placeholder("x", F32, (4, 6))
    y = b.cast(b.apply("exp", x), BF16)
    cast = replace(call("aten._to_copy.default", (x,), y), kwargs=(("dtype", Literal("dtype", "torch.bfloat16")),))
    graph = trial.widened(Graph((), (cast,), (), opaque=(torch.ones(2), torch.arange(2), "text")))
    assert graph.calls[0].kwargs == (("dtype", Literal("dtype", "torch.float64")),)
    assert [t.dtype for t in graph.opaque[:2]] == [torch.float64, torch.int64]
    assert graph.opaque[2] == "text"


def test_keys_are_equal_for_equal_regions_only() -> None:
    def keyed(name: str, op: str = "exp", size: int = 6, device: str = "d") -> str:
        x = b.placeholder(name, F32, (4, size))
        y = b.apply(op, x)
        graph = Graph(
            (Input(x, contiguous(x.shape)),), (call(f"aten.{op}.default", (x,), y),), (Output(y, contiguous(y.shape)),)
        )
        step = KernelStep(kernel("k", [x], [y]), (x,), (y,))
        return trial.region_key(Region(name, (0,), (x,), (y,), (candidate("k", step), library(0))), graph, device)

    assert keyed("x") == keyed("y")
    assert len({keyed("x"), keyed("x", "sin"), keyed("x", size=7), keyed("x", device="e")}) == 4


def test_a_region_that_reads_a_narrow_buffer_does_not_depend_on_what_made_it() -> None:
    def keyed(op: str) -> str:
        wide = b.apply(op, b.placeholder("p", F32, (4, 6)))
        held = b.cast(wide, BF16)
        out = b.cast(b.apply("exp", wide), BF16)
        graph = Graph((), (call("aten.exp.default", (held,), out),), ())
        return trial.region_key(Region("r", (0,), (held,), (out,), (library(0),)), graph, "d")

    assert keyed("sin") == keyed("cos")


def test_with_a_warm_cache_times_are_half_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(runs: dict[str, object], *args: object, cold: bool = True) -> dict[str, Timing]:
        return dict.fromkeys(runs, at(4, 0) if cold else at(2, 0))

    monkeypatch.setattr(race_module, "compare", timed)
    plan, _ = fused_plan()
    launchers = {"first": first, "second": second}
    for warm, median in ((False, 4.0), (True, 3.0)):
        found = measured(plan.regions[0], plan.graph, launchers, CPU, warm=warm)
        assert {t.median for t in found.times.values()} == {median}
