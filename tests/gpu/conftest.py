"""Fixtures of the GPU tests, asked for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from interfuse.base.knobs import override


@pytest.fixture
def predicted() -> Iterator[None]:
    """Predictions instead of races, a fresh Dynamo, one seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with override(race=False):
        yield


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Inference."""
    with torch.no_grad():
        yield
