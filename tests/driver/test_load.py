"""TARGETs. In: modules, files, exported programs. Out: a Case; an error that says what to do for anything else."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.driver.exact import exact_outputs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "beside.py").write_text("scale = 3\n")
    (tmp_path / "made.py").write_text(
        "import torch\nimport beside\n"
        "def one(): return abs, torch.ones(2)\n"
        "def all(): return (lambda x, k: x * k * beside.scale), [torch.ones(2)], {'k': 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("made", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("place", ["made", "made.py", "./made.py"])
def test_a_module_or_a_file(place: str) -> None:
    case = interfuse.load(f"{place}:all")
    assert case.name == f"{place}:all"
    assert case.device == "cpu"
    assert torch.equal(case.model(*case.inputs, **case.kwargs), torch.full((2,), 6.0))
    (x,) = interfuse.load(f"{place}:one").inputs
    assert torch.equal(x, torch.ones(2))


def test_a_file_in_another_folder_finds_what_lies_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert interfuse.load(f"{folder / 'made.py'}:all").kwargs == {"k": 2}


def test_an_exported_program_with_keywords(folder: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, k: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * k

    given = (torch.ones(2, 3), {"k": torch.full((3,), 2.0)})
    torch.export.save(torch.export.export(Scaled(), given[:1], given[1]), folder / "scaled.pt2")
    case = interfuse.load("scaled.pt2")
    assert torch.equal(case.model(*case.inputs, **case.kwargs), Scaled()(given[0], **given[1]))


def test_an_exported_program_without_inputs(folder: Path) -> None:
    program = torch.export.export(torch.nn.Tanh(), (torch.ones(2),))
    program._example_inputs = None
    torch.export.save(program, folder / "bare.pt2")
    with pytest.raises(OptionError, match="holds no example inputs: export it with them"):
        interfuse.load("bare.pt2")


def test_an_exported_program_runs_in_float64_without_a_word() -> None:
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    exported = torch.export.export(model, (x,)).module()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exact_outputs(exported, (x,), {})
    assert found is not None
    torch.testing.assert_close(found[0], copy.deepcopy(model).double()(x.double()))


def test_a_file_that_fails_leaves_no_module_behind(folder: Path) -> None:
    (folder / "fails.py").write_text("raise KeyError('x')\n")
    before = set(sys.modules)
    with pytest.raises(ModelError, match="KeyError"):
        interfuse.load("fails.py:f")
    assert not [name for name in set(sys.modules) - before if name.startswith("fails")]
