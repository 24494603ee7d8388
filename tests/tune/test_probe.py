"""The probe. In: this CPU with small sizes, a store, made-up findings. Out: sound figures, kept and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interfuse.base.errors import DeviceError, OptionError
from interfuse.base.knobs import Knobs
from interfuse.base.store import Store
from interfuse.build.resources import Resources, check
from interfuse.build.triton import compile_offline
from interfuse.device.table import TABLE, find
from interfuse.driver import device as driver_device
from interfuse.driver.device import device_of, measure
from interfuse.emit.triton import TritonSource, emit
from interfuse.lower.target import GPU
from interfuse.tune import bench, probe


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SIZES", probe.SIZES[:2])
    monkeypatch.setattr(probe, "ROUNDS", 3)
    monkeypatch.setattr(probe, "ELEMENTS", 1 << 16)
    monkeypatch.setattr(bench, "UNSURE", float("inf"))  # other tests may run beside


def test_a_cpu_is_measured_and_found_so_later(few: None, tmp_path: Path) -> None:
    knobs, told = Knobs(cache_dir=tmp_path), []
    before = device_of("cpu", knobs)
    assert not before.profile.measured
    found = measure("cpu", knobs, lambda what, done, total: told.append((what, done, total))).profile
    assert [done for _, done, _ in told] == [0, 1, 2] and all(total == 3 for _, _, total in told)
    assert found.measured and found.replay > 0 and found.bandwidth == dict(found.curves)["copy"][-1][1]
    assert set(dict(found.curves)) == {k + s for k in ("copy", "read", "write") for s in ("", " 1")}
    assert set(dict(found.rates)) == set(probe.OPERATORS) and all(0 < rate < 1e15 for _, rate in found.rates)
    assert all(0 < rate < 1e13 for _, points in found.curves for _, rate in points)
    assert device_of("cpu", knobs).profile == found
    assert device_of("cpu", replace(knobs, cache=False)).profile == before.profile


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_is_measured_and_found_so_later(few: None, tmp_path: Path) -> None:
    found = measure("cuda:0", Knobs(cache_dir=tmp_path)).profile
    assert found.measured and 0 < found.gap < found.replay < 1e-3 and 0 < found.barrier < 1e-3 and found.launch > 0
    assert set(dict(found.rates)) == set(probe.OPERATORS) and all(0 < rate < 1e15 for _, rate in found.rates)
    assert device_of("cuda:0", Knobs(cache_dir=tmp_path)).profile == found


def test_a_busy_machine_is_not_measured(few: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "UNSURE", 0.0)
    with pytest.raises(DeviceError, match=r"too busy to be measured: .* \d+ %.*; nothing is kept"):
        measure("cpu", Knobs(cache_dir=tmp_path))
    assert not device_of("cpu", Knobs(cache_dir=tmp_path)).profile.measured


def test_what_cannot_be_measured_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cpu cannot be measured: .*no-such-compiler"):
        measure("cpu", Knobs(cxx="no-such-compiler", cache_dir=tmp_path))


def test_a_stored_value_that_is_something_else_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "r.sqlite")
    known = find("H200")
    for value in ({"bandwidth": 1}, [1, 2], "text", {**known.measurement(), "rates": [1]}):
        store.put(f"probe {probe.VERSION} of k", value)
        assert probe.stored(known, store, "k") == known
    probe.keep(replace(known, gap=1e-6), store, "k")
    assert probe.stored(known, store, "k") == replace(known, gap=1e-6, measured=True)
    assert probe.stored(known, store, "another") == known
    store.close()


@pytest.mark.parametrize("name", ("A100", "H100", "B200", "MI300X"))
def test_gpu_kernels_fit_the_device(name: str) -> None:
    device = TABLE[name]
    kernels = [k for k in probe._kernels(probe.SIZES[:1], GPU, False) if "24" not in k.name or "div" in k.name]
    meet = TritonSource(
        probe.BARRIER, "meet", (("count_ptr", "*i32"), ("times", "i32")), (("PROGRAMS", device.units),), device.units, 4
    )
    for found in compile_offline([*map(emit, kernels), meet], device.target, 2):
        assert isinstance(found, Resources), found
        assert check(found, device) is None


def test_an_absent_gpu_is_planned_for_as_the_table_has_it() -> None:
    absent = driver_device.absent("l40s")
    assert (absent.profile, absent.here) == (find("L40S"), False)
    assert absent.target is not None and absent.target.programs == 142
    with pytest.raises(OptionError, match=r"no GPU.*A100"):
        driver_device.absent("CPU avx2")
