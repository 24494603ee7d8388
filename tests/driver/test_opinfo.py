"""Operators by the dozen. In: a fixed part of PyTorch's operator samples. Out: compiled, each gives eager's values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

from interfuse.base.knobs import override
from tests.driver import sweep

ALL = sweep.entries(torch.float32)
TAKEN = ALL[3::20]
"""Every twentieth by name; tests/driver/sweep.py runs the rest on request."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache"):
        yield


def test_what_is_skipped_exists() -> None:
    names = {sweep.name_of(op) for op in sweep.op_db}
    assert names >= {*sweep.SKIPPED, *sweep.BY_EAGER}
    assert len(ALL) > 600


@pytest.mark.parametrize("op", TAKEN, ids=sweep.name_of)
def test_an_operator_compiled_is_the_operator(op: Any) -> None:
    assert sweep.wrong(op, torch.float32, 2) == ""
