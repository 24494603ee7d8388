"""The fit of the cost model. In: made-up rows of a data file. Out: errors, ranking, numbers that come back."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from bench.common import RESULTS
from bench.fit import candidate_us, errors, fitted, judged, keep, losses, ninth_decile, profile_of, raced
from bench.fit_cases import CASES, HELD_BACK, LARGEST, SEEN, TYPES, drawn
from interfuse.cost.features import Features
from interfuse.cost.library import Asked
from interfuse.cost.model import FITTED
from interfuse.device.table import find

H200 = find("H200")


def _kernel(moved: float, slots: float) -> dict[str, Any]:
    f = Features(4096, 8, 2048, moved, moved / 2, moved, moved / 512, 0.0, 0.0, slots, 0.0, 0.0, 0.0, 0.0)
    return {"kernel": "k", "features": asdict(f)}


def _data(times: float = 1.0, fit: Any = FITTED) -> dict[str, Any]:
    """Each case with one kernel and one call, taking so many times what is predicted."""
    cases = {}
    for k, name in enumerate(CASES):
        ways = {
            "ours": [_kernel(1e6 * (k + 1), 1e9 * (k % 7))],
            "library": [{"asked": asdict(Asked(10**7 * (k + 1), 2))}],
        }
        rows = [
            {"label": label, "steps": steps, "us": times * candidate_us(steps, H200, fit)}
            for label, steps in ways.items()
        ]
        cases[name] = {"regions": [{"region": "r", "candidates": rows}]}
    return {"cases": cases}


def test_a_third_of_the_cases_is_held_back_whatever_they_are() -> None:
    held = [r.case for r in raced(_data()) if r.held_back]
    assert held == list(HELD_BACK)
    assert len(held) > len(CASES) / 3
    assert not set(SEEN) & set(HELD_BACK)


def test_drawn_cases_are_the_same_everywhere_and_others_for_another_seed() -> None:
    """Names tell sizes and types; the numbers are written down, so that another drawing is noticed."""
    assert [n for seed in (1, 4, 6, 7, 8, 9) for n in drawn(seed)] == list(SEEN)
    assert [n for seed in (2, 3, 5, 10, 11) for n in drawn(seed)] == list(HELD_BACK)
    assert [n for n in SEEN if n.startswith(("add_ln", "softmax_mask", "step"))][:6] == [
        "add_ln 2471x832 bf16 #1",
        "softmax_mask 702x24162 f32 #1",
        "step_8 1097x68 f32 #1",
        "add_ln 4532x10752 bf16 #4",
        "softmax_mask 111x2048 bf16 #4",
        "step_8 1225x256 bf16 #4",
    ]


def test_drawn_cases_give_tensors_of_their_types_and_can_be_called() -> None:
    with FakeTensorMode():
        for name, case in drawn(4).items():
            inputs = case.inputs()
            given = [t for t in tree_leaves(inputs) if t.dtype.is_floating_point]
            assert {TYPES[name.split()[-2]]} == {t.dtype for t in given} - (
                {torch.float32} if "ln_back" in name else set()
            )
            assert max(t.numel() for t in given) <= 2 * LARGEST


def test_errors_and_ranking() -> None:
    regions = raced(_data(2.0))
    assert errors(regions, H200, FITTED) == pytest.approx([0.5] * 2 * len(CASES))
    assert len(errors(regions, H200, FITTED, ours=True)) == len(CASES)
    assert losses(regions, H200, FITTED) == [1.0] * len(CASES)
    wrong = [replace(r, us=tuple(reversed(r.us))) for r in regions]
    assert min(losses(wrong, H200, FITTED)) > 1.0
    assert ninth_decile([float(k) for k in range(10)]) == 8.0


def test_candidates_that_did_not_run_do_not_count() -> None:
    data = _data()
    first = next(iter(data["cases"].values()))["regions"][0]["candidates"]
    del first[0]["us"]
    assert len(raced(data)) == len(CASES) - 1


def test_fitting_finds_numbers_that_explain_the_times() -> None:
    true = replace(FITTED, slots=FITTED.slots / 2, slack=FITTED.slack * 1.3)
    regions = raced(_data(fit=true))[::6]
    found = fitted(regions, H200, FITTED)
    assert max(errors(regions, H200, found)) < 0.05 < max(errors(regions, H200, FITTED))


def test_the_data_file_says_how_far_off_the_model_is() -> None:
    data = json.loads((RESULTS / "fit_cuda.json").read_text(encoding="utf-8"))
    found = judged(raced(data), profile_of(data), FITTED)
    assert found == data["judged"], "the cost model has changed: run python -m bench.fit --no-fit, docs/make_tables.py"
    assert found["fitted"]["all"]["median"] <= 0.15
    assert found["fitted"]["all"]["ninth decile"] <= 0.40
    assert found["fitted"]["ranked right"] >= 0.9 * found["fitted"]["regions"]


def test_a_data_file_is_whole_json_a_case_a_line(tmp_path: Path) -> None:
    keep(tmp_path / "x.json", {"profile": {}, "cases": {"a": {"k": [1]}, "b": {}}})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"profile": {}, "cases": {"a": {"k": [1]}, "b": {}}}
    assert '  "a": {"k": [1]},\n' in text
