"""The command line. In: arguments. Out: the right text, exit status, and one sentence where something is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import interfuse
from interfuse.base.errors import DeviceError
from interfuse.base.knobs import Knobs
from interfuse.cli import doctor as doctor_module
from interfuse.cli.doctor import Finding, examine
from interfuse.cli.main import app
from interfuse.report.ledger import Ledger, ledger
from tests.report.sample import compiled, measured


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the compile by a sample ledger; the list collects what explain was called with."""
    calls: list[dict[str, Any]] = []

    def explain(model: Any, inputs: Any, **options: Any) -> Ledger:
        options.pop("watch")("capture")
        calls.append({"model": model, "inputs": inputs, **options})
        return ledger([compiled(), measured()])

    monkeypatch.setitem(vars(interfuse), "explain", explain)
    return calls


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory with functions that return models, well and badly."""
    (tmp_path / "sample_models.py").write_text(
        "def good(): return abs, (1,)\ndef bare(): return abs, 1, {'a': 2}\ndef bad(): return 5\nvalue = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sample_models", raising=False)
    return "sample_models"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


def sentence(result: Result) -> str:
    """The one line on stderr."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_explain_prints_the_ledger(models: str, told: list[dict[str, Any]]) -> None:
    result = run("explain", f"{models}:good", "--peer", "inductor")
    assert result.exit_code == 0, result.output
    assert [line.rstrip() for line in result.stdout.splitlines()] == str(ledger([compiled(), measured()])).splitlines()
    assert told[0]["model"] is abs
    assert (told[0]["inputs"], told[0]["kwargs"]) == ((1,), {})
    assert (told[0]["peers"], told[0]["measure"]) == (["inductor"], True)


def test_explain_takes_one_input_and_keywords(models: str, told: list[dict[str, Any]]) -> None:
    assert run("explain", f"{models}:bare", "--no-measure").exit_code == 0
    assert (told[0]["inputs"], told[0]["kwargs"], told[0]["measure"]) == ((1,), {"a": 2}, False)


def test_explain_writes_json(models: str, told: list[dict[str, Any]], tmp_path: Path) -> None:
    assert run("explain", f"{models}:good", "--json", "out.json").exit_code == 0
    assert json.loads((tmp_path / "out.json").read_text())["schema"] == 1


def test_explain_shows_one_region(models: str, told: list[dict[str, Any]]) -> None:
    result = run("explain", f"{models}:good", "--region", "add + layer_norm")
    assert result.stdout.strip().startswith("0:add + layer_norm, 2:add + layer_norm: fused: row")
    assert "matmul[b]" not in result.stdout


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing", "names no model: write package.module:function"),
        (":f", "names no model"),
        ("absent.py:f", "there is no file absent.py"),
        ("absent.pt2", "there is no file absent.pt2"),
        ("no_such_module:f", "cannot be imported"),
        ("sample_models:absent", "has no function absent"),
        ("sample_models:value", "has no function value"),
        ("sample_models:bad", "must return \\(model, inputs\\)"),
    ],
)
def test_bad_targets_get_one_sentence_and_status_2(models: str, target: str, says: str) -> None:
    result = run("explain", target)
    assert result.exit_code == 2
    assert re.search(says, sentence(result))


def test_a_failure_gets_one_sentence_and_status_1(
    models: str, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no region 'x'" in sentence(result := run("explain", f"{models}:good", "--region", "x"))
    assert result.exit_code == 2
    assert "cannot be written" in sentence(result := run("explain", f"{models}:good", "--json", "absent/out.json"))
    assert result.exit_code == 2

    def fails(*_: Any, **__: Any) -> Ledger:
        raise DeviceError("there is no such device; use cpu.")

    monkeypatch.setitem(vars(interfuse), "explain", fails)
    assert sentence(result := run("explain", f"{models}:good")).endswith("there is no such device; use cpu.")
    assert result.exit_code == 1


def test_doctor_says_what_is_here(tmp_path: Path) -> None:
    found = {f.subject: f for f in examine(Knobs(cache_dir=tmp_path / "new" / "cache"))}
    assert set(found) - {"tile registers"} == {
        "Interfuse",
        "Python",
        "PyTorch",
        "C++ compiler",
        "Triton",
        "GPU",
        "cache",
        "cpu",
    }
    assert found["PyTorch"].state == found["cache"].state == "ok"


def test_doctor_measures_the_devices_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setitem(vars(interfuse), "probe", lambda watch: done.append("probe"))
    monkeypatch.setattr(doctor_module, "examine", lambda knobs: done.append("examine") or [])
    assert run("doctor").exit_code == run("doctor", "--probe").exit_code == 0
    assert done == ["examine", "probe", "examine"]


@pytest.mark.parametrize(("measured", "state"), [(True, "ok"), (False, "note")])
def test_doctor_shows_what_is_known_of_a_device(monkeypatch: pytest.MonkeyPatch, measured: bool, state: str) -> None:
    monkeypatch.setattr(doctor_module, "_run", lambda *command: (True, json.dumps([["cpu", "a CPU", measured]])))
    (found,) = doctor_module._profiles()
    assert (found.subject, found.found, found.state) == ("cpu", "a CPU", state)
    assert ("--probe" in found.remedy) is not measured


def test_doctor_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    knobs = Knobs(cxx="no-such-compiler", cache_dir=tmp_path / "file" / "cache")
    compiler, cache = doctor_module._compiler(knobs), doctor_module._cache(knobs)
    assert (compiler.state, cache.state) == ("missing", "missing")
    assert "no-such-compiler" in compiler.found
    assert "apt-get install g++" in compiler.remedy
    assert doctor_module._compiler(Knobs(cxx="false")).found == "false ends with status 1 and says nothing"
    assert "INTERFUSE_CACHE" in cache.found
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "results.sqlite").write_bytes(b"no database" * 100)
    damaged = doctor_module._cache(Knobs(cache_dir=tmp_path / "damaged"))
    assert damaged.state == "missing"
    assert "run interfuse cache verify" in damaged.found


def test_doctor_says_where_memory_counters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_gpu", lambda: Finding("GPU", "ok", "a GPU"))
    monkeypatch.setattr(doctor_module, "_run", lambda *command: (False, ""))
    program = tmp_path / "my-ncu"
    program.write_text("")
    program.chmod(0o755)
    there, absent = (examine(Knobs(ncu=name, cache=False))[6] for name in (str(program), "no-such-ncu"))
    assert (there.subject, there.state, there.found) == ("memory counters", "ok", str(program))
    assert (absent.state, absent.found) == ("note", "there is no no-such-ncu")
    assert "INTERFUSE_NCU" in absent.remedy
    monkeypatch.setattr(doctor_module, "_gpu", lambda: Finding("GPU", "note", "none"))
    assert "memory counters" not in [f.subject for f in examine(Knobs(cache=False))]


def test_doctor_says_what_tile_registers_are_for() -> None:
    assert [doctor_module._tiles(Knobs(tiles=on)).state for on in (False, True)] == ["note", "ok"]


@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("note", 0), ("missing", 1)])
def test_doctors_status_says_whether_something_needed_is_missing(
    monkeypatch: pytest.MonkeyPatch, state: str, status: int
) -> None:
    monkeypatch.setattr(doctor_module, "examine", lambda knobs: [Finding("thing", state, "seen", "do this")])
    result = run("doctor")
    assert result.exit_code == status
    assert result.stdout.split() == [state, "thing", "seen:", "do", "this"]


def test_a_bad_knob_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERFUSE_WORKERS", "many")
    result = run("doctor")
    assert result.exit_code == 2
    assert "INTERFUSE_WORKERS" in sentence(result)
