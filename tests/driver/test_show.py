"""Stages as text. In: small models. Out: each graph's text, no stage beyond the one that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.base.knobs import override
from interfuse.driver.compiler import STAGES
from interfuse.driver.show import NEEDS
from interfuse.tune.bench import Timing


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False):
        yield


def f(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x * 2, -1)
    torch._dynamo.graph_break()
    return y.tanh() + 1


X = (torch.ones(4, 40),)


@pytest.mark.parametrize("stage", NEEDS)
def test_every_stage_has_a_text_for_each_graph(stage: str) -> None:
    seen: list[str] = []
    text = interfuse.show(f, X, stage=stage, watch=lambda s, done=0, total=0: seen.append(s))
    ran = STAGES[: STAGES.index(NEEDS[stage]) + 1]
    assert list(dict.fromkeys(seen)) == [s for s in ran if s != "race"]
    assert "softmax" in text
    assert "tanh" in text
    assert text.endswith("\n")


def test_the_race_decides_what_the_plan_shows() -> None:
    before = interfuse.show(f, X, stage="plan", race=True)
    after = interfuse.show(f, X, stage="plan", stop_after="race", race=True)
    assert "because: predicted" in before
    assert "library" in after
    assert before != after


def chosen(text: str) -> list[str]:
    return [line.split("* ")[1].rsplit(": ", 1)[0] for line in text.splitlines() if line.lstrip().startswith("* ")]


def test_a_plan_says_which_choices_are_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x, -1).tanh()

    x = (torch.ones(32, 32),)
    with override(cache_dir=tmp_path, race=True):
        planned = interfuse.show(two, x, stage="plan")
        reasons = [line for line in planned.splitlines() if "because: predicted" in line]
        assert reasons and all(line.endswith(" us, not raced") for line in reasons)
        assert planned.splitlines()[-1].startswith("# not raced: choices by prediction; a compile races them")
        assert "races are switched off" in interfuse.show(two, x, stage="plan", race=False).splitlines()[-1]
        other = interfuse.show(two, x, stage="plan", region="linear", off="softmax").splitlines()
        assert other[-1].startswith("# not raced") and not any("softmax" in line for line in other[1:])

        # The library beats what was predicted to be faster; the store keeps that, and the plan shows it from then on.
        label = "fused: row, resident"
        assert label in chosen(planned)
        slow = Timing(2.0, 2.0, 2.0, 9)

        def timed(works: dict[str, Any], *_: Any, **__: Any) -> dict[str, Timing]:
            return {w: slow if w == label else Timing(1.0, 1.0, 1.0, 9) for w in works}

        monkeypatch.setattr("interfuse.tune.race.compare", timed)
        raced = interfuse.show(two, x, stage="plan", stop_after="race")
        again = interfuse.show(two, x, stage="plan")
        assert chosen(again) == chosen(raced) and label not in chosen(again)
        assert "because: the library beat the best other, which took 2.00x, raced before" in again
        assert "not raced" not in raced + again


def test_a_region_alone_keeps_its_number() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).tanh() + 1

    x = (torch.ones(4, 4),)
    whole, part = (interfuse.show(two, x, stage="plan", region=r) for r in ("", "tanh+add"))
    line = next(line for line in whole.splitlines() if "tanh+add: calls" in line)
    assert line in part.splitlines()
    assert len(part) < len(whole)


def test_without_a_compiler_the_source_is_not_there_and_the_plan_says_what_runs() -> None:
    with override(cxx="no-such-compiler"):
        assert "no kernel in inference" in interfuse.show(f, X, stage="source")
        assert "library: " in interfuse.show(f, X, stage="plan")


def test_no_graph_and_no_such_stage() -> None:
    with pytest.raises(ModelError, match="captured no graph"):
        interfuse.show(lambda x: 3, X)
    with pytest.raises(OptionError, match="no stage 'tokens'"):
        interfuse.show(f, X, stage="tokens")


def test_a_stopped_compile_still_gives_the_models_results() -> None:
    for stage in STAGES[:-1]:
        assert interfuse.show(f, X, stop_after=stage)
