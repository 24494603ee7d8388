"""Hardware counters. In: what ncu said once, an ncu that only repeats it. Out: bytes in ledgers, or a sentence."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interfuse.base.errors import CounterError
from interfuse.base.knobs import current, override
from interfuse.device import ncu
from interfuse.device.table import find
from interfuse.driver import counters
from interfuse.driver.begin import begin
from interfuse.driver.compiler import Compiled
from interfuse.driver.counted import run_marked
from interfuse.driver.counters import MARK, count, parse
from interfuse.report.ledger import ledger
from interfuse.tune.choice import chosen_so

SAID = (Path(__file__).parent / "counters.csv").read_text(encoding="utf-8")
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("empty_cache")


def _function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + 1, -1)


def _compiled(stop: str = "") -> list[Compiled]:
    with torch.no_grad():
        return begin(_function, (torch.randn(16, 256),), {}, {}, stop=stop).backend.compiled


def _elsewhere(compiled: list[Compiled]) -> list[Compiled]:
    """The same as if it had been compiled for an H200."""
    for made in compiled:
        assert made.stages.device is not None
        made.stages.device = replace(made.stages.device, torch_device=torch.device("cuda:0"), profile=find("H200"))
    return compiled


def _ncu(folder: Path, says: str, status: int = 0, tried: object = None) -> str:
    """An ncu that writes `says` to its log, and `tried` to where the process that it does not start would."""
    program = folder / "ncu"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\na = sys.argv\n"
        f"open(a[a.index('--log-file') + 1], 'w').write({says!r})\n"
        f"tried = {tried!r}\nif tried is not None: open(a[-3], 'w').write(json.dumps(tried))\n"
        f"sys.exit({status})\n"
    )
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_what_was_recorded_is_read() -> None:
    assert set(parse(SAID)) == {0, 1}
    read, written = parse(SAID)[0]
    assert read == 134_227_200
    assert written == 109_774_592 + 24_443_136  # the second figure while the cache filled with other data
    assert parse("==ERROR== nothing\n") == {}


@pytest.mark.usefixtures("cuda")
def test_counters_stand_in_the_ledger_beside_counted_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _elsewhere(_compiled())
    (region,) = (e for e in made[0].record.of("region"))
    tried = [[0, region.subject, c["label"]] for c in reversed(region.facts["candidates"])]
    monkeypatch.setenv("PATH", str(tmp_path))
    _ncu(tmp_path, SAID, tried=tried)
    count(made, "a:b", current())
    whole = ledger([made[0].record])
    assert whole.totals.dram_bytes.after == sum(parse(SAID)[1])
    assert whole.regions[0].library.dram_read == parse(SAID)[0][0]
    assert "crossed memory" in str(whole)
    assert "counters MiB" in str(whole)
    shown = whole.region(whole.regions[0].name)
    assert "counters: read 64.0, wrote 64.0 MiB" in shown


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("says", "status", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1, "run as root"),
        ("==ERROR== The application returned an error code (1).\n", 1, "returned an error code"),
        ("", 1, "ncu said nothing"),
    ],
)
def test_what_ncu_will_not_do_is_one_sentence(tmp_path: Path, says: str, status: int, sentence: str) -> None:
    with override(ncu=_ncu(tmp_path, says, status)), pytest.raises(CounterError, match=sentence) as raised:
        count(_elsewhere(_compiled()), "a:b", current())
    assert str(raised.value).endswith(".")


@pytest.mark.usefixtures("cuda")
def test_a_machine_without_ncu_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "USUAL_PLACE", tmp_path / "ncu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CounterError, match="install Nsight Compute"):
        count(_elsewhere(_compiled()), "a:b", current())


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("why", [subprocess.TimeoutExpired, KeyboardInterrupt])
def test_the_watched_process_ends_with_the_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: type[BaseException]
) -> None:
    """ncu begins the model's process and is all that we know of it: both are gone before the error is told."""
    begun = tmp_path / "begun"
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {begun}\nwait\n")
    program.chmod(0o755)
    wait = subprocess.Popen.communicate

    def communicate(self: subprocess.Popen[str], input: None = None, timeout: float | None = None) -> object:
        if timeout != counters.SECONDS:
            return wait(self, input, timeout)
        while not begun.exists() or not begun.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt if why is KeyboardInterrupt else subprocess.TimeoutExpired("ncu", 900)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with override(ncu=str(program)), pytest.raises((CounterError, KeyboardInterrupt)):
        count(_elsewhere(_compiled()), "a:b", current())
    child = int(begun.read_text())
    for _ in range(500):
        if not _runs(child):
            return
        time.sleep(0.01)
    raise AssertionError("the process that ncu began still runs")


def _runs(process: int) -> bool:
    """True until it has ended, be it that nobody has asked for its status yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_model_on_the_cpu_has_no_counters() -> None:
    with pytest.raises(CounterError, match="only a model on an NVIDIA GPU"):
        count(_compiled(), "a:b", current())


def test_every_way_of_a_region_runs_between_marks() -> None:
    made = _compiled("build")
    names: list[str] = []
    order: list[str] = []

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        names.append(name)
        order.append("begins")
        yield
        order.append("ends")

    tried = run_marked(made, lambda: order.append("fills"), mark)
    plan = made[0].stages.plans["build"]
    assert tried == [(0, "0:" + plan.regions[0].name, c.label) for c in plan.regions[0].candidates]
    assert names[0] == "interfuse begins"
    assert MARK.fullmatch(names[0]) is None
    assert [MARK.fullmatch(n).groups() for n in names[1:]] == [  # type: ignore[union-attr]
        (kind, str(k)) for k in range(len(tried)) for kind in ("region", "after")
    ]
    assert order[:3] == ["begins", "fills", "ends"]
    assert order[3:9] == ["fills", "begins", "ends", "begins", "fills", "ends"]


def test_the_choices_of_a_compile_can_be_made_again(tmp_path: Path) -> None:
    made = _compiled()[0]
    assert made.plan is not None
    assert made.stages.device is not None
    planned, key = made.stages.plans["plan"], made.stages.device.key()
    other = replace(made.plan, regions=tuple(replace(r, chosen=len(r.candidates) - 1) for r in made.plan.regions))
    found = chosen_so(planned, other, key, current())
    assert [c.candidate for c in found.values()] == [r.library.label for r in planned.regions]
