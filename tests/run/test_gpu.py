"""The Triton launcher without a GPU. In: generated modules. Out: typed errors, nothing launched for no elements."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from interfuse.base.errors import BuildError, CompilerMissingError, DeviceError, LaunchError
from interfuse.build.triton import compile_offline
from interfuse.capture.torch_types import to_torch
from interfuse.device.table import find
from interfuse.emit.triton import TritonSource, emit, options
from interfuse.emit.triton_prelude import SIGNATURE
from interfuse.ir.dtypes import F32
from interfuse.ir.index import sym
from interfuse.lower.kernel import Axis, Kernel, Load, Param, Role, Store, Value
from interfuse.run import gpu
from tests.kernels import BUILDERS

KERNEL = BUILDERS["relu_half"](4, 64, F32, "tile")


class Recording:
    """Stands for a @triton.jit function: notes what it is launched with."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], tuple[object, ...], Mapping[str, object]]] = []

    def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
        return lambda *args, **constants: self.calls.append((grid, args, constants))


def copy_of(count_symbol: str) -> Kernel:
    n = sym(count_symbol, 0, 1 << 20)
    axis, x = Axis("i", n, Role.GRID, 256), Value("x", F32, ("i",))
    return Kernel(
        "copy",
        (Param("x", F32, (n,), (1,)), Param("y", F32, (n,), (1,), "out")),
        (axis,),
        (Load(x, "x", axis.symbol), Store("y", axis.symbol, x)),
        symbols=(count_symbol,),
    )


def test_a_launch_passes_tensors_sizes_constants_and_options() -> None:
    kernel, function = copy_of("n"), Recording()
    launcher = gpu.Launcher(emit(kernel), kernel, function, "cuda")
    x, y = torch.zeros(300), torch.zeros(300)
    launcher((x, y), (300,))
    ((grid, arguments, constants),) = function.calls
    assert grid == (2,) and arguments[0] is x and arguments[1] is y and arguments[2] == 300
    assert constants == {"BLOCK": 256, "EVEN": 0, "num_warps": 4, **options("cuda", False)}
    launcher((x, y), (304,))
    assert function.calls[1][2]["EVEN"] == 1
    assert options("hip", True) == {"enable_fp_fusion": False} and launcher.resources is None


def test_what_does_not_begin_with_a_vector_is_copied_where_a_kernel_reads_whole_ones() -> None:
    kernel, function = copy_of("n"), Recording()
    kernel = replace(kernel, axes=(replace(kernel.axes[0], vector=4, origin=1),))
    launcher = gpu.Launcher(emit(copy_of("n")), kernel, function, "cuda")
    x, y = torch.arange(301.0)[1:], torch.zeros(301)[1:]
    launcher((x, y), (300,))
    launcher((x.clone(), y), (300,))
    ((_, first, _), (_, second, _)) = function.calls
    assert first[0] is not x and first[0].data_ptr() % 16 == 0 and torch.equal(first[0], x)  # type: ignore[attr-defined]
    assert first[1] is y and second[1] is y
    launcher((x[:100].expand(3, 100), y), (300,))
    repeated = function.calls[2][1][0]
    assert repeated.data_ptr() % 16 == 0 and repeated.stride() == (0, 1)  # type: ignore[attr-defined]
    assert torch.equal(repeated, x[:100].expand(3, 100))  # type: ignore[arg-type]


@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_is_on_the_device_of_its_tensors(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []

    @contextlib.contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", guard)
    kernel, function = copy_of("n"), Recording()
    x = SimpleNamespace(device=torch.device("cuda:1"), data_ptr=lambda: 0)
    gpu.Launcher(emit(kernel), kernel, function, "cuda")((x, x), (256,))  # type: ignore[arg-type]
    assert len(function.calls) == 1
    assert entered == ([torch.device("cuda:1")] if current == 0 else [])


def test_nothing_is_launched_for_no_elements() -> None:
    kernel, function = copy_of("n"), Recording()
    gpu.Launcher(emit(kernel), kernel, function, "cuda")((torch.zeros(0), torch.zeros(0)), (0,))
    assert not function.calls


def test_what_triton_throws_becomes_a_launch_error() -> None:
    class Refusing(Recording):
        def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
            raise RuntimeError("out of resource: shared memory\nand more")

    with pytest.raises(
        LaunchError, match=r"RuntimeError: out of resource: shared memory\); the region runs the library"
    ):
        gpu.Launcher(emit(KERNEL), KERNEL, Refusing(), "cuda")((torch.zeros(256), torch.zeros(256)))


def test_figures_of_the_first_launch_are_kept() -> None:
    compiled = SimpleNamespace(
        n_regs=40,
        n_spills=2,
        metadata=SimpleNamespace(shared=128, num_warps=4, target=SimpleNamespace(backend="cuda", arch=90)),
    )

    class Compiling(Recording):
        def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
            return lambda *args, **constants: compiled

    launcher = gpu.Launcher(emit(KERNEL), KERNEL, Compiling(), "cuda")
    launcher((torch.zeros(256), torch.zeros(256)))
    assert launcher.resources is not None
    assert (launcher.resources.registers, launcher.resources.spills, launcher.resources.target) == (40, 8, "cuda:90")


class Compiled:
    """Stands for what a launch compiled: notes how it is launched again."""

    n_regs = n_spills = 0
    metadata = SimpleNamespace(shared=0, num_warps=4, target=SimpleNamespace(backend="cuda", arch=90))

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], tuple[object, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
        return lambda *args, stream: self.calls.append((grid, args))


def test_what_is_compiled_is_launched_again_without_asking_triton() -> None:
    compiled, asked = Compiled(), list[tuple[object, ...]]()

    class Compiling:
        def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
            return lambda *args, **constants: (asked.append(args), compiled)[1]

    kernel = copy_of("n")
    launcher = gpu.Launcher(emit(kernel), kernel, Compiling(), "cuda")
    x, y = torch.zeros(304), torch.zeros(304)
    for _ in range(3):
        launcher((x, y), (300,))
    assert [(len(asked), len(compiled.calls))] == [(1, 2)]
    order = tuple({"BLOCK": 256, "EVEN": 0}[name] for name, _ in emit(kernel).constants)
    assert compiled.calls[-1] == ((2, 1, 1), (x.data_ptr(), y.data_ptr(), 300, *order))
    launcher((x, y), (304,))  # other constants
    launcher((x[1:], y), (300,))  # an address that Triton compiles apart
    launcher((x, y), (1 << 31,))  # a size that it takes for another type
    assert len(asked) == 4 and len(compiled.calls) == 2


@pytest.mark.slow
def test_what_workers_compiled_is_launched_without_asking_triton(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    kernel = copy_of("n")
    source = emit(kernel)
    compiled = compile_offline(source.forms, "cuda:90", 2, tmp_path)
    built = {(f.entry, f.constants): r.hash for f, r in zip(source.forms, compiled, strict=True)}  # type: ignore[union-attr]
    launcher = gpu.load(source, kernel, built)
    even, uneven = (launcher._ready({"EVEN": k}, 0) for k in (1, 0))
    assert even.metadata.name == uneven.metadata.name == source.entry and even.kernel != uneven.kernel
    assert (even.metadata.target.arch, even.src.fn) == (90, launcher._function)
    assert launcher._ready({"EVEN": 1}, 0) is even
    assert launcher._ready({"EVEN": 1}, 1) is not even  # another device loads it for itself
    for path in tmp_path.rglob("*.cubin"):
        path.unlink()
    assert gpu.load(source, kernel, built)._ready({"EVEN": 1}, 0) is None  # so that Triton compiles it


def test_signatures_are_what_triton_writes_of_tensors() -> None:
    names = pytest.importorskip("triton._utils").type_canonicalisation_dict
    told = {d: names[str(to_torch(d)).removeprefix("torch.")] for d in SIGNATURE}
    assert told == SIGNATURE


def changed(old: str, new: str) -> TritonSource:
    source = emit(KERNEL)
    assert old in source.text
    return replace(source, text=source.text.replace(old, new))


def test_modules_that_cannot_be_loaded() -> None:
    with pytest.raises(CompilerMissingError, match="need Triton"):
        gpu.load(changed("import triton\n", "import triton_that_is_absent\n"), KERNEL)
    with pytest.raises(BuildError, match="does not parse"):
        gpu.load(changed("def relu_half(", "def relu_half(("), KERNEL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_loading_works_and_launching_says_so() -> None:
    pytest.importorskip("triton")
    with pytest.raises(LaunchError):
        gpu.load(emit(KERNEL), KERNEL)((torch.zeros(256), torch.zeros(256)))
    with pytest.raises(DeviceError, match="no GPU 0"):
        gpu.profile_of(0)


def device(monkeypatch: pytest.MonkeyPatch, **stated: object) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**stated))


def test_a_known_gpu_takes_the_tables_figures_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device(
        monkeypatch,
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        L2_cache_size=60 << 20,
        shared_memory_per_block_optin=232448,
    )
    p = gpu.profile_of(0)
    assert (p.name, p.arch, p.units, p.cache) == ("NVIDIA H200", "sm_90", 132, 60 << 20) and p.bandwidth == find(
        "H200"
    ).bandwidth


def test_an_unknown_gpu_is_taken_for_a_share_of_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch, name="NVIDIA Example", major=8, minor=0, multi_processor_count=54)
    p, like = gpu.profile_of(0), find("A100")
    assert (
        (p.arch, p.units) == ("sm_80", 54)
        and p.bandwidth == like.bandwidth / 2
        and p.flops_of("f32") == like.flops_of("f32") / 2
    )


def test_what_triton_does_once_a_process_is_begun_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    held = threading.Event()

    def prepare() -> None:
        held.wait(10)
        order.append("prepared")

    monkeypatch.setattr(gpu, "_load_driver", prepare)
    gpu.begin.cache_clear()
    try:
        assert gpu.begin() is gpu.begin()
        threading.Timer(0.05, held.set).start()
        gpu.load(emit(KERNEL), KERNEL)
        order.append("loaded")
    finally:
        held.set()
        gpu.begin.cache_clear()
    assert order == ["prepared", "loaded"]


def test_without_a_gpu_there_is_nothing_to_prepare() -> None:
    if not torch.cuda.is_available():
        gpu._load_driver()
