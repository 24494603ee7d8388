"""Peak memory of whole models on the CPU. In: models. Out: at most eager's bytes, whatever candidates were chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from interfuse.base.knobs import Knobs, override
from interfuse.base.record import Record
from interfuse.driver import compiler
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from interfuse.plan.plan import Plan, Region
from interfuse.plan.schedules import Place
from interfuse.run import memory
from interfuse.run.memory import peak_bytes
from interfuse.run.program import Program
from interfuse.run.providers import available
from interfuse.tune import race, trial
from interfuse.tune.choice import Choice, lock_text, settled
from interfuse.tune.race import Result

pytestmark = pytest.mark.usefixtures("empty_cache", "no_gradients")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Workspaces grow with the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ROWS, WIDTH = 2048, 128


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.norm(x + nn.functional.gelu(layer(x)))
        return x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return x


def layers(activation: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), activation())))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "relu": layers(nn.ReLU),
    "gelu": layers(nn.GELU),
    "silu": layers(nn.SiLU),
    "mish": layers(nn.Mish),
    "residual": Residual,
    "gated": Gated,
}


def ways(model: nn.Module, x: torch.Tensor) -> dict[str, Program]:
    """The program of `model` for each position among its regions' candidates, by what the first product then runs."""
    backend = Backend(read(None, {}))
    with override(race=False):
        torch.compile(model, backend=backend, dynamic=False)(x)
    found = backend.compiled[-1]
    assert found.plan is not None
    programs = {}
    for k in range(max(len(r.candidates) for r in found.plan.regions)):
        regions = tuple(replace(r, chosen=min(k, len(r.candidates) - 1)) for r in found.plan.regions)
        plan = replace(found.plan, regions=regions)
        programs[regions[0].choice.label] = Program(plan, found.stages.launchers, Record())
    return programs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_choice_of_candidates_holds_more_than_eager(name: str, dtype: torch.dtype) -> None:
    model, x = MODELS[name]().eval().to(dtype), torch.randn(ROWS, WIDTH, dtype=dtype)
    eager = peak_bytes(lambda: model(x))
    given = (*model.parameters(), x)
    # One buffer too many would be x.nbytes; libraries differ in their workspaces by less than half of that.
    for label, program in ways(model, x).items():
        inputs = ordered(program, given)
        assert peak_bytes(lambda p=program, i=inputs: p(*i)) <= eager + x.nbytes // 2, label


def ordered(program: Program, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """`given`, as the program wants them: parameters and x have shapes that tell which is which, or stand in order."""
    left = list(given)
    found = []
    for i in program.plan.graph.inputs:
        k = next(k for k, t in enumerate(left) if tuple(t.shape) == i.node.shape)
        found.append(left.pop(k))
    return found


def test_a_small_model_holds_no_workspace_that_eager_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def routine(region: Region, result: Result) -> tuple[int, str]:
        return next((k for k, c in enumerate(region.candidates) if c.family == "provider"), 0), "as told"

    monkeypatch.setattr(race, "decide", routine)
    model, x = nn.Sequential(nn.Linear(1024, 8), nn.GELU(), nn.Linear(8, 8)).eval(), torch.randn(16, 1024)
    backend = Backend(read(None, {}))
    fast = torch.compile(model, backend=backend, dynamic=False)
    with override(race=True):
        fast(x)
    record = backend.compiled[-1].record
    told = [e.facts for e in record.of("race") if "workspace" in e.facts["reason"]]
    assert peak_bytes(lambda: fast(x)) <= peak_bytes(lambda: model(x))
    if available("onednn.linear", "f32", "cpu") is None and peak_bytes(lambda: model(x)) < 1 << 16:
        assert told and told[0]["chosen"].startswith("library"), "oneDNN packs 64 columns of the weight a thread"


@pytest.mark.parametrize("locked", [False, True], ids=["predicted", "locked"])
def test_nor_where_nothing_is_raced(locked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(1024, 8), nn.GELU(), nn.Linear(8, 8)).eval(), torch.randn(16, 1024)
    lock = tmp_path / "lock.json"
    if locked:
        choices = {}

        def routine(plan: Plan, place: Place, device_key: str, knobs: Knobs, record: Record) -> Plan:
            for r in plan.regions:
                label = next((c.label for c in r.candidates if c.family == "provider"), r.library.label)
                choices[trial.region_key(r, plan.graph, device_key)] = Choice(label)
            lock.write_text(lock_text(choices))
            return settled(plan, place, device_key, replace(knobs, lock=str(lock)), record)

        monkeypatch.setattr(compiler, "settled", routine)
    backend = Backend(read(None, {}))
    fast = torch.compile(model, backend=backend, dynamic=False)
    with override(race=locked):
        fast(x)
    assert peak_bytes(lambda: fast(x)) <= peak_bytes(lambda: model(x))
    if available("onednn.linear", "f32", "cpu") is None and peak_bytes(lambda: model(x)) < 1 << 16:
        record = backend.compiled[-1].record
        told = [e.facts for e in record.of("region") if "workspace" in e.facts["reason"]]
        assert told and told[0]["candidates"][told[0]["chosen"]]["family"] == "library"
        assert not record.of("race"), "no times are measured"


def test_a_profiled_thread_measures_no_needs() -> None:
    model, x = nn.Sequential(nn.Linear(24, 8), nn.GELU()).eval(), torch.randn(16, 24)
    with profile(activities=[ProfilerActivity.CPU]):
        backend = Backend(read(None, {"race": True}))
        got = torch.compile(model, backend=backend, dynamic=False)(x)
    assert not backend.compiled[-1].record.of("fallback")
    torch.testing.assert_close(got, model(x))


@pytest.mark.skipif(memory._mkl() is None, reason="this PyTorch is without MKL")
def test_workspaces_that_mkl_keeps_count() -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    assert peak_bytes(lambda: a @ b) > a.nbytes + (16 << 10)
    assert peak_bytes(lambda: a + b) == a.nbytes
