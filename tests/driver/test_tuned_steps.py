"""Schedules of packs and of what is written in place. In: small models. Out: other kernels, the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from interfuse.base.errors import UnsupportedError
from interfuse.driver import tune
from interfuse.driver.backend import Backend
from interfuse.driver.device import Device, absent
from interfuse.driver.options import read
from interfuse.lower.schedule import Schedule
from interfuse.plan.plan import Candidate, KernelStep, PackStep
from interfuse.plan.schedules import Place, alternatives, rescheduled
from interfuse.tune import bench
from interfuse.tune.choice import lock_text
from interfuse.tune.trial import bucket
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("empty_cache", "no_gradients")
H200 = absent("H200")


def _each(xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.softmax(x * 2, 0) for x in xs]


def _written(p: torch.Tensor, g: torch.Tensor) -> None:
    p.sub_(torch.tanh(g) * 0.1)


def _candidates(f: Callable[..., Any], inputs: Any, device: Device = H200) -> tuple[list[Candidate], Place]:
    """The candidates of the only region, planned for a GPU that is not here."""
    backend = Backend(read(None, {"race": False}), stop="plan", absent=device)
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.compile(f, backend=backend, dynamic=False)(*inputs)
    plan = backend.compiled[0].stages.plans["plan"]
    (region,) = plan.regions
    return list(region.candidates), Place(device.target, device.profile, dict(plan.graph.hints))


def test_a_pack_comes_in_other_schedules() -> None:
    found, place = _candidates(_each, ([torch.empty(300, 64 * k) for k in range(1, 5)],))
    packed = next(c for c in found if isinstance(c.steps[0], PackStep))
    others = alternatives(packed, place, 6)
    assert others
    for other, asked in others:
        (before,), (step,) = packed.steps, other.steps
        assert isinstance(step, PackStep)
        assert isinstance(before, PackStep)
        assert step.kernel.packed
        assert step.kernel != before.kernel
        assert [m.outputs for m in step.members] == [m.outputs for m in before.members]
        assert H200.source(step.kernel)
        assert rescheduled(packed, asked, other.label, place) == other


def test_a_schedule_that_a_member_cannot_have_is_none_of_the_pack() -> None:
    found, place = _candidates(_each, ([torch.empty(300, 64 * k) for k in range(1, 5)],))
    packed = next(c for c in found if isinstance(c.steps[0], PackStep))
    with pytest.raises(UnsupportedError):
        rescheduled(packed, (Schedule((("nowhere", 4),)),), "odd", place)


def test_what_is_written_in_place_still_is_in_other_schedules() -> None:
    found, place = _candidates(_written, (torch.empty(4096, 64), torch.empty(4096, 64)))
    fused = next(c for c in found if c.over)
    others = alternatives(fused, place, 4)
    assert others
    for other, _ in others:
        (step,) = other.steps
        assert isinstance(step, KernelStep)
        assert other.over == fused.over
        assert step.kernel != fused.steps[0].kernel  # type: ignore[union-attr]


def test_a_tuned_pack_gives_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "UNSURE", float("inf"))  # how busy the machine is does not matter here
    xs = [torch.randn(300, 64 * k) for k in range(1, 5)]
    found = tune.tune_model(_each, (xs,), budget=30.0)
    assert found.left == 0
    assert found.rows[0][0] == "mul+softmax x4"
    (tmp_path / "lock.json").write_text(lock_text(found.choices))
    backend = Backend(read(None, {"lock": str(tmp_path / "lock.json")}))
    assert judge(_each, (xs,), torch.compile(_each, backend=backend)).ok


def test_sizes_of_one_bucket_share_results() -> None:
    assert [bucket(n) for n in (0, 1, 2, 3, 64, 65, 128)] == [1, 1, 2, 4, 64, 128, 128]
