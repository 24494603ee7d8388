"""Loading and calling CPU kernels. In: built samples. Out: right results, checked hashes, shared OpenMP threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interfuse.base.errors import CacheError, LaunchError
from interfuse.base.knobs import current
from interfuse.build import compilers
from interfuse.build.cache import open_cache
from interfuse.build.cpp import Artifact, build
from interfuse.emit.cpp import emit
from interfuse.ir.dtypes import F32
from interfuse.lower.kernel import Kernel
from interfuse.run.cpu import load
from tests.kernels import BUILDERS


@pytest.fixture(scope="module")
def relu() -> tuple[Kernel, Artifact]:
    knobs = current()
    kernel = BUILDERS["relu_half"](40, 1000, F32, "serial")
    (artifact,) = build([(kernel.name, emit(kernel, compilers.vector_level(knobs)))], knobs, open_cache(knobs))
    return kernel, artifact


def test_a_call_fills_the_output(relu: tuple[Kernel, Artifact]) -> None:
    kernel, artifact = relu
    x, y = torch.randn(40, 1000), torch.empty(40, 1000)
    load(artifact, kernel)([x, y])
    assert torch.equal(y, torch.relu(x) * 0.5)


def test_views_start_at_their_own_first_element(relu: tuple[Kernel, Artifact]) -> None:
    kernel, artifact = relu
    x, y = torch.randn(50, 1000)[3:43], torch.empty(50, 1000)[7:47]
    load(artifact, kernel)([x, y])
    assert torch.equal(y, torch.relu(x) * 0.5)


def test_a_wrong_count_is_refused(relu: tuple[Kernel, Artifact]) -> None:
    kernel, artifact = relu
    launcher = load(artifact, kernel)
    with pytest.raises(LaunchError, match="2 buffers and 0 sizes, not 1 and 0"):
        launcher([torch.empty(1)])
    with pytest.raises(LaunchError, match="not 2 and 1"):
        launcher([torch.empty(1), torch.empty(1)], [3])


def test_a_library_that_was_changed_is_not_loaded(relu: tuple[Kernel, Artifact], tmp_path: Path) -> None:
    kernel, artifact = relu
    changed = tmp_path / "relu_half.so"
    changed.write_bytes(artifact.path.read_bytes() + b"x")
    with pytest.raises(CacheError, match="does not match its hash"):
        load(replace(artifact, path=changed), kernel)
    with pytest.raises(CacheError, match="cannot be read"):
        load(replace(artifact, path=tmp_path / "absent.so"), kernel)


def test_a_library_without_the_kernel_is_reported(relu: tuple[Kernel, Artifact]) -> None:
    kernel, artifact = relu
    with pytest.raises(LaunchError, match="cannot be loaded"):
        load(artifact, replace(kernel, name="absent"))


def test_threads_of_python_can_call_at_once(relu: tuple[Kernel, Artifact]) -> None:
    kernel, artifact = relu
    launcher, x = load(artifact, kernel), torch.randn(40, 1000)
    outs = [torch.empty(40, 1000) for _ in range(4)]
    threads = [threading.Thread(target=lambda out=out: [launcher([x, out]) for _ in range(5)]) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, torch.relu(x) * 0.5) for out in outs)


ONE_RUNTIME = """
import sys
import torch
from tests.run.test_cpu import BUILDERS, F32, build, compilers, current, emit, load, open_cache
knobs = current()
kernel = BUILDERS["relu_half"](400, 1000, F32, "serial")
artifact, = build([(kernel.name, emit(kernel, compilers.vector_level(knobs)))], knobs, open_cache(knobs))
load(artifact, kernel)([torch.randn(400, 1000), torch.empty(400, 1000)])
maps = open("/proc/self/maps").read()
print(len({line.split()[-1] for line in maps.splitlines() if "gomp" in line}))
"""


def test_one_openmp_runtime_serves_torch_and_kernels() -> None:
    import_path = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {import_path!r}\n{ONE_RUNTIME}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "1", done.stdout + done.stderr
