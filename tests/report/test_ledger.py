"""The ledger. In: sample records. Out: figures that add up, text as expected to the letter, and a stable JSON form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from interfuse.base.errors import OptionError
from interfuse.base.record import Record
from interfuse.report.bench import Bench
from interfuse.report.figures import figure
from interfuse.report.ledger import Ledger, ledger
from interfuse.report.values import Change
from tests.report.sample import MIB, add_region, candidate, compiled, measured

MEASURED = """
  sample · 8 x 128 · f32 · a CPU, 2 cores · torch 2.13.0 · plan a41f

                       eager  interfuse              inductor  note
    launches               8          6  -25 %                 seen by the profiler; counted from the graph 8 -> 6
    memory traffic  40.0 MiB   34.0 MiB  -15 %                 counted
    time              132 ms    61.8 ms  2.14x  80.0 ms 1.66x  median of 50, interleaved, +-1.6 %
    predicted        7.23 ms    6.43 ms  1.12x                 cost model, all regions
    error, rms       2.1e-07    1.6e-07  0.76x        2.0e-07  against float64
    peak memory     96.0 MiB   71.0 MiB  -26 %   not measured  above inputs and parameters

    region            times  launches   traffic MiB  predicted us     measured us  ceiling  error  decision
    linear + gelu         1    2 -> 2  18.0 -> 18.0         4,000  4,110 -> 4,110     85 %         library; the
                                                                                                   library is 9 %
                                                                                                   faster
    add + layer_norm      2    4 -> 2  15.0 -> 9.00           420    1,220 -> 440     86 %  0.75x  fused: row,
                                                                                                   resident; 2.77x
                                                                                                   faster
    matmul[b]             1    1 -> 1  6.00 -> 6.00         2,000    not measured                  kept; no other way
                                                                                                   to run it
    nonzero               1    1 -> 1  1.00 -> 1.00          10.0    not measured                  kept; its result's
                                                                                                   size depends on
                                                                                                   data

    not fused: 3 views (free: they launch nothing)
    not fused: 1 x aten.nonzero.default (its result's size depends on data)
    compiled in 2.00 s: capture 2.00
"""

REGION = """
  0:add + layer_norm, 2:add + layer_norm: fused: row, resident
    because: 2.77x faster
    calls: aten.add.Tensor, aten.layer_norm.default
    from: block.py:41, block.py:42

    candidate                      launches  traffic MiB  predicted us       measured us  error, rms  of allowed
    eager                                 2         7.50
    library                               2         7.50    610 +-30 %  610 (600 to 630)     2.0e-07        60 %
    fused: row, resident (chosen)         1         4.50    210 +-30 %  220 (218 to 225)     1.5e-07        45 %

    ceiling: 189 us to move the bytes once, at the table's bandwidth; measured 220 us, 86 % of that speed
    roofline: 2.00 operations a byte, the ridge is at 10.0: memory-bound
    predicted, us: launch 5.00, memory 205; memory takes longest

    kernel          registers  spills  shared KiB  warps  occupancy
    add_layer_norm         40       0        0.50      8       75 %
    not merged with linear: a matrix product runs through the library
"""


@pytest.fixture
def whole() -> Ledger:
    return ledger([compiled(), measured()])


def test_the_table_reads_as_expected(whole: Ledger) -> None:
    assert str(whole) == MEASURED


def test_a_region_reads_as_expected(whole: Ledger) -> None:
    assert whole.region("add + layer_norm") == REGION
    with pytest.raises(OptionError, match=r"no region 'softmax'.*linear \+ gelu"):
        whole.region("softmax")


def test_rich_prints_the_same(whole: Ledger) -> None:
    console = Console(width=120, color_system=None, record=True, quiet=False)
    with console.capture() as shown:
        console.print(whole)
    assert [line.rstrip() for line in shown.get().splitlines()] == MEASURED.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_table_keeps_to_its_width(whole: Ledger, width: int) -> None:
    assert max(map(len, whole.table(width).splitlines())) <= width


def test_rows_add_up_to_the_totals(whole: Ledger) -> None:
    for column in ("launches", "bytes"):
        total = getattr(whole.totals, column)
        rows = [getattr(row, column) for row in whole.rows]
        assert (sum(r.before for r in rows), sum(r.after for r in rows)) == (total.before, total.after)


def test_what_was_not_measured_says_so_and_is_never_zero() -> None:
    unmeasured = ledger([compiled()])
    assert unmeasured.totals.time_ms == unmeasured.totals.peak_bytes == unmeasured.totals.error_rms == Change()
    for line in ("time", "error, rms", "peak memory"):
        assert re.search(rf"{line} +not measured +not measured", str(unmeasured))
    values = json.loads(ledger([Record()]).to_json())
    assert values["totals"]["launches"] == {"before": None, "after": None}
    assert "not measured" in str(ledger([Record()]))


def test_the_race_overrules_the_prediction(whole: Ledger) -> None:
    linear = next(r for r in whole.regions if r.name == "linear + gelu")
    assert (linear.decision, linear.choice.label, linear.reason) == ("library", "library", "the library is 9 % faster")


def test_a_fallback_runs_the_library_and_says_why() -> None:
    record = compiled()
    record.add("fallback", "2:add + layer_norm", error="the launch failed")
    after = ledger([record])
    failed = next(r for r in after.regions if r.subject == "2:add + layer_norm")
    assert (failed.decision, failed.choice.family) == ("fell back", "library")
    rows = {(r.name, r.decision): r.times for r in after.rows}
    assert rows["add + layer_norm", "fused"] == rows["add + layer_norm", "fell back"] == 1
    assert "fell back to the library: 2:add + layer_norm: the launch failed" in str(after)
    assert after.totals.launches.after == 7


def test_an_unequal_region_does_not_borrow_a_race() -> None:
    record = compiled()
    add_region(
        record,
        20,
        "add + layer_norm",
        ["aten.layer_norm.default"],
        (1, 1.0),
        [candidate("library", "library", 1, 1.0, 50.0), candidate("fused: row, resident", "row", 1, 1.0, 40.0)],
        1,
        "predicted",
    )
    other = ledger([record]).regions[-1]
    assert other.choice.median_us is None
    assert other.reason == "predicted"


def test_dropped_calls_count_before(whole: Ledger) -> None:
    record = compiled()
    record.add(
        "call", "30", target="aten.exp.default", launches=1, bytes=MIB, view=False, opaque=False, reason="", source=""
    )
    assert ledger([record]).totals.launches.before == whole.totals.launches.before + 1  # type: ignore[operator]


def test_a_graph_without_regions_runs_as_captured() -> None:
    record = Record()
    record.add("model", "graph", plan="77aa", device="cpu")
    record.add("model", "whole model", device="cpu", dtype="f32")
    record.add(
        "call", "0", target="aten.exp.default", launches=1, bytes=MIB, view=False, opaque=False, reason="", source=""
    )
    alone = ledger([record])
    assert alone.totals.launches == Change(1, 1)
    assert alone.totals.bytes == Change(MIB, MIB)
    assert (alone.model.name, alone.model.plan, alone.model.dtype) == ("whole model", "77aa", "f32")


def test_graphs_of_one_model_add_up() -> None:
    once, twice = ledger([compiled()]), ledger([compiled(), compiled()])
    assert twice.totals.bytes.after == 2 * (once.totals.bytes.after or 0)
    assert [r.times for r in twice.rows] == [2 * r.times for r in once.rows]


def test_kernels_are_from_the_cache_where_all_of_all_graphs_are() -> None:
    def compiled_in(*graphs: tuple[bool, ...]) -> str:
        records = [Record() for _ in graphs]
        for record, kernels in zip(records, graphs, strict=True):
            record.add("stage", "build", seconds=1.0)
            for cached in kernels:
                record.add("kernel", "softmax", cached=cached)
        return str(ledger(records)).strip().splitlines()[-1].strip()

    assert compiled_in((True, True), (True,), ()) == "compiled in 3.00 s, all kernels from the cache: build 3.00"
    for graphs in (((), ()), ((False,), (True,)), ((False, True), ()), ((True,), (False,))):
        assert compiled_in(*graphs) == "compiled in 2.00 s: build 2.00"


def test_a_record_read_back_gives_the_same_ledger(whole: Ledger) -> None:
    assert ledger([Record.from_json(r.to_json()) for r in (compiled(), measured())]) == whole


def test_the_json_form_is_the_documented_one(whole: Ledger) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "ledger.md").read_text()
    values = json.loads(whole.to_json())
    assert values["schema"] == 1
    documented = set(re.findall(r"`(\w+)(?:\[\])?`", page))
    for key, value in values.items():
        assert key in documented
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict):
            assert set(first) <= documented, f"docs/ledger.md lacks {set(first) - documented} of {key}"
    assert set(values["regions"][0]["candidates"][0]) <= documented


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (4321, "4,321"),
        (611.6, "612"),
        (18.0, "18.0"),
        (4.114, "4.11"),
        (0.0123, "0.012"),
        (0.0, "0"),
        (2e-5, "<0.001"),
    ],
)
def test_figures_read_well(value: float, text: str) -> None:
    assert figure(value) == text


def test_a_busy_machine_and_random_numbers_are_said() -> None:
    def shown(**facts: object) -> tuple[str, str]:
        record = Record()
        for name in ("eager", "interfuse"):
            mine = facts if name == "interfuse" else {}
            about = {"median_ms": 2.0, "low_ms": 1.9, "high_ms": 2.1, "runs": 30, "error_rms": 1e-7, **mine}
            record.add("measure", name, **about)
        found = ledger([record])
        beside = Bench(found.model, found.measures)
        return " ".join(str(found).split()), str(beside)

    for text in shown():
        assert "busy" not in text and "not judged" not in text
    for facts, share in (({"high_ms": 99.0}, "more than 100"), ({"waited": 0.5}, "5.0")):
        whole, beside = shown(**facts)
        assert f"median of 30, interleaved, +-{share} %: the machine is busy" in whole
        assert "the machine is busy: times say little" in beside
    for text in shown(error_rms=None, random=True):
        assert "not judged: random" in text and "1.0e-07" in text


def test_a_race_on_a_busy_machine_shows_no_missed_predictions() -> None:
    for busy in (False, True):
        record = Record()
        ways = [candidate("fused", "row", 1, 4.5, 210.0), candidate("library", "library", 2, 7.5, 610.0)]
        subject = add_region(record, 0, "a", ["aten.add.Tensor"], (2, 7.5), ways, 0, "predicted")
        times = {"fused": {"median_us": 9e3, "low_us": 9e3, "high_us": 9e3}}
        record.add("race", subject, times=times, errors={}, chosen="fused", reason="why", busy=busy)
        found = ledger([record])
        assert found.regions[0].busy == busy
        assert ("beyond their error bars" in found.region("a")) != busy
