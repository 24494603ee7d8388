"""Every subcommand on small models. In: TARGETs of each form. Out: the text, JSON and files that each promises."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.console import Console

import interfuse
from interfuse.base.knobs import override
from interfuse.cli.common import progress, write
from interfuse.emit import cpp
from interfuse.tune import bench, race
from interfuse.tune.bench import compare as fair
from tests.cli.sample import MODELS, invoke, work_in


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the models, a cache of its own, predictions instead of races."""
    work_in(tmp_path, monkeypatch, "cli_models", MODELS)
    with override(race=False):
        yield tmp_path


def test_run_says_what_comes_out_and_how_long_it_takes() -> None:
    result = invoke("run", "cli_models:net", "--rounds", "2")
    assert result.exit_code == 0, result.output
    output, first, later, regions = result.stdout.splitlines()
    assert output == "output 0: float32[8, 64] on cpu"
    assert first.startswith("first call: ")
    assert later.endswith("2 rounds)")
    assert "regions in 1 graph run kernels" in regions
    assert not regions.startswith("0 ")


def test_run_takes_a_file_and_keywords_and_leaves_regions_off() -> None:
    result = invoke("run", "cli_models.py:single", "--off", "tanh")
    assert result.exit_code == 0, result.output
    assert "float32[4, 5]" in result.stdout
    assert "0 of 1 region in" in result.stdout


def test_run_takes_an_exported_program(folder: Path) -> None:
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), (torch.ones(2, 4),))
    torch.export.save(program, folder / "small.pt2")
    result = invoke("run", "small.pt2")
    assert result.exit_code == 0, result.output
    assert "output 0: float32[2, 4] on cpu" in result.stdout


def test_bench_prints_a_table_and_writes_json(folder: Path) -> None:
    result = invoke("bench", "cli_models:net", "--rounds", "2", "--json", "out.json")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert [row[0] for row in rows[2:]] == ["eager", "interfuse"]
    assert rows[0][:1] == ["cli_models:net"]
    found = json.loads((folder / "out.json").read_text())
    assert found["schema"] == 1
    assert [m["name"] for m in found["measures"]] == ["eager", "interfuse"]
    assert all(m["median_ms"] > 0 and m["error_rms"] < 1e-5 for m in found["measures"])
    assert list(folder.glob(".out*")) == []


@pytest.mark.parametrize(
    ("arguments", "begins", "holds"),
    [
        (["--stage", "capture"], "graph inference on cpu", "aten._softmax.default"),
        (["--stage", "passes"], "# after simplify\n", "# after drop_rounds"),
        (["--stage", "plan"], "plan of inference on cpu", "- library: "),
        (
            ["--stage", "plan", "--region", "mul+softmax"],
            "plan of inference on cpu\n  region 2 mul+softmax",
            "row, res",
        ),
        ([], "kernel add_layer_norm: row, resident", "kernel mul_softmax"),
        (["--stage", "source", "--region", "mul+softmax"], "//", 'extern "C" void mul_softmax('),
        (["--stage", "program"], "program of inference on cpu: 3 regions", "launch mul_softmax"),
        (["--stop-after", "passes"], "# after simplify\n", "softmax"),
        (["--stop-after", "build"], "plan of inference on cpu", "kernel mul_softmax"),
    ],
)
def test_show_prints_every_stage(arguments: list[str], begins: str, holds: str) -> None:
    result = invoke("show", "cli_models:net", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(begins), result.stdout[:200]
    assert holds in result.stdout


def test_show_builds_nothing_that_it_does_not_need(folder: Path) -> None:
    assert invoke("show", "cli_models:net", "--stage", "source").exit_code == 0
    assert list((folder / "cache" / "kernels").iterdir()) == []


def test_bisect_of_a_right_model_and_of_a_planted_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("bisect", "cli_models:net", "--all")
    assert result.exit_code == 0, result.output
    assert "keeps the accuracy contract" in result.stdout
    assert "regions, worst first:" in result.stdout
    real = cpp.emit
    monkeypatch.setattr(cpp, "emit", lambda *a: real(*a).replace("* 2.0f", "* 2.01f"))
    result = invoke("bisect", "cli_models:net", "--out", "found", "--json", "out.json")
    assert result.exit_code == 1, result.output
    (script,) = (folder / "found").iterdir()
    assert "at fault: inference 2:mul+softmax" in result.stdout
    assert f"python found/{script.name}" in result.stdout
    assert json.loads((folder / "out.json").read_text())["at_fault"][0]["name"] == "mul+softmax"


def test_the_cache_is_listed_measured_checked_and_cleared(folder: Path) -> None:
    assert "no kernels in" in invoke("cache", "list").stdout
    assert "0 kernels, 0 race results" in invoke("cache", "size").stdout
    assert not (folder / "cache").exists()
    with override(race=True):
        assert invoke("run", "cli_models:net").exit_code == 0
    names = [line.split()[0] for line in invoke("cache", "list").stdout.splitlines()]
    assert names == ["kernel", "add_layer_norm", "interfuse_burst", "mul_softmax"]
    assert ": 3 kernels, " in invoke("cache", "size").stdout
    assert invoke("cache", "verify").stdout.startswith("3 kernels and ")
    assert invoke("cache", "clear").stdout.startswith("removed 3 kernels and ")
    assert ": 0 kernels, 0 race results" in invoke("cache", "size").stdout


def test_verify_drops_what_is_damaged(folder: Path) -> None:
    assert invoke("run", "cli_models:net").exit_code == 0
    library = next((folder / "cache" / "kernels").glob("*/mul_softmax.so"))
    library.unlink()  # the old file is loaded in this process and must stay whole
    library.write_bytes(b"not a library")
    (folder / "cache" / "results.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 40)
    assert "run interfuse cache verify" in (result := invoke("cache", "size")).stderr
    assert result.exit_code == 1
    result = invoke("cache", "verify")
    assert result.exit_code == 1
    kernel, results = result.stderr.splitlines()
    assert kernel.startswith(f"interfuse: note: kernel {library.parent.name[:12]} was damaged")
    assert "set aside as results.sqlite.damaged" in results
    assert invoke("cache", "verify").exit_code == 0
    assert invoke("run", "cli_models:net").exit_code == 0


def test_an_interrupt_keeps_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the second race: status 130, one sentence, and the first result is in the store."""
    calls: list[int] = []

    def compare(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fair(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(race, "compare", compare)
    monkeypatch.setattr(bench, "UNSURE", 1e9)  # keep results of a busy machine too
    with override(race=True):
        result = invoke("run", "cli_models:net")
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [line for line in result.stderr.splitlines() if "interrupted" in line]
    with sqlite3.connect(folder / "cache" / "results.sqlite") as db:
        keys = [key for (key,) in db.execute("SELECT key FROM results")]
    # Beside it: how far off its predictions were.
    assert len([key for key in keys if not key.startswith("predicted ")]) == 1
    assert [p.name for p in (folder / "cache").iterdir() if p.name.startswith("making-")] == []


def test_progress_shows_the_stage_on_a_terminal_and_nothing_elsewhere() -> None:
    seen = io.StringIO()
    with progress(Console(file=seen, force_terminal=True, width=80)) as watch:
        watch("race", 3, 12)
    assert "race" in seen.getvalue()
    assert "3/12" in seen.getvalue()
    with progress(Console(file=seen, force_terminal=True, width=80)) as watch:
        watch("race", 3, 12)
        watch("program")
    assert "/12" not in seen.getvalue().rpartition("program")[2]
    plain = io.StringIO()
    with progress(Console(file=plain, width=80)) as watch:
        watch("race", 3, 12)
    assert plain.getvalue() == ""


def test_the_races_and_the_timing_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    case = interfuse.load("cli_models:net")
    with override(race=True):
        interfuse.once(
            case.model, case.inputs, rounds=2, watch=lambda s, done=0, total=0: told.append((s, done, total))
        )
    stages = [s for s, _, total in told if not total]
    assert stages == ["capture", "passes", "plan", "build", "race", "program"]
    assert [t for t in told if t[0] == "race" and t[2]] == [("race", k, 3) for k in range(3)]
    assert ("timing", 1, 2) in told


def test_closing_the_pipe_early_is_no_error(folder: Path) -> None:
    status = os.system(f"{sys.executable} -m interfuse show cli_models:net --stage source 2>err | head -1 >/dev/null")
    assert status == 0
    assert "Traceback" not in (folder / "err").read_text()


def test_json_goes_through_links_and_into_pipes(folder: Path) -> None:
    """A device or a pipe is written to: whoever may replace files in its folder must not lose it."""
    (folder / "link.json").symlink_to("kept.json")
    write(folder / "link.json", "[1]")
    assert (folder / "link.json").is_symlink() and (folder / "kept.json").read_text() == "[1]\n"
    os.mkfifo(folder / "pipe")
    with ThreadPoolExecutor(1) as other:
        read = other.submit((folder / "pipe").read_text)
        write(folder / "pipe", "[2]")
        assert read.result() == "[2]\n" and (folder / "pipe").is_fifo()
    assert not list(folder.glob(".*"))
