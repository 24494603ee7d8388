"""Fixtures of the front doors' tests, asked for by name: predictions instead of races, a fresh Dynamo, one seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from interfuse.base.knobs import override


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder that the tests of this process share."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False):
        yield


@pytest.fixture
def empty_cache(tmp_path: Path) -> Iterator[None]:
    """A cache folder for each test."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with override(cache_dir=tmp_path / "cache", race=False):
        yield


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Inference."""
    with torch.no_grad():
        yield
