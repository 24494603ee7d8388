"""A module of small models, written where a test works. In: nothing. Out: its text; a runner of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from interfuse.cli.main import app

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        return torch.softmax(self.fc(self.norm(x + 1)) * 2.0, -1)


def net():
    torch.manual_seed(0)
    return Net().eval(), torch.randn(8, 64)


def single():
    return (lambda x, *, scale: torch.tanh(x) * scale + 1), (torch.ones(4, 5),), {"scale": 3.0}


def wrong_shapes():
    return Net().eval(), torch.randn(8, 63)


@torch.library.custom_op("interfuse_cli::untraceable", mutates_args=())
def _untraceable(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def untraceable():
    return _untraceable, torch.ones(3)


def too_large():
    return (lambda x: torch.tanh(x.expand(1 << 50) * 2)), torch.ones(1)


def recurrent():
    return nn.LSTM(4, 4).eval(), torch.randn(3, 2, 4)


def raises():
    raise ValueError("no weights here.")


def leaves():
    raise SystemExit(3)


def five():
    return 5


def bad_kwargs():
    return abs, (1,), 3
"""
"""Models that run, functions that do not give one, and one whose model fails."""


def invoke(*arguments: str, **environment: str) -> Result:
    """The command line with these arguments, 120 columns wide."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", **environment})


def sentence(result: Result) -> str:
    """The one line on stderr, which begins with the command's name and ends as a sentence does."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("interfuse: ")
    assert lines[0].endswith("."), lines[0]
    return lines[0]


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> None:
    """Make `folder` the working directory, with a module of this text and a cache of its own."""
    (folder / f"{module}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setenv("INTERFUSE_CACHE", str(folder / "cache"))
