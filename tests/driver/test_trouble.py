"""What goes wrong around a compile. In: a full disk, lost files. Out: eager's results, and one sentence."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from interfuse.base.errors import CacheError
from interfuse.base.knobs import override
from interfuse.build.cache import Cache
from interfuse.driver.backend import Backend
from interfuse.report.ledger import ledger


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    torch._dynamo.reset()
    with override(cache_dir=tmp_path / "cache", race=False):
        yield tmp_path / "cache"


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.sort(x * 2).values + 1, -1)


def run() -> Backend:
    """Compile f, check its values twice."""
    backend, x = Backend(), torch.randn(5, 24)
    fast = torch.compile(f, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(fast(x), f(x))
    return backend


def warnings(backend: Backend) -> list[str]:
    return [e.facts["error"] for r in backend.records for e in r.of("warning")]


def families(backend: Backend) -> list[str]:
    return [r.choice.family for c in backend.compiled if c.plan for r in c.plan.regions]


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_library_and_nothing_half_written(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr(Cache, "put", full)
    backend = run()
    assert set(families(backend)) == {"library"}
    (said,) = warnings(backend)
    assert "could not be built, so the library runs in their place" in said
    assert said.endswith("make room there, or give another folder by INTERFUSE_CACHE.")
    assert "No space left" in str(ledger(backend.records))
    assert [p for p in own_cache.rglob("*") if p.is_file()] == []


def test_a_library_that_cannot_be_loaded_costs_only_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(artifact: Any, kernel: Any, jump: Any = None) -> Any:
        raise CacheError(f"{artifact.path} cannot be read; build the kernel again.")

    monkeypatch.setattr("interfuse.run.cpu.load", refuse)
    backend = run()
    assert set(families(backend)) == {"library"}
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    assert "build the kernel again" in json.dumps([e.facts for r in backend.records for e in r.of("region")])


def test_kernels_that_were_damaged_on_disk_are_built_again(own_cache: Path) -> None:
    assert "library" in families(first := run()) and len(set(families(first))) > 1
    for manifest in own_cache.rglob("manifest.json"):
        manifest.write_text("{")
    torch._dynamo.reset()
    assert families(run()) == families(first)
