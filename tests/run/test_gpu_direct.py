"""Launches through CUDA's driver. In: a library with the driver's two functions that notes what it is given. Out: the
launch as the driver would see it.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from interfuse.base.errors import LaunchError
from interfuse.emit.triton import emit
from interfuse.ir.dtypes import F32
from interfuse.run import gpu
from interfuse.run.gpu_direct import COOPERATIVE, HIDDEN, OVERLAPPING, direct
from tests.kernels import BUILDERS

DRIVER = """
#include <stddef.h>
#include <string.h>
// As the driver's manual lays them out. A function is the number of its arguments here; one above 100 fails with that.
struct Attribute { int id; char pad[4]; union { char whole[64]; int flag; } value; };
struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
};
extern "C" {
long noted[32];
int cuFuncGetParamInfo(size_t function, size_t k, size_t* offset, size_t* size) {
    *offset = 8 * k;
    *size = 8;
    return k < function % 100 ? 0 : 1;
}
int cuLaunchKernelEx(const Config* config, size_t function, void** arguments, void** extra) {
    long* out = noted;
    *out++ = config->grid[0] * config->grid[1] * config->grid[2];
    *out++ = config->block[0] * config->block[1] * config->block[2];
    *out++ = config->shared;
    *out++ = (long)config->stream;
    *out++ = config->count;
    for (unsigned k = 0; k < config->count; ++k)
        *out++ = 100 * config->attributes[k].id + config->attributes[k].value.flag;
    for (size_t k = 0; k < function % 100; ++k)
        memcpy(out++, arguments[k], 8);
    return extra ? 1 : function > 100 ? function / 100 : 0;
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "driver.so", "driver.cpp"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "driver.so"))


def compiled(function: int, **meta: object) -> SimpleNamespace:
    """What Triton gives for a kernel."""
    plain = {"launch_cooperative_grid": False, "launch_pdl": False, "num_warps": 4, "shared": 96}
    target = SimpleNamespace(backend="cuda", arch=90)
    metadata = SimpleNamespace(**{**plain, "target": target, **meta})
    return SimpleNamespace(function=function, n_regs=9, n_spills=0, metadata=metadata)


def noted(library: ctypes.CDLL, count: int) -> Sequence[int]:
    return list((ctypes.c_long * 32).in_dll(library, "noted"))[:count]


def test_the_driver_sees_the_launch(library: ctypes.CDLL) -> None:
    launch = direct(compiled(2 + HIDDEN), "k", 2, library)
    assert launch is not None and launch(7, (1 << 40, 16), 5)
    assert noted(library, 9) == [7, 128, 96, 5, 0, 1 << 40, 16, 0, 0]
    assert launch(8, (32, 48), 0) and noted(library, 9) == [8, 128, 96, 0, 0, 32, 48, 0, 0]


def test_how_it_is_launched_goes_along(library: ctypes.CDLL) -> None:
    meta = {"launch_cooperative_grid": True, "launch_pdl": True, "num_warps": 8}
    launch = direct(compiled(1 + HIDDEN, **meta), "k", 1, library)
    assert launch is not None and launch(1, (64,), 0)
    assert noted(library, 8) == [1, 256, 96, 0, 2, 100 * COOPERATIVE + 1, 100 * OVERLAPPING + 1, 64]


@pytest.mark.parametrize(
    "made",
    [
        compiled(1 + HIDDEN),  # one argument became a constant
        compiled(2 + HIDDEN, global_scratch_size=8),
        compiled(2 + HIDDEN, target=SimpleNamespace(backend="hip", arch="gfx942")),
        compiled(2 + HIDDEN, num_ctas=2),
    ],
)
def test_what_only_triton_can_launch(made: SimpleNamespace, library: ctypes.CDLL) -> None:
    assert direct(made, "k", 2, library) is None


def test_a_refused_launch_says_so(library: ctypes.CDLL) -> None:
    launch = direct(compiled(701 * 100 + 1 + HIDDEN), "copy", 1, library)
    assert launch is not None
    with pytest.raises(LaunchError, match=r"copy cannot be launched \(CUDA error 701\); the region runs the library"):
        launch(1, (0,), 0)
    fresh_thread = direct(compiled(201 * 100 + 1 + HIDDEN), "copy", 1, library)
    assert fresh_thread is not None and not fresh_thread(1, (0,), 0)


def test_what_triton_compiled_once_goes_to_the_driver(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    class Function:
        """Stands for a @triton.jit function."""

        launches = 0

        def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
            def launch(*arguments: object, **constants: object) -> SimpleNamespace:
                self.launches += 1
                return compiled(2 + HIDDEN)

            return launch

    class OnGpu:
        """A tensor's address on a GPU."""

        device, dtype = torch.device("cuda:1"), torch.float32

        def __init__(self, address: int) -> None:
            self.address = address

        def data_ptr(self) -> int:
            return self.address

        def get_device(self) -> int:
            return 1

    monkeypatch.setattr("interfuse.run.gpu_direct.driver", lambda: library)
    monkeypatch.setattr("interfuse.run.gpu._stream", lambda index: 40 + index)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    kernel, function = BUILDERS["relu_half"](4, 64, F32, "tile"), Function()
    source = emit(kernel)
    launcher = gpu.Launcher(source, kernel, function, "cuda")
    launcher((OnGpu(64), OnGpu(128)))  # type: ignore[arg-type]
    assert function.launches == 1 and launcher.resources is not None
    launcher((OnGpu(256), OnGpu(512)))  # type: ignore[arg-type]
    assert function.launches == 1 and noted(library, 7) == [source.grid, 128, 96, 41, 0, 256, 512]
    launcher((OnGpu(260), OnGpu(512)))  # type: ignore[arg-type]
    assert function.launches == 2  # compiled apart for addresses where no vector begins
