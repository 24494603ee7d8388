"""Triton kernels under the interpreter. In: interpreted_values.py. Out: its tests pass, in processes of their own.

TRITON_INTERPRET must be set before Triton is first imported, so this process cannot run them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HALF = "test_one_ or test_parts"
"""Names in about half of the tests by time. The rest is what they do not name, so every test is in one of both."""


@pytest.mark.parametrize("names", (HALF, f"not ({HALF})"))
def test_values_under_the_interpreter(names: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        names,
        str(HERE / "interpreted_values.py"),
    ]
    done = subprocess.run(
        command,
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
