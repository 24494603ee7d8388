"""Processes that measure shares. In: small programs. Out: their lines and errors, and none that stays behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.fit_shares import Share, lines

WAITS = "from bench.fit_shares import end_with_input as e; import os, time; e(); print(os.getpid(), flush=True); "
WAITS += "time.sleep(60)"
HOLDS = f"""
import sys, time
from pathlib import Path
from bench.fit_shares import Share
with Share([sys.executable, "-c", {WAITS!r}], Path(sys.argv[1])) as share:
    print(next(share.lines()), flush=True)
    time.sleep(60)
"""


def _python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def _ended(process: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_lines_of_all_come_and_a_failure_is_one_sentence(tmp_path: Path) -> None:
    with (
        Share(_python("print(1); print(2)"), tmp_path / "a") as good,
        Share(_python("print(3, flush=True); raise ValueError('no such case')"), tmp_path / "b") as bad,
        Share(_python("import os; os._exit(7)"), tmp_path / "c") as silent,
    ):
        assert sorted(int(line) for line in lines([good, bad, silent])) == [1, 2, 3]
        said = [good.failed(), bad.failed(), silent.failed()]
    assert said == ["", "ValueError: no such case", "exit status 7"]


def test_processes_end_with_the_block_that_they_serve(tmp_path: Path) -> None:
    with Share(_python(WAITS), tmp_path / "errors") as share:
        process = int(next(share.lines()))
        assert Path(f"/proc/{process}").exists()
    assert _ended(process)


def test_processes_end_without_a_word_where_who_began_them_is_killed(tmp_path: Path) -> None:
    command = [*_python(HOLDS), str(tmp_path / "errors")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        parent.kill()
    assert _ended(process) and (tmp_path / "errors").read_text() == ""
