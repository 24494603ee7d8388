"""The bisection. In: a model with kernels spoilt on purpose. Out: their regions by name, and scripts that show it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.driver.reproducer import _fresh
from interfuse.emit import cpp

SPOILS = {"mul_softmax": ("* 2.0f", "* 2.01f"), "tanh_mul": ("* 0.5f", "* 0.501f"), "layer_norm": ("1e-05f", "0.3f")}
"""By kernel: a piece of its text, and the wrong one that is planted instead."""


# No races: they would throw a spoilt kernel out.
pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Spoil the kernels of these names."""

    def spoil(*names: str) -> None:
        real = cpp.emit

        def emit(kernel: Any, *arguments: Any) -> str:
            text = real(kernel, *arguments)
            if kernel.name not in names:
                return text
            right, wrong = SPOILS[kernel.name]
            assert right in text
            return text.replace(right, wrong)

        monkeypatch.setattr(cpp, "emit", emit)

    return spoil


def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x) * 3 + 1
    z = F.layer_norm(y @ w, (64,))
    return torch.softmax((z @ w) * 2.0, -1), (z @ w.t()).tanh() * 0.5


def given() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 64), torch.randn(64, 64)


def test_a_right_model_keeps_the_contract_and_its_regions_are_ranked() -> None:
    found = interfuse.bisect(model, given(), rank=True)
    assert found.ok
    assert found.at_fault == ()
    assert found.tries == 1
    names = [s.name for s in found.ranking]
    assert {"relu+mul+add", "layer_norm", "mul+softmax", "tanh+mul"} <= set(names)
    assert len(names) == found.regions
    shares = [s.share for s in found.ranking]
    assert all(share is not None and share <= 1 for share in shares)
    assert shares == sorted(shares, reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize("names", [["mul_softmax"], ["tanh_mul"], ["layer_norm"], ["mul_softmax", "layer_norm"]])
def test_planted_kernels_are_named_and_no_others(names: list[str], plant: Callable[..., None]) -> None:
    plant(*names)
    found = interfuse.bisect(model, given())
    assert not found.ok
    assert sorted(s.name for s in found.at_fault) == sorted(
        n.replace("mul_s", "mul+s").replace("h_m", "h+m") for n in names
    )
    assert all(s.share is not None and s.share > 1 for s in found.at_fault)
    assert json.loads(found.to_json())["at_fault"][0]["share"] > 1
    assert f"INTERFUSE_OFF={found.at_fault[0].name!r}" in str(found)


def test_a_region_of_a_second_graph_is_found(plant: Callable[..., None]) -> None:
    def broken_in_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w) * 3 + 1
        torch._dynamo.graph_break()
        return torch.softmax(y * 2.0, -1)

    plant("mul_softmax")
    found = interfuse.bisect(broken_in_two, given())
    assert [s.name for s in found.at_fault] == ["mul+softmax"]


def test_casts_inside_the_model_count_as_error_of_eager() -> None:
    """Leaving a rounding to a half type out moves the result towards float64, and is no fault."""

    def casts(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.bfloat16) * 2).float().sum(-1, keepdim=True) + x.half().float()

    found = interfuse.bisect(casts, (torch.randn(8, 40),))
    assert found.regions == 1
    assert found.ok


def test_a_few_codes_that_round_the_other_way_are_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = cpp.emit

    def scaled_by(text: str) -> None:
        monkeypatch.setattr(cpp, "emit", lambda *a: real(*a).replace("/ 127.0f", f"/ {text}"))
        torch._dynamo.reset()

    def codes(x: torch.Tensor) -> torch.Tensor:
        return (x / (x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8)

    x = torch.randn(64, 1024)
    scaled_by("127.0002f")
    assert interfuse.bisect(codes, (x,), rank=True).ranking[0].share not in (None, 0.0)
    assert interfuse.bisect(codes, (x,)).ok
    scaled_by("127.5f")
    (suspect,) = interfuse.bisect(codes, (x,), folder=tmp_path).at_fault
    assert run_script(suspect.reproducer) == 1
    scaled_by("127.0002f")
    assert run_script(suspect.reproducer) == 0


def test_arguments_that_the_model_writes_are_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cpp.emit
    monkeypatch.setattr(cpp, "emit", lambda *a: real(*a).replace("* 3.0f", "* 3.01f"))

    def writes(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.exp() * 3)
        return x[:0] + 1

    found = interfuse.bisect(writes, (torch.randn(8, 40),))
    assert [s.name for s in found.at_fault] == ["exp+mul+copy"]


def test_buffers_and_mutated_inputs_are_given_afresh() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            self.seen.add_(x.sum(0))
            return torch.softmax((x + self.seen).view(8, 64) * 2.0, -1)

    twin, x = Counter(), torch.randn(8, 64)
    before = x.clone()
    assert interfuse.bisect(twin, (x,)).ok
    assert torch.equal(x, before)


def run_script(path: str) -> int:
    """The exit status of a script that runs in this process, where the planted kernel is."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    return int(ended.value.code or 0)


def test_the_script_shows_the_error_and_its_absence(
    plant: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("mul_softmax")
    (suspect,) = interfuse.bisect(model, given(), folder=tmp_path / "found").at_fault
    text = Path(suspect.reproducer).read_text(encoding="utf-8")
    assert "torch.ops.aten._softmax.default(" in text
    assert list((tmp_path / "found").iterdir()) == [Path(suspect.reproducer)]
    assert run_script(suspect.reproducer) == 1
    assert "contract broken" in capsys.readouterr().out
    # A process of its own has the kernel as it should be.
    done = subprocess.run([sys.executable, suspect.reproducer], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("contract kept: rms error ")


def test_values_that_alone_show_the_error_are_saved_beside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel that is wrong for large values only: made-up ones do not show it."""
    real = cpp.emit
    wrong = "= linear * 2.0f + (linear > 50.0f ? 1.0f - linear * 0.0f : 0.0f * linear)"
    monkeypatch.setattr(cpp, "emit", lambda *a: real(*a).replace("= linear * 2.0f", wrong))
    (suspect,) = interfuse.bisect(lambda x, w: torch.relu((x @ w) * 2.0), given_large(), folder=tmp_path).at_fault
    assert Path(suspect.reproducer).with_suffix(".pt").exists()
    assert run_script(suspect.reproducer) == 1
    assert "contract broken" in capsys.readouterr().out


def given_large() -> tuple[torch.Tensor, torch.Tensor]:
    return 20 * torch.randn(8, 64), torch.randn(64, 64)


def test_a_model_that_changes_its_mind_is_refused() -> None:
    calls: list[int] = []

    def fickle(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 10 ** len(calls)

    with pytest.raises(ModelError, match="other results from run to run"):
        interfuse.bisect(fickle, (torch.randn(4),))


def test_a_folder_that_cannot_be_written_is_named(plant: Callable[..., None], tmp_path: Path) -> None:
    plant("tanh_mul")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="name another folder"):
        interfuse.bisect(model, given(), folder=tmp_path / "file")


def test_names_of_inputs_are_names_in_python() -> None:
    taken: list[str] = []
    for wish in ("weight", "model.weight", "in", "to", "1x", "v3", ""):
        taken.append(_fresh(wish, taken))
    assert taken == ["weight", "weight_2", "in_2", "to_2", "x_1x", "v3_2", "x"]
