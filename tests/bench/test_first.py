"""First calls on a GPU. In: the measured functions, planned and compiled for a GPU that is absent. Out: kernels, parts
that add up, medians of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench import first_gpu
from bench.first_gpu import FUNCTIONS, PARTS, after, first_call, measure, table
from interfuse.driver.backend import Backend
from interfuse.driver.device import absent
from interfuse.driver.options import read
from interfuse.plan.plan import KernelStep, PackStep


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_runs_kernels_alone(name: str) -> None:
    function, inputs = FUNCTIONS[name]()
    backend = Backend(read(None, {"race": False}), stop="plan", absent=absent("H200"))
    torch.compile(function, backend=backend, dynamic=False)(*inputs)
    plan = backend.compiled[0].stages.plans["plan"]
    steps = [s for region in plan.regions for s in region.choice.steps]
    assert all(isinstance(s, (KernelStep, PackStep)) for s in steps)
    assert len(steps) <= (2 if name in ("in parts", "cross-entropy") else 1)


def test_the_parts_of_a_first_call_add_up() -> None:
    found = first_call("map", "H200")
    assert set(found) == set(PARTS)
    assert found["plan"] + found["build"] + found["launch"] == pytest.approx(found["after"], abs=0.005)
    assert found["build"] > 0 and found["capture"] > 0


def test_a_function_without_kernels_is_no_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_gpu, "FUNCTIONS", {"sort": lambda: (lambda x: torch.sort(x)[0], (torch.zeros(8),))})
    with pytest.raises(RuntimeError, match="sort: no kernel was built"):
        first_call("sort", "H200")


def test_rounds_become_medians_and_the_second_function_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Iterator[float]] = {n: iter((3.0, 1.0, 2.0)) for n in FUNCTIONS}

    def process(name: str, gpu: str = "") -> dict[str, dict[str, float]]:
        seconds = next(said[name])
        return {"first": dict.fromkeys(PARTS, seconds), "resident": dict.fromkeys(PARTS, seconds / 10)}

    monkeypatch.setattr(first_gpu, "in_a_process", process)
    found = measure(["map", "row"], 3, 1)
    assert found["map"] == {"first": dict.fromkeys(PARTS, 2.0)}
    assert found["row"]["resident"]["after"] == 0.2
    assert set(found) == {"map", "row", after("row")}
    assert table(found).row_count == 3
