"""Corrected predictions. In: times beside what was predicted. Out: factors that depend on what is stored alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interfuse.base import knobs
from interfuse.base.record import Record
from interfuse.base.store import Store
from interfuse.cost.estimate import Estimate, in_turn
from interfuse.device.table import find
from interfuse.plan.plan import ProviderStep, Region
from interfuse.tune import race as race_module
from interfuse.tune.bench import Timing
from interfuse.tune.corrections import BOUND, LEAST, corrected, note
from interfuse.tune.race import Result, race_plan
from tests.run.made import candidate, first, fused_plan, library, second

H200 = find("H200")


def _noted(store: Store, shares: list[float], family: str = "map", key: str = "here") -> Record:
    """Notes one region a share, in which a candidate took so many times what was predicted."""
    record = Record()
    region = fused_plan()[0].regions[0]
    for k, share in enumerate(shares):
        (step, _) = region.candidates[0].steps
        one = replace(candidate("c", step, family=family), estimate=Estimate(1e-5, 0.3))
        took = Timing(1e-5 * share, 1e-5 * share, 1e-5 * share, 9)
        note(Region("r", (), (), (), (one, library(0))), {"c": took}, f"region {k}", store, key, record, f"{k}:r")
    return record


def test_a_family_that_is_off_is_corrected_by_its_median() -> None:
    store = Store(None)
    _noted(store, [1.5, 1.7, 1.9, 1.8, 1.75])
    assert corrected(H200, store, "here").corrections == (("map", 1.75),)
    assert corrected(H200, store, "elsewhere").corrections == ()


def test_routines_are_corrected_apart() -> None:
    store = Store(None)
    node = fused_plan()[0].regions[0].outputs[0]
    for k, (name, share) in enumerate([("a.b", 8.0), ("c.d", 1.0)] * LEAST):
        one = replace(candidate("c", ProviderStep(name, (), node), family="provider"), estimate=Estimate(1e-5, 0.3))
        took = Timing(1e-5 * share, 1e-5 * share, 1e-5 * share, 9)
        note(Region("r", (), (), (), (one, library(0))), {"c": took}, f"region {k}", store, "here", Record(), "r")
    assert corrected(H200, store, "here").corrections == (("a.b", BOUND),)


@pytest.mark.parametrize(
    "shares",
    [[1.8] * (LEAST - 1), [1.0, 1.1, 0.9, 1.05, 1.8, 1.9], [1.02] * 20],
    ids=["too few", "most are right", "near enough"],
)
def test_little_evidence_changes_nothing(shares: list[float]) -> None:
    store = Store(None)
    _noted(store, shares)
    assert corrected(H200, store, "here") == H200


def test_corrections_are_bounded() -> None:
    for share, factor in ((50.0, BOUND), (0.01, 1 / BOUND)):
        store = Store(None)
        _noted(store, [share] * LEAST)
        assert corrected(H200, store, "here").correction("map") == factor


def test_the_order_of_arrival_does_not_matter_and_a_region_counts_once() -> None:
    shares = [1.4, 1.9, 1.7, 1.6, 2.4]
    found = set()
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        store = Store(None)
        for k in order * 2:
            _noted(store, shares[: k + 1])
        found.add(corrected(H200, store, "here").corrections)
    assert found == {(("map", 1.7),)}


def test_what_lies_beyond_the_error_bar_is_logged() -> None:
    record = _noted(Store(None), [1.1, 1.5, 0.5])
    assert [e.subject for e in record.of("miss")] == ["1:r", "2:r"]
    assert record.of("miss")[0].facts["predicted_us"] == pytest.approx(10.0)


def test_a_corrected_prediction_is_noted_as_it_was_before() -> None:
    store = Store(None)
    two = Estimate(1e-5, 0.3).times(2.0)
    assert two.seconds == 2e-5 and two.uncorrected == pytest.approx(1e-5)
    assert in_turn([two, Estimate(1e-5)]).uncorrected == pytest.approx(2e-5)
    plan, _ = fused_plan()
    for k in range(LEAST):
        one = replace(candidate("c", plan.regions[0].candidates[0].steps[0]), estimate=two)
        took = Timing(2e-5, 2e-5, 2e-5, 9)
        note(Region("r", (), (), (), (one,)), {"c": took}, f"region {k}", store, "here", Record(), "r")
    assert corrected(H200, store, "here").correction("map") == 2.0


def test_the_profile_says_so() -> None:
    text = str(replace(H200, corrections=(("row, streamed", 1.4),)))
    assert "predictions corrected by races: row, streamed x1.40" in text


def test_races_note_what_they_measure_unless_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = fused_plan()
    times = {"library": Timing(4e-6, 4e-6, 4e-6, 9), "fused": Timing(1e-6, 1e-6, 1e-6, 9)}
    monkeypatch.setattr(race_module, "measured", lambda *args: Result(times))
    for folder, key, kept in (("on", "here", 2), ("off", "", 0)):
        with knobs.override(cache_dir=tmp_path / folder) as given:
            race_plan(
                plan, {"first": first, "second": second}, torch.device("cpu"), "d", given, Record(), probe_key=key
            )
            store = Store(given.cache_dir / "results.sqlite")
            assert len(store.under("predicted ")) == kept
            store.close()
