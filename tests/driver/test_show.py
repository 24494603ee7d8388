"""Stages as text. In: small models. Out: each graph's text, no stage beyond the one that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.base.knobs import override
from interfuse.driver.compiler import STAGES
from interfuse.driver.show import NEEDS


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
