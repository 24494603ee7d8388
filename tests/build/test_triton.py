"""Compilation for absent GPUs. In: generated modules. Out: resources within limits, bad kernels named as such."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from interfuse.base.errors import BuildError, CompilerMissingError
from interfuse.base.record import Record
from interfuse.build import triton as build
from interfuse.build import triton_worker, workers
from interfuse.build.resources import Resources, check, occupancy, programs_at_once, teams_at_once
from interfuse.device.profile import DeviceProfile
from interfuse.device.table import find
from interfuse.emit.triton import TritonSource, emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8
from interfuse.ir.index import sym
from interfuse.ir.layout import contiguous
from interfuse.lower.early import early
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Param, Role, Store, Value
from interfuse.lower.target import GPU
from interfuse.lower.work import Work
from interfuse.plan.plan import PackStep
from interfuse.plan.planner import plan
from interfuse.plan.schedules import schedules
from tests import few, gathers, joins, mixed, online, packs, parts, rings, symbolic, teams
from tests.emit import triton_cases as cases
from tests.kernels import BUILDERS
from tests.plan.made import captured

pytest.importorskip("triton")

DEVICES = ("A100", "H100", "B200", "MI300X")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


def compiled(sources: Sequence[TritonSource], profile: DeviceProfile, cache: Path) -> list[Resources]:
    """The Resources of each, where equal ones are compiled once."""
    keys = [build.key(s, profile.target) for s in sources]
    unique = dict(zip(keys, sources, strict=True))
    results = dict(zip(unique, build.compile_offline([*unique.values()], profile.target, 2, cache), strict=True))
    for r in results.values():
        assert isinstance(r, Resources), str(r)
    return [r for k in keys if isinstance(r := results[k], Resources)]


@pytest.mark.parametrize("device", DEVICES)
def test_sample_kernels_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    kernels = [
        make(8192, cols, dtype, "tile")
        for make in BUILDERS.values()
        for cols, dtype in ((4096, F16), (1000, F32), (4000, BF16))
    ]
    for r in compiled([emit(k) for k in kernels], profile, cache):
        assert check(r, profile) is None
        assert 0 < r.registers <= 255 and r.spills == 0 and r.shared <= profile.shared_block
        assert occupancy(r, profile) >= 0.25, r


@pytest.mark.parametrize("device", DEVICES)
def test_packs_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, sources = find(device), []
    for name in packs.CASES:
        for unit, shapes in ((16, ((64, 4096), (128, 4096), (256, 4096))), (1, ((33, 1000), (77, 999), (5, 997)))):
            sources += [emit(p.kernel) for p in packs.packs(name, GPU, unit, shapes)]
    assert len(sources) >= 10
    for r in compiled(sources, profile, cache):
        # Up to two registers of the softmax spill on some; such a kernel would be left out.
        assert check(replace(r, spills=r.spills if r.spills > 8 else 0), profile) is None, r


@pytest.mark.parametrize("target", ["cuda:90"])
def test_members_of_a_pack_are_read_several_elements_at_once(target: str, cache: Path) -> None:
    (packed,) = packs.packs("step", GPU, 16, ((64, 4096), (128, 4096)))
    (built,) = build.compile_offline([emit(packed.kernel)], target, 1, cache, assembly=True)
    assert isinstance(built, Resources) and "ld.global.v4.b32" in built.assembly


def test_sizes_that_are_multiples_of_16_are_read_several_elements_at_once(cache: Path) -> None:
    x, mask = (b.placeholder(n, F32, s) for n, s in (("x", (sym("s0"), 8, sym("s1"))), ("mask", (8, 1))))
    out = b.apply("add", x, b.broadcast(mask, x.shape))
    source = emit(symbolic.lowered(([x, mask], [out]), GPU)[0])
    assert source.uneven is not None
    even, uneven = build.compile_offline([source, source.uneven], "cuda:90", 2, cache, assembly=True)
    assert isinstance(even, Resources) and isinstance(uneven, Resources)
    assert "ld.global.v4.b32" in even.assembly and "ld.global.v" not in uneven.assembly


@pytest.mark.parametrize("device", DEVICES)
def test_joined_parts_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, regions = find(device), [make() for make in (*joins.CASES.values(), *joins.LARGE.values())]
    for r in compiled([emit(symbolic.lowered(region, GPU)[0]) for region in regions], profile, cache):
        assert check(r, profile) is None and r.spills == 0, r


def test_joined_parts_are_read_sixteen_bytes_at_once(cache: Path) -> None:
    names = ("rotary", "append", "normed")
    sources = [emit(symbolic.lowered(joins.LARGE[name](), GPU)[0]) for name in names]
    for name, built in zip(names, build.compile_offline(sources, "cuda:90", 1, cache, assembly=True), strict=True):
        assert isinstance(built, Resources)
        accesses = set(re.findall(r"(?:ld|st)\.global\S*", built.assembly))
        assert accesses and all(".v4." in a for a in accesses), (name, accesses)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_that_write_one_joined_value_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, kernels = find(device), []
    for widths in ((64,) * 26, tuple(range(60, 80))):
        xs = [torch.empty(256, w, dtype=torch.float16) for w in widths]
        (region,) = plan(
            captured(lambda *xs: torch.cat([x.relu() for x in xs], 1), *xs), GPU, profile, Record()
        ).regions
        (step,) = region.choice.steps
        assert isinstance(step, PackStep)
        kernels.append(step.kernel)
    for r in compiled([emit(k) for k in kernels], profile, cache):
        assert check(r, profile) is None and r.spills == 0, r
    if profile.kind == "cuda":
        (even,) = build.compile_offline([emit(kernels[0])], profile.target, 1, cache, assembly=True)
        assert isinstance(even, Resources) and "st.global.v" in even.assembly


@pytest.mark.parametrize("device", DEVICES)
def test_families_by_lowering_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, sources = find(device), []
    for dtype, rows, cols in ((F32, 4096, 1024), (F64, 1000, 100), (I64, 64, 8191), (BOOL, 300, 40)):
        sources.append(emit(cases.lowered(*cases.reduction_region(dtype, rows, cols))[0]))
    for dtype in (F32, F64, I64, I32, BF16, BOOL):
        long = cases.softmax_region(dtype, 64, 131072) if dtype.is_float else cases.reduction_region(dtype, 64, 131072)
        sources.append(emit(cases.lowered(*long)[0]))
        for rows in () if dtype.is_narrow else (20, 4096):
            sources.append(emit(cases.lowered(*cases.reduction_region(dtype, rows, 1000, axis=0))[0]))
        scans = ((64, 4096, 1), (64, 131072, 1), (4096, 64, 0))
        for rows, cols, axis in () if dtype.is_narrow or dtype is BOOL else scans:
            sources.append(emit(cases.lowered(*cases.scan_region(dtype, rows, cols, axis, False))[0]))
        if dtype.is_float:
            sources.append(emit(cases.lowered(*cases.softmax_region(dtype, 4096, 1000, axis=0))[0]))
    sources += [emit(cases.transposed(4096, 1000, F32, 32, 32)), emit(cases.carried(64, 100000, F32, block=2048))]
    for r in compiled(sources, profile, cache):
        assert check(r, profile) is None, r


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_few_rows_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    sizes = ((1, 14336, 4096), (7, 4096, 14336), (16, 1000, 300), (17, 1000, 300), (32, 14336, 4096))
    regions = [
        make(dtype, s, t)
        for make in (few.gated, few.residual, few.halves)
        for s in sizes
        for t, dtype in enumerate((F16, BF16))
    ]
    # Two products at once with matrices that lie the other way spill on a B200, where the library multiplies them.
    regions += [few.residual(F32, (64, 128, 128), t) for t in (False, True)] + [few.gated(F32, (64, 128, 128), False)]
    # More rows are left to the library on AMD's GPUs; 64 in two products at once spill on others than Hopper's.
    many = [(few.residual, 64, False), (few.residual, 100, True), (few.gated, 100, True)]
    many += [(few.gated, 64, True)] if device == "H100" else []
    regions += [f(F16, (n, 16384, 4096), t) for f, n, t in many if profile.kind == "cuda"]
    target = replace(GPU, dot=profile.dot)
    sources = [emit(cases.lowered(*region, target=target)[0]) for region in regions]
    for r in compiled(sources, profile, cache):
        assert check(r, profile) is None, r


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_split_numbers_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    if not profile.splits:
        assert device == "MI300X"
        return
    sizes = ((8, 4096, 1024), (100, 770, 100), (1024, 768, 768), (1024, 3072, 768), (8192, 4096, 64))
    # Two products at once with matrices that lie the other way spill on a B200, as above.
    ways = [(few.residual, False), (few.residual, True), (few.gated, False)]
    ways += [(few.gated, True)] if device != "B200" else []
    regions = [make(F32, s, t) for make, t in ways for s in sizes]
    target = replace(GPU, dot=profile.dot, splits=True)
    kernels = [cases.lowered(*region, target=target)[0] for region in regions]
    # In parts, tiles of more than a few rows spill there too: one kernel multiplies all.
    parts = [((8, 768, 3072), True), ((8, 4096, 4096), False)]
    parts += [((128, 768, 3072), False), ((64, 1024, 4096), True)] if device != "B200" else []
    for sizes, turned in parts:
        kernels.append(lower("parts", few.parts_of(sizes, turned, target)[0], target)[0])
    assert {k.family for k in kernels} == {"product"}
    for k, r in zip(kernels, compiled([emit(k) for k in kernels], profile, cache), strict=True):
        assert check(r, profile) is None, (k.axes, r)


def test_split_numbers_are_multiplied_by_tensor_cores(cache: Path) -> None:
    kernel, _ = cases.lowered(*few.residual(F32, (1024, 768, 768), False), target=replace(GPU, dot=64, splits=True))
    (r,) = build.compile_offline([emit(kernel)], "cuda:90", 1, cache, assembly=True)
    assert isinstance(r, Resources) and "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32" in r.assembly


@pytest.mark.parametrize("device", DEVICES)
def test_rows_in_a_ring_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    if not profile.ring:  # its warps have no registers of their own, or no shared memory
        assert device in ("A100", "MI300X")
        return
    target = replace(GPU, ring=profile.ring)
    sizes = ((F16, 4096), (BF16, 1024), (F32, 2048), (F16, 768))
    regions = [make(t, 32768, n) for make in rings.PLAIN for t, n in sizes] + [rings.residual(F16, 32768, 1024)]
    kernels = [rings.lowered(region, target)[0] for region in regions]
    for k, r in zip(kernels, compiled([emit(k) for k in kernels], profile, cache), strict=True):
        assert check(r, profile) is None, (k.axes, r)
        assert r.warps == 20 and programs_at_once(r, profile) == 1


def test_triton_keeps_the_numbers_of_blocks_for_all_warps() -> None:
    """It drops what a loop carries for the bounds of loops inside alone: warps that fetch would ask for one block only,
    and wait for ever.
    """
    kernel, _ = rings.lowered(rings.norm(F16, 32768, 4096), replace(GPU, ring=find("H100").ring))
    source = emit(kernel)
    attrs = {(k,): triton_worker.ALIGNED for k in range(len(source.arguments))}
    function = triton_worker.load(source.text, source.entry)
    made = triton_worker.source_of(function, dict(source.arguments), {}, attrs)
    target = triton_worker.GPUTarget("cuda", 90, 32)
    text = triton_worker.triton.compile(made, target=target, options={"num_warps": source.warps}).asm["ttgir"]
    loops = [line for line in text.splitlines() if "scf.for %piece" in line or "scf.for %turn" in line]
    assert len(loops) == 3 and all("iter_args(%turn" in line for line in loops), loops


def test_a_kernel_takes_as_much_whether_or_not_triton_had_compiled_it(tmp_path: Path) -> None:
    source = emit(cases.lowered(*few.gated(F32, (64, 128, 128), True))[0])
    first, again = (build.compile_offline([source], find("B200").target, 1, tmp_path)[0] for _ in range(2))
    assert isinstance(first, Resources) and isinstance(again, Resources)
    assert (first.registers, first.spills) == (again.registers, again.spills)


@pytest.mark.parametrize(("rows", "dot", "how"), ((8, 16, "mma.sync"), (8, 64, "wgmma"), (64, 16, "wgmma")))
def test_products_of_few_rows_are_multiplied_by_tensor_cores(rows: int, dot: int, how: str, cache: Path) -> None:
    kernel, _ = cases.lowered(*few.gated(F16, (rows, 14336, 4096), True), target=replace(GPU, dot=dot))
    (r,) = build.compile_offline([emit(kernel)], "cuda:90", 1, cache, assembly=True)
    assert isinstance(r, Resources) and how in r.assembly and "cp.async" in r.assembly


@pytest.mark.parametrize("device", DEVICES)
def test_rows_and_columns_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, sizes = find(device), ((F16, 8192, 4096), (F32, 4096, 1000), (F16, 100000, 300), (F32, 2048, 8192))
    # A scan of 8192 floats, or three matrices of such long rows, beside them spill on a B200: they are left out.
    regions = [(make, size) for make in mixed.REGIONS.values() for size in sizes]
    widest = {mixed.running: 8192, mixed.added_backward: 4096}
    made = [make(*size) for make, size in regions if size[2] < widest.get(make, 1 << 20)]
    kernels = dict.fromkeys(lower("kernel", work, GPU)[0] for region in made for work in mixed.works(region, GPU))
    for kernel, r in zip(kernels, compiled([emit(k) for k in kernels], profile, cache), strict=True):
        assert check(r, profile) is None, (kernel.axes, r)
    first, *_ = mixed.works(mixed.layer_norm_backward(F16, 8192, 4096), GPU)
    assert lower("kernel", first, GPU)[0].stages == 3


@pytest.mark.parametrize("device", ("H100", "MI300X"))
def test_every_operator_compiles(device: str, cache: Path) -> None:
    sources = []
    for dtype in (F32, F64, I64, I32, I8, U8, BOOL):
        ops = cases.operators(dtype)
        # A few operators a kernel: a failure names them, and no kernel gets so long that it spills.
        sources += [
            emit(cases.lowered(*cases.operator_region(dtype, ops[k : k + 12], 4096), f"{dtype}_{k}")[0])
            for k in range(0, len(ops), 12)
        ]
    compiled(sources, find(device), cache)


@pytest.mark.parametrize("device", ("H100", "MI300X"))
def test_every_conversion_compiles(device: str, cache: Path) -> None:
    narrow = [t for t in cases.TORCH if t.bytes == 1 and t.is_float]
    sources = [
        emit(cases.lowered(*cases.conversion_region(s, cases.conversions(s, narrow), 4096), f"from_{s}")[0])
        for s in cases.TORCH
    ]
    compiled(sources, find(device), cache)


def test_sizes_as_arguments_and_wide_indices(cache: Path) -> None:
    row, col = Axis("row", sym("m", 1, 1 << 30), Role.GRID), Axis("col", sym("n", 1, 1 << 20), Role.GRID, 1024)
    x = Value("x", F32, ("row", "col"))
    y = Value("y", F32, ("row", "col"))
    at = row.symbol * col.extent + col.symbol
    kernel = Kernel(
        "double",
        (Param("x", F32, (1,), (1,)), Param("y", F32, (1,), (1,), "out")),
        (row, col),
        (Load(x, "x", at), Let(y, "add", (x, x)), Store("y", at, y)),
        symbols=("m", "n"),
    )
    source = emit(kernel)
    assert ".to(tl.int64)" in source.text and dict(source.arguments)["n"] == "i32"
    compiled([source], find("H100"), cache)


@pytest.mark.parametrize("device", ("H100", "MI300X"))
def test_kernels_over_sizes_that_change_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    sources = [emit(symbolic.lowered(make(), GPU)[0]) for make in symbolic.EVERY.values()]
    for length in (200, 4096):
        held = [emit(symbolic.lowered(symbolic.LONG[n](), GPU, {"s0": 3, "s1": length})[0]) for n in symbolic.HELD]
        assert length > 256 or all(s.beyond is not None for s in held)
        sources += [form for s in held for form in s.forms]
    for source, r in zip(sources, compiled(sources, profile, cache), strict=True):
        assert check(r, profile) is None, r
        assert "do_not_specialize=" in source.text, "a size must not make Triton compile again"


@pytest.mark.parametrize("device", DEVICES)
def test_indirect_loads_keep_to_the_limits(device: str, cache: Path) -> None:
    profile = find(device)
    made = [*gathers.CASES.values(), *gathers.SYMBOLIC.values()]
    for r in compiled([emit(symbolic.lowered(make(), GPU)[0]) for make in made], profile, cache):
        assert check(r, profile) is None, r


# --- bad kernels


def huge_tile() -> TritonSource:
    """A row of 2^13 columns in one warp: 256 values a thread."""
    return emit(replace(BUILDERS["softmax"](64, 1 << 13, F32, "tile"), warps=1))


def test_spills_are_reported_and_refused(cache: Path) -> None:
    profile = find("H100")
    (r,) = compiled([huge_tile()], profile, cache)
    assert r.spills > 0 and "spills" in str(check(r, profile))


def test_a_kernel_that_does_not_compile_or_crashes_costs_only_itself(cache: Path) -> None:
    good = emit(BUILDERS["relu_half"](4, 64, F32, "tile"))
    syntax = replace(good, text=good.text.replace("def relu_half(", "def relu_half(("))
    types = replace(good, text=good.text.replace("* 0.5", "* not_there"))
    crash = replace(good, text="import os\nos.abort()\n")
    results = build.compile_offline([good, crash, syntax, types, crash, good], "cuda:90", 1, cache)
    assert [type(r) for r in results] == [Resources, BuildError, BuildError, BuildError, BuildError, Resources]
    assert "crashed" in str(results[1]) and "SyntaxError" in str(results[2]) and "not_there" in str(results[3])


def test_a_compilation_that_takes_too_long_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = emit(BUILDERS["relu_half"](4, 64, F32, "tile"))
    slow = replace(good, text="import time\ntime.sleep(600)\n")
    worker = workers.Worker(str(cache))
    assert worker.run(build._job(good, "cuda:90", False))
    monkeypatch.setattr(workers, "SECONDS", 0.2)
    assert worker.run(build._job(slow, "cuda:90", False)) is None
    assert not worker.alive


def test_workers_wait_for_more_work_and_one_that_has_ended_is_replaced(cache: Path) -> None:
    job = build._job(emit(BUILDERS["relu_half"](4, 64, F32, "tile")), "cuda:90", False)
    pool = workers.Workers(str(cache))
    pool.begin()
    (worker,) = pool._waiting
    assert pool.run(job) == {**(pool.run(job) or {}), "seconds": pytest.approx(0, abs=60)}
    assert pool._waiting == [worker]
    worker.close()
    again = pool.run(job)
    assert again is not None and again["ok"]
    assert pool._waiting != [worker]
    pool._waiting[0].close()


def test_a_worker_builds_what_launches_a_signature_where_triton_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, object]] = []
    source = SimpleNamespace(constants={(1,): 256}, signature={"x": "*fp32", "N": "constexpr"})
    triton_worker.build_launcher(source)  # without a GPU's driver, or under a Triton with one launcher for all
    made = SimpleNamespace(
        make_launcher=lambda constants, signature, _: f"{constants} {signature}",
        library_dirs=lambda: ["there"],
        include_dirs=[],
        libraries=["cuda"],
    )
    monkeypatch.setattr(triton_worker, "driver", made)
    monkeypatch.setattr(triton_worker, "compile_module_from_src", lambda **given: built.append(given))
    triton_worker.build_launcher(source)
    ((given),) = built
    assert given["src"] == f"{source.constants} {source.signature}" and given["name"] == "__triton_launcher"
    assert given["library_dirs"] == ["there"]


def test_a_worker_that_ends_while_it_is_asked_is_asked_for_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = build._job(emit(BUILDERS["relu_half"](4, 64, F32, "tile")), "cuda:90", False)
    pool = workers.Workers(str(cache))
    assert pool.run(job)
    pool._waiting[0]._process.kill()
    monkeypatch.setattr(workers.Worker, "alive", True)
    again = pool.run(job)
    assert again is not None and again["ok"]
    pool._waiting[0].close()


def test_what_a_source_compiles_to_is_known_by_its_key() -> None:
    source = emit(BUILDERS["relu_half"](4, 64, F32, "tile"))
    keys = {build.key(source, t) for t in ("cuda:80", "cuda:90")} | {build.key(replace(source, warps=8), "cuda:90")}
    assert len(keys) == 3 and build.key(source, "cuda:90") in keys
    found = Resources("k", "cuda:90", 32, 0, 0, 4)
    assert Resources.from_json(json.loads(json.dumps(asdict(found)))) == found
    assert Resources.from_json({"registers": 3}) is None and Resources.from_json(None) is None


def test_without_triton_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text("import triton_that_is_not_installed\n")
    monkeypatch.setattr(workers, "WORKER", broken)
    with pytest.raises(CompilerMissingError, match="install triton"):
        build.compile_offline([emit(BUILDERS["relu_half"](4, 64, F32, "tile"))], "cuda:90", 1, tmp_path)


def test_the_worker_is_a_module_too_and_free_of_torch(cache: Path) -> None:
    source = emit(BUILDERS["relu_half"](4, 64, F32, "tile"))
    job = build._job(source, "cuda:90", True)
    code = (
        "import sys, runpy\nsys.argv[1:] = [sys.argv[1]]\n"
        "try: runpy.run_module('interfuse.build.triton_worker', run_name='__main__')\n"
        "finally: assert 'torch' not in sys.modules"
    )
    path = os.pathsep.join(p for p in (str(Path(build.__file__).parents[2]), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, "-c", code, str(cache)],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    hello, answer = map(json.loads, done.stdout.splitlines())
    assert hello["triton"] and answer["ok"] and ".target sm_90a" in answer["assembly"]


def test_products_and_sums_are_not_contracted(cache: Path) -> None:
    axis = Axis("i", 1024, Role.GRID, 1024)
    a, b, c, d, e = (Value(n, F32, ("i",)) for n in "abcde")
    kernel = Kernel(
        "multiply_add",
        (*(Param(n, F32, (1024,), (1,)) for n in "abc"), Param("out", F32, (1024,), (1,), "out")),
        (axis,),
        (
            *(Load(v, v.name, axis.symbol) for v in (a, b, c)),
            Let(d, "mul", (a, b)),
            Let(e, "add", (d, c)),
            Store("out", axis.symbol, e),
        ),
    )
    (r,) = build.compile_offline([emit(kernel)], "cuda:90", 1, cache, assembly=True)
    assert isinstance(r, Resources) and "mul.rn.f32" in r.assembly and "fma.rn.f32" not in r.assembly


# --- limits


@pytest.mark.parametrize(
    ("figures", "reason"),
    (
        ((256, 0, 0, 4), "registers"),
        ((32, 8, 0, 4), "spills 8 bytes"),
        ((32, 0, 300_000, 4), "shared memory"),
        ((255, 0, 0, 16), "warps"),
        ((64, 0, 1024, 4), None),
    ),
)
def test_limits(figures: tuple[int, int, int, int], reason: str | None) -> None:
    found = check(Resources("k", "cuda:90", *figures), find("H100"))
    assert found is None if reason is None else reason in str(found)


def test_how_many_programs_a_unit_holds() -> None:
    profile = find("H100")
    assert programs_at_once(Resources("k", "cuda:90", 32, 0, 0, 4), profile) == 16
    assert programs_at_once(Resources("k", "cuda:90", 33, 0, 0, 4), profile) == 65536 // (40 * 128)
    assert programs_at_once(Resources("k", "cuda:90", 32, 0, 100 * 1024, 4), profile) == 2
    assert math.isclose(occupancy(Resources("k", "cuda:90", 64, 0, 0, 8), profile), 0.5)


@pytest.mark.parametrize("device", DEVICES)
def test_one_pass_and_reductions_in_parts_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, kernels = find(device), []
    for region, (shape, axis) in itertools.product(
        (online.moments, online.softmax), (((4096, 131072), 1), ((8, 4096, 4096), 1))
    ):
        kernels.append(cases.lowered(*region(F16, shape, axis))[0])
    for shape, axis in (((8, 262144), 1), ((1000003,), 0), ((1000000, 64), 0)):
        region = online.moments(F32, shape, axis)
        kernels += [lower("part", work, GPU)[0] for work in parts.works(region, GPU)]
    assert len(kernels) > 4 + 3 * 2
    for r in compiled([emit(k) for k in kernels], profile, cache):
        assert check(r, profile) is None, r


@pytest.mark.parametrize("device", DEVICES)
def test_teams_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, sources = find(device), []
    for region, shape in itertools.product((online.moments, online.softmax), ((8, 262144), (4096, 131072))):
        for dtype in (F16, BF16, F32):
            work = teams.work(*region(dtype, shape, 1), GPU)
            assert work is not None
            sources.append(emit(lower("shared", work, GPU)[0]))
    for source, r in zip(sources, compiled(sources, profile, cache), strict=True):
        assert check(r, profile) is None, r
        reason = check(r, profile, source.team)
        assert reason is None if profile.kind == "cuda" else "NVIDIA" in str(reason)


def test_a_team_that_a_device_does_not_hold_is_refused() -> None:
    slice_of, kernel = replace(find("H100"), units=16), Resources("k", "cuda:90", 64, 0, 64, 16)
    assert teams_at_once(kernel, slice_of, 32) == 1 and check(kernel, slice_of, 32) is None
    assert check(kernel, replace(slice_of, units=15), 32) == "a team of 32 programs is more than H100 holds at once"


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_of_rows_and_columns_keep_to_the_limits(device: str, cache: Path) -> None:
    regions = [cases.turned_region(F16, 32768, 4096, before) for before in (False, True)]
    regions += [cases.heads_region(dtype, (4, 16, 576, cols)) for dtype in (F32, F16) for cols in (576, 4096)]
    regions += [cases.nested_region(F16, 256, blocks, 32) for blocks in (512, 256, 100)]
    regions += [cases.turned_region(F16, 2048, 4096, False), cases.softmax_region(F16, 256, 2048, axis=0)]
    regions.append(cases.masked_softmax_region(F16, (8, 4096, 4096), (1, 4096, 4096)))
    regions += [cases.odd_region(BF16, 4096, 131072), cases.normed_region(F16, 8192, 4093)]
    for rows, cols in ((4096, 4096), (2048, 4093)):
        x = b.placeholder("x", F16, (rows, cols))
        regions += [([x], [b.scan("cumsum", b.cast(x, F32), 0, reverse)]) for reverse in (False, True)]
    x = b.placeholder("x", F16, (2048, 4096))
    in_parts = parts.works(([x], [b.cast(b.scan("cumsum", b.cast(x, F32), 0), F16)]), GPU)
    assert len(in_parts) == 2
    wide = b.cast(x, F32)
    whole = parts.works(([x], [b.apply("div", wide, b.spread_over(b.reduce("sum", wide, (0, 1)), x, (0, 1)))]), GPU)
    assert len(whole) == 2
    groups = [parts.works(cases.groups_region(F32, 32, *sizes), GPU) for sizes in ((10, 4096), (8, 16384), (128, 256))]
    assert all(len(works) == 2 for works in groups)
    regions += [cases.groups_region(dtype, 128, 8, 1 << 14) for dtype in (F16, BF16)]
    kernels = [cases.lowered(*region)[0] for region in regions]
    norms = [cases.first_and_turned(cases.turned_norm_region(F16, 2048, 4096, before), GPU) for before in (False, True)]
    assert all(len(works) == 2 for works in norms)
    in_turn = (*in_parts, *whole, *itertools.chain(*groups), *itertools.chain(*norms))
    kernels += [replace(early(*lower("part", work, GPU), work), follows=True, leads=True) for work in in_turn]
    profile = find(device)
    for r in compiled([emit(k) for k in kernels], profile, cache):
        assert check(r, profile) is None, r


@pytest.mark.parametrize("device", DEVICES)
def test_odd_rows_are_read_sixteen_bytes_at_once(device: str, cache: Path) -> None:
    profile = find(device)
    sources = [emit(cases.lowered(*cases.odd_region(dtype, 2048, 50257))[0]) for dtype in (F16, BF16)]
    for r in build.compile_offline(sources, profile.target, 2, cache, assembly=True):
        assert isinstance(r, Resources) and check(r, profile) is None and r.spills == 0, r
        if profile.kind == "cuda":
            found = re.findall(r"(?:ld|st)\.global\S*", r.assembly)
            narrow = [a for a in found if ".v4" not in a]
            assert len(found) > 12 and len(narrow) <= 3, "beside the ends and one number a row, whole vectors"


@pytest.mark.parametrize("device", DEVICES)
def test_odd_rows_that_are_held_keep_to_the_limits(device: str, cache: Path) -> None:
    profile, regions = find(device), []
    for cols in (4093, 4095):
        regions += cases.held_regions(F16, 8192, cols)
    regions += cases.held_regions(BF16, 8192, 769)[2:]
    for r in compiled([emit(cases.lowered(*region)[0]) for region in regions], profile, cache):
        assert check(r, profile) is None and r.spills == 0, r


def test_schedules_compile_within_the_device() -> None:
    x = b.placeholder("x", F32, (512, 2048))
    y = b.apply("sub", x, b.expand(b.reduce("max", x, (1,), keepdims=True), x.shape))
    work = Work((y,), frozenset((x,)), {n: contiguous(x.shape) for n in (x, y)})
    profile = find("NVIDIA H200")
    found = [s for s in schedules(work, GPU, profile) if s.far in (0, 2)][:4]
    built = build.compile_offline([emit(s.kernel) for s in found], "cuda:90", 2)
    assert len(found) == 4
    for resources in built:
        assert isinstance(resources, Resources) and check(resources, profile) is None
