"""What every measurement writes down. In: a device, figures. Out: a data file with the circumstances beside them."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

import interfuse

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The commit that is measured, with "+" where the tree has changes; "" outside git."""

    def git(*args: str) -> str:
        done = subprocess.run(("git", *args), capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ":/src") else "")


def circumstances(device: str, measured: str) -> dict[str, Any]:
    """What the figures depend on; `measured` is the commit."""
    name = torch.cuda.get_device_name() if device == "cuda" else _cpu_name()
    return {
        "device": name,
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "interfuse": interfuse.__version__,
        "triton": triton.__version__,
        "commit": measured,
        "date": datetime.date.today().isoformat(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Write the figures so far, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
