"""`interfuse tune` on a CPU. In: small models. Out: choices in the store and in lock files, taken without measuring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import interfuse
from interfuse.base.errors import OptionError
from interfuse.base.knobs import current, override
from interfuse.base.store import Store
from interfuse.build import cpp as build_cpp
from interfuse.driver import tune as tuning
from interfuse.driver.begin import begin
from interfuse.lower.schedule import Schedule
from interfuse.plan.schedules import Asked
from interfuse.tune import bench, race
from interfuse.tune.choice import Choice, lock_text, read_lock, stored_key
from tests.cli.sample import invoke, work_in

MODELS = """
import torch

def columns():
    return (lambda x: torch.softmax(x * 2, 0)), torch.randn(300, 640)

def complex_numbers():
    return (lambda x: x * 2), torch.randn(4, dtype=torch.complex64)

def two():
    return (lambda x: torch.softmax(torch.sort(torch.softmax(x * 2, 0)).values + 1, -1)), torch.randn(30, 64)

def rows():
    return (lambda x: torch.softmax(x + 1, -1)), torch.randn(64, 512)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    work_in(tmp_path, monkeypatch, "tune_models", MODELS)
    monkeypatch.setattr(bench, "UNSURE", float("inf"))  # other tests may run beside
    yield tmp_path


def _model() -> tuple[object, torch.Tensor]:
    return (lambda x: torch.softmax(x * 2, 0)), torch.randn(300, 640)


def test_winners_are_stored_locked_and_taken_without_measuring(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("tune", "tune_models:columns", "--budget", "60", "--lock", "lock.json")
    assert result.exit_code == 0, result.output
    assert "mul+softmax" in result.output and "x  " in result.output
    locked = read_lock("lock.json")
    (key,) = locked
    store = Store(current().cache_dir / "results.sqlite")
    assert Choice.from_json(store.get(stored_key(key))) == locked[key]
    store.close()

    def never(*args: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(race, "measured", never)
    function, x = _model()
    for options, said in (({}, "tuned before"), ({"lock": "lock.json", "race": False}, "from the lock file lock.json")):
        torch._dynamo.reset()
        ledger = interfuse.explain(function, (x,), measure=False, **options)
        assert said in str(ledger.to_json())
        (row,), (region,) = ledger.rows, ledger.regions
        times = locked[key].times
        assert row.measured_us.after == pytest.approx(times[region.choice.label].median * 1e6)
        assert row.measured_us.before == pytest.approx(times[region.library.label].median * 1e6)
        assert None not in (row.of_ceiling, row.error_ratio, region.choice.low_us) and row.decision != "kept"
        assert "fallback" not in str(ledger.to_json()) or "measured again" not in str(ledger.to_json())


def test_an_asked_schedule_comes_back_from_a_lock_file(folder: Path) -> None:
    assert invoke("tune", "tune_models:columns", "--lock", "lock.json").exit_code == 0
    ((key, _),) = read_lock("lock.json").items()
    wide = Choice("fused: column", (Schedule((("outer", 1), ("col", 64), ("row", 1))),), 1.5, "by hand")
    fused = invoke("show", "tune_models:columns", "--stage", "plan", "--stop-after", "plan").output
    label = next(
        line.split(": 1 launch")[0].split(" (")[0].strip("* -") for line in fused.splitlines() if "fused: " in line
    )
    (folder / "lock.json").write_text(lock_text({key: Choice(label, wide.asked, 1.5, "by hand")}))
    with override(lock="lock.json"):
        function, x = _model()
        fast = interfuse.compile(function)
        torch.testing.assert_close(fast(x), function(x))  # type: ignore[operator]
        shown = invoke("show", "tune_models:columns", "--stage", "plan", "--stop-after", "build").output
    assert "col 64" in shown


def _locked(**values: object) -> str:
    entry = {"candidate": "fused: map", "gain": 1.5, "region": "add", "schedules": [], **values}
    return json.dumps({"version": 1, "regions": {"a": entry}})


WRONG: tuple[dict[str, object], ...] = (
    {"gain": float("nan")},
    {"gain": -1},
    {"gain": "much"},
    {"schedules": [{"warps": "4"}]},
    {"schedules": [{"stages": 2.5}]},
    {"schedules": [{"blocks": [["row", "1"]]}]},
    {"schedules": [{"blocks": [["row", 2.5]]}]},
    {"schedules": [{"streamed": "yes"}]},
    {"schedules": [{"wraps": 4}]},
    {"schedules": 3},
    {"times": 3},
    {"times": {"fused: map": {"median": 1e-5}}},
    {"times": {"fused: map": {"median": -1.0, "low": 1.0, "high": 1.0, "runs": 9}}},
    {"errors": {"fused: map": 3}},
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ('{"version": 9, "regions": {}}', "is not of version 1"),
        ('{"version": 1, "regions": {"a": {}}}', "has a broken entry"),
        *((_locked(**wrong), "has a broken entry") for wrong in WRONG),
    ],
)
def test_a_broken_lock_file_is_one_sentence(folder: Path, text: str | None, why: str) -> None:
    if text is not None:
        (folder / "lock.json").write_text(text)
    with pytest.raises(OptionError, match=why):
        interfuse.compile(_model()[0], lock="lock.json")


@pytest.mark.parametrize(
    "schedules",
    [
        (Schedule((("outer", 1), ("row", 1), ("col", 1 << 40))),),
        (Schedule(stages=-1),),
        (Schedule(warps=3),),
        (None, Schedule(warps=1)),
    ],
    ids=str,
)
def test_a_choice_that_no_kernel_can_have_is_told_of(folder: Path, schedules: Asked) -> None:
    function, x = _model()
    with override(race=False):
        (key, (region, *_)) = next(
            iter(tuning._todo(begin(function, (x,), {}, {}, stop="plan").backend.compiled).items())
        )
        label = next(c.label for c in region.candidates if c.family != "library")
        (folder / "lock.json").write_text(lock_text({key: Choice(label, schedules)}))
        ledger = interfuse.explain(function, (x,), measure=False, lock="lock.json")
    assert "cannot be had" in str(ledger.warnings) and not ledger.fallbacks
    assert "predicted" in ledger.regions[0].reason


def test_a_library_call_that_was_chosen_still_has_what_it_was_chosen_from(folder: Path) -> None:
    assert invoke("tune", "tune_models:columns", "--lock", "lock.json").exit_code == 0
    ((key, choice),) = read_lock("lock.json").items()
    library = next(label for label in choice.times if label.startswith("library"))
    kept = Choice(library, (), 1.0, "by hand", choice.times, choice.errors)
    old = Choice(library, (), 1.0, "by hand")
    for one in (kept, old):  # lock files of before say nothing of times
        text = lock_text({key: one})
        if one is old:
            value = json.loads(text)
            del value["regions"][key]["times"], value["regions"][key]["errors"]
            text = json.dumps(value)
        (folder / "lock.json").write_text(text)
        assert read_lock("lock.json") == {key: one}
        torch._dynamo.reset()
        ledger = interfuse.explain(*_model(), measure=False, race=False, lock="lock.json")
        (region,) = ledger.regions
        assert (region.decision, region.choice.label) == ("library", library)
        others = [c for c in region.candidates if c is not region.choice]
        assert others and all((c.median_us is not None) == (one is kept and c.label in choice.times) for c in others)
        assert (region.choice.median_us is not None) == (one is kept)


def test_a_lock_file_of_elsewhere_is_told_of(folder: Path) -> None:
    (folder / "lock.json").write_text(lock_text({"0": Choice("fused: map")}))
    function, x = _model()
    torch._dynamo.reset()
    ledger = interfuse.explain(function, (x,), measure=False, race=False, lock="lock.json")
    assert "has none of these regions" in str(ledger.to_json())


def test_interrupted_tuning_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "_tuned", interrupted)
    function, x = _model()
    found = tuning.tune_model(function, (x,))  # type: ignore[arg-type]
    assert (found.choices, found.left, found.interrupted) == ({}, 1, True)
    told = invoke("tune", "tune_models:columns")
    assert told.exit_code == 130
    assert "1 region not measured: interrupted; run it again to go on." in told.stderr


def test_an_interrupt_between_regions_leaves_a_lock_of_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([(Choice("ours"), 2.0, 1.0, True)])

    def first(*args: object) -> tuple[Choice, float, float, bool]:
        for result in results:
            return result
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "_tuned", first)
    told = invoke("tune", "tune_models:two", "--lock", "lock.json")
    assert told.exit_code == 130, told.output
    assert "ours" in told.stdout
    assert "1 region not measured: interrupted; run it again to go on." in told.stderr
    assert [c.candidate for c in read_lock("lock.json").values()] == ["ours"]


def test_tuning_says_what_could_not_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_cpp, "build", full)
    result = invoke("tune", "tune_models:columns")
    assert result.exit_code == 0, result.output
    assert "1 region not measured: nothing but the library could be built and run." in result.stderr
    assert "No space left on device" in result.stderr and "--budget" not in result.stderr


def test_what_a_busy_machine_measures_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "UNSURE", 0.0)
    result = invoke("tune", "tune_models:columns", "--lock", "lock.json")
    assert result.exit_code == 0, result.output
    assert "1 region could not be timed, since the machine is too busy" in result.stderr
    assert read_lock("lock.json") == {}
    ledger = interfuse.explain(*_model(), measure=False)
    assert "tuned before" not in ledger.to_json()


def test_nothing_to_choose_is_said(folder: Path) -> None:
    result = invoke("tune", "tune_models:complex_numbers")
    assert result.exit_code == 0
    assert "nothing to choose" in result.stdout


def test_what_another_process_locked_meanwhile_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lock.json").write_text(lock_text({"0": Choice("of old")}))

    def meanwhile(*args: object) -> tuple[Choice, float, float, bool]:
        (folder / "lock.json").write_text(lock_text({"0": Choice("newer"), "1": Choice("theirs")}))
        return Choice("ours"), 2.0, 1.0, True

    monkeypatch.setattr(tuning, "_tuned", meanwhile)
    result = invoke("tune", "tune_models:columns", "--lock", "lock.json", INTERFUSE_USE_CACHE="0")
    assert result.exit_code == 0, result.output
    assert sorted(c.candidate for c in read_lock("lock.json").values()) == ["newer", "ours", "theirs"]


def test_two_processes_tuning_at_once_lose_nothing(folder: Path) -> None:
    source = Path(interfuse.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}:{folder}"}
    commands = [
        [sys.executable, "-m", "interfuse", "tune", f"tune_models:{name}", "--lock", f"{name}.json"]
        for name in ("columns", "rows")
    ]
    running = [subprocess.Popen(c, cwd=folder, env=environment, stdout=subprocess.DEVNULL) for c in commands]
    assert [p.wait(300) for p in running] == [0, 0]
    store = Store(folder / "cache" / "results.sqlite")
    for name in ("columns", "rows"):
        for key, value in json.loads((folder / f"{name}.json").read_text())["regions"].items():
            assert store.get(stored_key(key)) == value
    store.close()
