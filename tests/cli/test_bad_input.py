"""Bad input. In: each thing that can be wrong. Out: one sentence with a remedy, the status, nothing half-written."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from tests.cli.sample import MODELS, invoke, sentence, work_in


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the models and a cache of its own."""
    (tmp_path / "cli_broken.py").write_text("def f(:\n")
    (tmp_path / "cli_fails.py").write_text("raise RuntimeError('no such weights')\n")
    (tmp_path / "broken.pt2").write_bytes(b"PK\x03\x04 not an archive")
    torch.export.save(torch.export.export(torch.nn.Tanh(), (torch.ones(2),)), tmp_path / "whole.pt2")
    whole = (tmp_path / "whole.pt2").read_bytes()
    (tmp_path / "truncated.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt2").write_text("no archive at all")
    with zipfile.ZipFile(tmp_path / "other_archive.pt2", "w") as archive:
        archive.writestr("hello", "world")
    (tmp_path / "data.txt").write_text("no program")
    for name in ("folder.pt2", "folder.py"):
        (tmp_path / name).mkdir()
    work_in(tmp_path, monkeypatch, "cli_models", MODELS)
    for name in ("cli_broken", "cli_fails"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("INTERFUSE_RACE", "0")
    return tmp_path


BAD = (
    (["run"], 2, "Missing argument 'TARGET'; interfuse run --help"),
    (["nothing"], 2, "No such command 'nothing'; interfuse --help"),
    (["run", "cli_models:net", "--fast"], 2, "No such option: --fast"),
    (["run", "cli_models:net", "--rounds", "0"], 2, "Invalid value for '--rounds'"),
    (["bench", "cli_models:net", "--peer", "gcc"], 2, "there is no peer 'gcc'; the peers are inductor"),
    (["explain", "cli_models:net", "--peer", "gcc"], 2, "there is no peer 'gcc'"),
    (["show", "cli_models:net", "--stage", "assembly"], 2, "choose one of capture, passes, plan"),
    (["show", "cli_models:net", "--stop-after", "x"], 2, "choose one of capture, passes, plan"),
    (["show", "cli_models:net", "--stage", "program", "--stop-after", "plan"], 2, "after plan; stop after program"),
    (["show", "cli_models:net", "--region", "x"], 2, "the regions are: add\\+layer_norm, linear, mul\\+softmax"),
    (["run", "cli_models:net", "--off", "gelu"], 2, "no region 'gelu' to switch off; the regions are: add"),
    (["run", "cli_models"], 2, "names no model: write package.module:function, path/file.py:function"),
    (["run", "no_such_package.models:net"], 2, "cannot be imported .* run from the folder that holds it"),
    (["run", "cli_models:absent"], 2, "has no function absent: check the name"),
    (["run", "absent.py:net"], 2, "there is no file absent.py"),
    (["run", "cli_models:five"], 2, "must return \\(model, inputs\\)"),
    (["run", "cli_models:bad_kwargs"], 2, "keyword arguments as a dictionary, not int"),
    (["run", "cli_models:raises"], 1, "raised ValueError: no weights here; call it from Python"),
    (["run", "cli_models:leaves"], 1, "raised SystemExit: 3; call it from Python"),
    (["bench", "cli_models:net", "--rounds", "1", "--json", "."], 2, "\\. cannot be written .* name another file"),
    (["run", "cli_broken:f"], 1, "importing cli_broken raised SyntaxError"),
    (["run", "cli_fails.py:f"], 1, "running cli_fails.py raised RuntimeError: no such weights; run it with Python"),
    (["explain", "cli_models:wrong_shapes"], 1, "raised RuntimeError: Given normalized.*; call it uncompiled to see"),
    (["bisect", "cli_models:wrong_shapes"], 1, "PyTorch cannot run the model on these inputs"),
    (["run", "cli_models:untraceable"], 1, "running the model raised .* see whether it runs with INTERFUSE_DISABLE=1"),
    (["explain", "cli_models:too_large"], 1, "raised RuntimeError: .*can't allocate memory.*; call it uncompiled"),
    (["run", "broken.pt2"], 2, "write it again with torch.export.save"),
    (["run", "truncated.pt2"], 2, "truncated.pt2 is not a program that this PyTorch can load .*: write it again"),
    (["explain", "text.pt2"], 2, "text.pt2 is not a program that this PyTorch can load .*: write it again"),
    (["show", "other_archive.pt2"], 2, "other_archive.pt2 is not a program that this PyTorch can load"),
    (["run", "folder.pt2"], 2, "folder.pt2 is a folder: check the path\\."),
    (["run", "folder.py:build"], 2, "folder.py is a folder: check the path before the colon\\."),
    (["run", "text.pt2:forward"], 2, "text.pt2 is no .py file: write .*, path/file.py:function or path/file.pt2\\."),
    (["run", "data.txt:f"], 2, "data.txt is no .py file: write package.module:function"),
    (["bisect", "cli_models:raises", "--out", "text.pt2/folder"], 2, "text.pt2/folder cannot be written .*: name ano"),
    (["bisect", "cli_models:raises", "--out", "text.pt2"], 2, "text.pt2 cannot be written .*: name another folder"),
    (["bisect", "cli_models:raises", "--out", "new/folder"], 1, "raised ValueError"),
    (["run", "absent.pt2"], 2, "there is no file absent.pt2"),
    (["bench", "cli_models:net", "--rounds", "1", "--json", "absent/out.json"], 2, "name another file"),
    (["explain", "cli_models:net", "--no-measure", "--peer", "inductor"], 2, "name none, or leave measuring on"),
    (["whatif", "cli_models:net", "--gpu", "Z80"], 2, "no GPU 'Z80' in the table; take one of A100, .*MI300X\\."),
    (["whatif", "cli_models:net", "--gpu", "CPU avx2"], 2, "CPU avx2 is no GPU: name one of A100"),
    (["whatif", "cli_models:net", "--gpu", " , "], 2, "no GPU is given: name one or more, as in H100,B200\\."),
    (["tune", "cli_models:net", "--budget", "-1"], 2, "Invalid value for '--budget'"),
    (["tune", "cli_models:net", "--lock", "text.pt2"], 2, "the lock file text.pt2 is no JSON"),
)


@pytest.mark.parametrize(("arguments", "status", "says"), BAD, ids=[" ".join(b[0]) for b in BAD])
def test_bad_arguments_are_one_sentence(arguments: list[str], status: int, says: str, folder: Path) -> None:
    before = {p.name for p in folder.iterdir()}
    result = invoke(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert re.search(says, text := sentence(result)), text
    assert {p.name for p in folder.iterdir()} - before <= {"cache", "__pycache__"}


@pytest.mark.parametrize("option", ["explain --json", "bench --json", "bisect --json", "whatif --json", "tune --lock"])
def test_a_file_that_cannot_be_written_is_told_before_any_work(option: str, folder: Path) -> None:
    command, flag = option.split()
    more = ("--gpu", "H100") if command == "whatif" else ()
    result = invoke(command, "cli_models:raises", flag, "absent/file", *more)
    assert result.exit_code == 2
    assert "absent/file cannot be written (No such file or directory): name another file." in sentence(result)
    assert invoke(command, "cli_models:raises", flag, "file", *more).exit_code == 1
    assert not (folder / "file").exists()


def test_a_misspelt_setting_is_told() -> None:
    result = invoke("cache", "size", INTERFUSE_RCAE="0", INTERFUSE_NOTHING_LIKE_IT="1")
    assert result.exit_code == 0
    assert "note: INTERFUSE_RCAE is set and is no setting: INTERFUSE_RACE may be meant." in result.stderr
    assert "note: INTERFUSE_NOTHING_LIKE_IT is set and is no setting: docs/knobs.md lists" in result.stderr
    assert invoke("cache", "size").stderr == ""


def test_the_kill_switch_is_told_where_nothing_is_compiled() -> None:
    result = invoke("run", "cli_models:net", INTERFUSE_DISABLE="1")
    assert result.exit_code == 0
    assert "INTERFUSE_DISABLE is set" in result.stderr


@pytest.mark.parametrize("command", ["run", "explain", "tune", "bisect"])
def test_a_model_of_which_no_graph_is_captured_is_told_of(command: str) -> None:
    result = invoke(command, "cli_models:recurrent")
    assert result.exit_code == 0, result.output
    assert "PyTorch captured no graph of this model" in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["run", "explain", "bench", "show", "bisect"])
def test_without_a_compiler_every_command_says_how_to_get_one(command: str) -> None:
    result = invoke(command, "cli_models:net", INTERFUSE_CXX="no-such-compiler")
    assert result.exit_code == 1
    assert "apt-get install g++" in sentence(result)
    assert "INTERFUSE_CXX" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["run", "cli_models:net"], ["cache", "size"], ["cache", "list"], ["cache", "clear"], ["cache", "verify"]],
)
def test_a_cache_that_cannot_be_used_is_named(arguments: list[str], folder: Path) -> None:
    (folder / "file").write_text("kept")
    result = invoke(*arguments, INTERFUSE_CACHE=str(folder / "file" / "cache"))
    assert result.exit_code == 1
    assert "INTERFUSE_CACHE" in sentence(result)
    assert (folder / "file").read_text() == "kept"


@pytest.mark.parametrize("command", ["run cli_models:net", "doctor", "cache size", "cache clear"])
def test_every_command_tries_whether_a_cache_can_be_made(command: str) -> None:
    """What permissions say of /proc is that root may write there."""
    result = invoke(*command.split(), INTERFUSE_CACHE="/proc/nope")
    assert result.exit_code == 1
    assert "The cache folder /proc/nope cannot be used: give a writable one by INTERFUSE_CACHE" in result.output


def test_trying_whether_a_cache_can_be_made_makes_none(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert invoke("cache", "size", INTERFUSE_CACHE=str(folder / "new" / "cache")).exit_code == 0
    assert sorted(folder.iterdir()) == before


def test_a_cache_that_others_can_write_is_refused(folder: Path) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    result = invoke("cache", "verify", INTERFUSE_CACHE=str(folder / "open"))
    assert result.exit_code == 1
    assert "chmod go-w" in sentence(result)


def test_a_cache_that_is_switched_off_is_empty() -> None:
    result = invoke("cache", "size", INTERFUSE_USE_CACHE="0")
    assert result.exit_code == 0
    assert "0 kernels" in result.stdout


@pytest.mark.parametrize("command", [["run", "cli_models:net"], ["doctor"], ["cache", "size"]])
def test_a_bad_knob_is_one_sentence(command: list[str]) -> None:
    result = invoke(*command, INTERFUSE_WORKERS="many")
    assert result.exit_code == 2
    assert "INTERFUSE_WORKERS='many'" in sentence(result)


def process(*arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, which hears SIGINT even where this one was started without (by nohup)."""
    return subprocess.Popen(
        [sys.executable, "-m", "interfuse", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_process_ends_with_the_sentence_and_the_status() -> None:
    running = process("run", "broken.pt2")
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert "torch.export.save" in err


def test_a_process_that_is_interrupted_ends_with_130(folder: Path) -> None:
    (folder / "cli_waits.py").write_text(
        "import pathlib, time\ndef waits():\n    pathlib.Path('ready').touch()\n    time.sleep(120)\n"
    )
    running = process("run", "cli_waits:waits")
    for _ in range(1200):
        if (folder / "ready").exists() or running.poll() is not None:
            break
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, "")
    assert len(err.strip().splitlines()) == 1
    assert "interrupted" in err


def test_an_interrupt_while_packages_are_imported_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    for package in ("rich", "typer", "numpy"):
        running = process("explain", "cli_models:net")
        assert running.stderr is not None
        assert any(line.strip().endswith(package) for line in running.stderr), f"{package} was never imported"
        os.kill(running.pid, signal.SIGINT)
        said = [line for line in running.stderr.read().splitlines() if not line.startswith("import time:")]
        assert running.wait(timeout=120) == 130
        assert said == ["interfuse: interrupted before anything was begun."], package


def test_help_imports_no_torch() -> None:
    run = [sys.executable, "-X", "importtime", "-m", "interfuse", "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "interfuse.cli.tune" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def notes(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("interfuse: note: ")]


def test_a_compiler_that_fails_is_a_note_and_the_library_runs(folder: Path) -> None:
    compiler = folder / "failing"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-o*) echo "cc1plus: gone" >&2; exit 1;; *) exec g++ "$@";; esac\n')
    compiler.chmod(0o755)
    result = invoke("run", "cli_models:net", INTERFUSE_CXX=str(compiler))
    assert result.exit_code == 0
    (said,) = notes(result.stderr)
    assert "kernels could not be built, so the library runs in their place" in said
    assert "cc1plus: gone" in said


def test_a_damaged_cache_is_mended_and_said_so(folder: Path) -> None:
    assert invoke("run", "cli_models:net", INTERFUSE_RACE="1").exit_code == 0
    libraries = list((folder / "cache").rglob("*.so"))
    assert libraries
    for library in libraries:
        half = library.read_bytes()[:100]
        library.unlink()  # this process has the old one mapped
        library.write_bytes(half)
        library.chmod(0o700)
    (folder / "cache" / "results.sqlite").write_bytes(b"no database" * 300)
    result = invoke("run", "cli_models:net", INTERFUSE_RACE="1")
    assert result.exit_code == 0
    (said,) = notes(result.stderr)
    assert re.search(r"results\.sqlite, was damaged \(.*\); set aside as .* and begun again\.", said)
    assert invoke("cache", "verify").exit_code == 0


def test_a_name_to_switch_off_in_the_environment_is_a_note() -> None:
    result = invoke("run", "cli_models:net", INTERFUSE_OFF="nonsuch")
    assert result.exit_code == 0
    assert "no region 'nonsuch' to switch off; the regions are" in notes(result.stderr)[0]


def test_a_plain_terminal_and_a_closed_one_do_not_matter(folder: Path) -> None:
    command = [sys.executable, "-m", "interfuse", "explain", "cli_models:net", "--no-measure"]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "add+layer_norm" in done.stdout, done.stderr
    shell = f"{shlex.join(command)} >&-"
    done = subprocess.run(["sh", "-c", shell], env=dict(os.environ), stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
