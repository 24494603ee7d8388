"""The device of a graph, as the pipeline sees it. In: "cpu" or "cuda:0". Out: profile, target, and how to build
kernels.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from interfuse.base.errors import (
    BuildError,
    CacheError,
    CompilerMissingError,
    DeviceError,
    InterfuseError,
    LaunchError,
    OptionError,
    UnsupportedError,
)
from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.base.store import Store
from interfuse.build import compilers
from interfuse.build import cpp as build_cpp
from interfuse.build import triton as build_triton
from interfuse.build.cache import Cache, open_cache
from interfuse.build.contents import RESULTS, results
from interfuse.build.cpp import Artifact
from interfuse.build.resources import Resources, check, occupancy
from interfuse.device import cpu
from interfuse.device.profile import DeviceProfile
from interfuse.device.table import find, gpus
from interfuse.emit import cpp as emit_cpp
from interfuse.emit import trampoline
from interfuse.emit import triton as emit_triton
from interfuse.emit.triton import TritonSource
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Graph
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import CPU, GPU, Target
from interfuse.plan.attention import PROVIDER as ATTENTION
from interfuse.plan.attention import REACHED, form_of, operands_of
from interfuse.plan.routines import PROVIDERS, SPLIT
from interfuse.run import cpu as run_cpu
from interfuse.run import gpu as run_gpu
from interfuse.run.attention import function as attention_function
from interfuse.run.gpu_pack import PackLauncher
from interfuse.run.gpu_team import TeamLauncher
from interfuse.run.linear import missing as no_split
from interfuse.run.providers import available
from interfuse.run.providers import probe as probe_provider
from interfuse.tune import probe
from interfuse.tune.corrections import corrected

Launchers = Mapping[str, Any]
Built = tuple[Launchers, Mapping[str, str]]
"""Launchers by kernel name, and why a kernel has none."""


@dataclass(frozen=True)
class Device:
    """`target` is None where no kernels can be generated (no compiler, no Triton); `why` says so then. What is not
    `here` can be planned and compiled for, not run.
    """

    torch_device: torch.device
    profile: DeviceProfile
    target: Target | None
    vector: str = ""
    why: str = ""
    here: bool = True

    def key(self) -> str:
        """What race results depend on beside the region: device, library versions and precision flags."""
        flags = (torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(), torch.get_num_threads())
        vector = f"{self.vector} with tiles" if self.profile.kind == "cpu" and self.profile.splits else self.vector
        return f"{self.profile.name}/{self.profile.units}/{torch.__version__}/{vector}/{flags}"

    @property
    def probe_key(self) -> str:
        """What a probe's figures depend on beside the probe itself."""
        return f"{self.profile.name}/{self.profile.units}/{torch.__version__}"

    def is_capturing(self) -> bool:
        """True while the user captures a CUDA graph on the current stream: nothing may wait for the device then."""
        return self.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def unavailable(self, graph: Graph, knobs: Knobs) -> Mapping[str, str]:
        """The providers that cannot be used for some matrix product or attention of `graph`, with the reason."""
        found: dict[str, str] = {}
        if not self.here:
            return found
        types = {o.dtype for c in graph.calls for o in c.outs if o is not None and o.op == "linear"}
        for activation, names in PROVIDERS.get(self.profile.kind, {}).items():
            for provider, dtype in itertools.product(names, types):
                if provider == SPLIT or provider in found:
                    continue
                reason = probe_provider(provider, dtype, str(self.torch_device), {"activation": activation})
                if reason is not None:
                    found[provider] = reason
        if self.profile.kind == "cuda":
            gone = {name: available(name, "f16", str(self.torch_device)) for name in REACHED}
            return found | {name: reason for name, reason in gone.items() if reason is not None}
        if self.profile.splits and F32 in types:
            reason = no_split(knobs) if self.target is not None else self.why
            found |= {SPLIT: reason} if reason is not None else {}
        forms = {form_of(nodes) for call in graph.calls if (nodes := operands_of(call)) is not None}
        reason = self._no_attention(forms, knobs) if forms else None
        return found if reason is None else found | {ATTENTION: reason}

    def _no_attention(self, forms: Collection[tuple[str, str, int]], knobs: Knobs) -> str | None:
        """Why our attention cannot be had in these forms; None where it is built."""
        if self.profile.kind != "cpu" or self.target is None:
            return self.why or f"there is none for {self.profile.kind}"
        if self.vector == "portable":
            return "without vectors of eight floats PyTorch's own is faster"
        try:
            for dtype, mask, head in sorted(forms):
                attention_function(dtype, mask, head, knobs)
        except (InterfuseError, OSError) as error:
            return str(error)
        return None

    def source(self, kernel: Kernel) -> str:
        """The text that is built for `kernel`: C++ or Triton. UnsupportedError where the kernel has none here."""
        if self.target is None:
            raise UnsupportedError(f"no source can be written: {self.why}")
        if self.target.backend == "triton":
            return "\n\n".join(emit_triton.emit(k).text for k in (kernel, kernel.beyond) if k is not None)
        return emit_cpp.emit(kernel, self.vector, _streaming(kernel, self.profile.cache))

    def build(self, kernels: Sequence[Kernel], knobs: Knobs, record: Record) -> Built:
        """Launchers by kernel name, and the reason for each kernel that could not be had."""
        if self.target is None or not kernels:
            return {}, {}
        return (
            _build_gpu(kernels, self.profile, knobs, record)
            if self.target.backend == "triton"
            else _build_cpu(kernels, self, knobs, record)
        )


def names_here() -> list[str]:
    """What PyTorch calls the devices of this machine that there can be kernels for."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def device_of(name: str, knobs: Knobs, record: Record | None = None) -> Device:
    """The device called `name` by PyTorch, as an earlier probe found it. Other kinds than CPU and CUDA get library
    calls only. What is wrong with the file of results goes into `record`.
    """
    known = _unmeasured(name, knobs)
    path = knobs.cache_dir / RESULTS
    if not knobs.cache or not path.is_file():
        return known
    store = Store(path, record)
    try:
        profile = probe.stored(known.profile, store, known.probe_key)
        return replace(known, profile=corrected(profile, store, known.probe_key) if knobs.correct else profile)
    finally:
        store.close()


def measure(name: str, knobs: Knobs, told: probe.Told | None = None) -> Device:
    """The device called `name`, measured now; what is found is kept for later processes.

    DeviceError where no kernels are generated for it.
    """
    known = _unmeasured(name, knobs)
    if known.target is None:
        raise DeviceError(f"{name} cannot be measured: {known.why.rstrip('.')}.")
    record = Record()

    def build(kernels: Sequence[Kernel]) -> Launchers:
        launchers, failed = known.build(kernels, knobs, record)
        if failed:
            raise DeviceError(f"{name} cannot be measured: {next(iter(failed.values())).rstrip('.')}.")
        return launchers

    found = probe.probe(known.profile, known.target, known.torch_device, build, told)
    store = results(knobs, record)
    try:
        probe.keep(found, store, known.probe_key)
    finally:
        store.close()
    return replace(known, profile=found)


def _unmeasured(name: str, knobs: Knobs) -> Device:
    device = torch.device(name)
    if device.type == "cuda":
        profile = run_gpu.profile_of(device.index or 0)
        return Device(device, profile, _gpu(profile))
    profile = cpu.profile() if knobs.tiles else cpu.profile().without("split")
    if device.type != "cpu":
        return Device(device, profile, None, why=f"no kernels are generated for {device.type}")
    try:
        compilers.find(knobs)
        return Device(device, profile, replace(CPU, programs=profile.units), compilers.vector_level(knobs))
    except CompilerMissingError as error:
        return Device(device, profile, None, why=str(error))


def _gpu(profile: DeviceProfile) -> Target:
    """What a schedule must know of a GPU. Where PyTorch may take fewer digits of f32, its own products are faster than
    ours of all.
    """
    splits = profile.splits and torch.get_float32_matmul_precision() == "highest"
    return replace(GPU, dot=profile.dot, ring=profile.ring, splits=splits)


def absent(name: str) -> Device:
    """The GPU of the table that `name` names, to plan for without it. OptionError lists the known ones."""
    try:
        profile = find(name)
    except DeviceError:
        raise OptionError(f"there is no GPU {name!r} in the table; take one of {', '.join(gpus())}.") from None
    if profile.kind == "cpu":
        raise OptionError(f"{profile.name} is no GPU: name one of {', '.join(gpus())}.")
    target = replace(_gpu(profile), programs=profile.units, enough=profile.units)
    return Device(torch.device("cuda"), profile, target, here=False)


def _build_cpu(kernels: Sequence[Kernel], device: Device, knobs: Knobs, record: Record) -> Built:
    sources, failed = [], {}
    for kernel in kernels:
        try:
            sources.append((kernel.name, device.source(kernel)))
        except UnsupportedError as error:
            failed[kernel.name] = str(error)
    by_name = {k.name: k for k in kernels}
    if len(sources) > 1:
        sources.append((trampoline.NAME, trampoline.TEXT))
    launchers = {}
    cache = open_cache(knobs)
    if cache.warning:
        record.add("warning", "cache", error=cache.warning)
    found = dict(zip((name for name, _ in sources), _artifacts(sources, knobs, cache, record), strict=True))
    together = found.pop(trampoline.NAME, None)
    jump = run_cpu.load_trampoline(together) if isinstance(together, Artifact) else None
    for name, artifact in found.items():
        if isinstance(artifact, InterfuseError):
            failed[name] = str(artifact)
            continue
        try:
            launchers[name] = run_cpu.load(artifact, by_name[name], jump)
        except (CacheError, LaunchError) as error:
            failed[name] = str(error)
            continue
        record.add(
            "kernel",
            name,
            family=by_name[name].family,
            source_path=str(artifact.source_path),
            key=artifact.key,
            cached=artifact.cached,
            build_seconds=artifact.seconds,
        )
    return launchers, failed


def _streaming(kernel: Kernel, cache: int) -> frozenset[str]:
    """The outputs to store past the caches: the kernel's buffers do not fit in them, and the output takes half of them.

    A plain store first reads the line that it overwrites; whoever reads the output next finds little of it cached.
    """
    if sum(_bytes(p) for p in kernel.params if p.mode != "scratch") <= cache:
        return frozenset()
    return frozenset(p.name for p in kernel.params if p.mode == "out" and 2 * _bytes(p) >= cache)


def _artifacts(sources: list[tuple[str, str]], knobs: Knobs, cache: Cache, record: Record) -> list[Any]:
    """Built side by side; where one does not compile, one by one, with the error in its place and a warning."""
    try:
        return list(build_cpp.build(sources, knobs, cache))
    except (BuildError, OSError):
        found = [_artifact(source, knobs, cache) for source in sources]
    broken = [f for f in found if isinstance(f, BuildError)]
    if broken:
        first = " ".join(str(broken[0]).splitlines()[:2]).rstrip(".")
        sentence = f"{len(broken)} of {len(sources)} kernels could not be built, so the library runs in their place"
        record.add("warning", "build", error=f"{sentence}: {first}.")
    return found


def _artifact(source: tuple[str, str], knobs: Knobs, cache: Cache) -> Artifact | BuildError:
    try:
        return build_cpp.build([source], knobs, cache)[0]
    except BuildError as error:
        return error
    except OSError as error:  # the disk is full, say
        remedy = "make room there, or give another folder by INTERFUSE_CACHE"
        return BuildError(f"{source[0]} cannot be written to {cache.root} ({error}): {remedy}.")


def _build_gpu(kernels: Sequence[Kernel], profile: DeviceProfile, knobs: Knobs, record: Record) -> Built:
    """Compiled in worker processes first: a kernel that spills or asks too much of the device is left out."""
    sources, failed = {}, {}
    for kernel in kernels:
        try:
            sources[kernel.name] = emit_triton.emit(kernel)
        except UnsupportedError as error:
            failed[kernel.name] = str(error)
    by_name, launchers = {k.name: k for k in kernels}, {}
    # Every form of a kernel that has several, so that no launch waits for the compiler.
    forms = [(name, form) for name, s in sources.items() for form in s.forms]
    known, built = _compiled([s for _, s in forms], profile.target, knobs, record)
    found: dict[str, Resources] = {}
    cached = {
        (f.entry, f.constants): r.hash for (_, f), r in zip(forms, built, strict=True) if isinstance(r, Resources)
    }
    for (name, _), resources in zip(forms, built, strict=True):
        reason = str(resources) if isinstance(resources, BuildError) else check(resources, profile, sources[name].team)
        if reason is not None:
            failed[name] = reason
        elif isinstance(resources, Resources):
            found.setdefault(name, resources)
    for name, resources in found.items():
        if name in failed:
            continue
        source = sources[name]
        loaded = run_gpu.load(source, by_name[name], cached)
        launch = PackLauncher if by_name[name].packed else TeamLauncher if by_name[name].team else None
        launchers[name] = launch(loaded) if launch else loaded
        record.add(
            "kernel",
            name,
            family=by_name[name].family,
            registers=resources.registers,
            spills=resources.spills,
            shared_bytes=resources.shared,
            warps=resources.warps,
            occupancy=occupancy(resources, profile),
            cached=resources in known,
            build_seconds=resources.seconds,
        )
    return launchers, failed


def _compiled(
    sources: Sequence[TritonSource], target: str, knobs: Knobs, record: Record
) -> tuple[list[Resources], list[Resources | BuildError]]:
    """What an earlier process found out about some of the sources, and what there is to know of all of them."""
    store = results(knobs, record)
    try:
        keys = [build_triton.key(s, target) for s in sources]
        known = {k: found for k in keys if (found := Resources.from_json(store.get(k))) is not None}
        left = [(k, s) for k, s in zip(keys, sources, strict=True) if k not in known]
        workers = min(knobs.workers or os.cpu_count() or 1, len(left))
        built = dict(known) | dict(
            zip((k for k, _ in left), build_triton.compile_offline([s for _, s in left], target, workers), strict=True)
        )
        for k, _ in left:
            if isinstance(resources := built[k], Resources):
                store.put(k, asdict(resources))
    finally:
        store.close()
    return list(known.values()), [built[k] for k in keys]


def _bytes(param: Any) -> int:
    count = 1
    for d in param.shape:
        count *= d if isinstance(d, int) else 1
    return count * param.dtype.bytes
