"""Any function runs. In: functions.py. Out: each compiled one gives eager's values, views and written inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from tests.driver.functions import FUNCTIONS
from tests.judge import judge


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False), torch.no_grad():
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_compiled_is_the_function(name: str) -> None:
    function, backend = FUNCTIONS[name], Backend()
    verdict = judge(function.call, function.arguments, torch.compile(function.call, backend=backend), function.rule)
    assert verdict.ok, verdict.note
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    assert backend.compiled, "PyTorch traced nothing of it"


@pytest.mark.parametrize("name", ["order", "complex", "control_flow", "attention", "embeddings"])
def test_what_is_left_to_the_library_has_a_reason(name: str) -> None:
    function, backend = FUNCTIONS[name], Backend()
    torch.compile(function.call, backend=backend)(*function.arguments)
    opaque = [e.facts for r in backend.records for e in r.of("call") if e.facts["opaque"]]
    assert opaque
    assert all(len(call["reason"].split()) > 1 or call["reason"] in ("random", "mutation") for call in opaque), opaque
