"""Launching generated Triton kernels. In: a TritonSource. Out: a callable on tensors; and the profiles of GPUs here.

Triton is imported by the generated module itself, so that this file can be imported without it. Under
TRITON_INTERPRET=1 the same launcher runs on CPU tensors, with NumPy standing in for libdevice: tests use that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from interfuse.base.errors import BuildError, CompilerMissingError, DeviceError, LaunchError
from interfuse.base.keys import short
from interfuse.build.resources import Resources
from interfuse.device import table
from interfuse.device.profile import DeviceProfile
from interfuse.emit.triton import TritonSource, chained, options, together, warps_on
from interfuse.emit.triton_even import EVEN, MULTIPLE
from interfuse.ir.index import evaluate
from interfuse.lower.kernel import Kernel
from interfuse.lower.vectors import VECTOR_BYTES
from interfuse.run.gpu_direct import Again, again


@functools.cache
def begin() -> threading.Thread:
    """Have Triton build and load, in a thread, the module that it drives the GPU through: once a process, before its
    first launch, and half a second where Triton's cache is empty.
    """
    thread = threading.Thread(target=_load_driver, daemon=True)
    thread.start()
    return thread


def _load_driver() -> None:
    with contextlib.suppress(Exception):  # the first launch says what is wrong
        importlib.import_module("triton.runtime").driver.active.get_current_target()


Built = Mapping[tuple[str, tuple[tuple[str, int], ...]], str]
"""Where Triton's cache has what is compiled: hashes by entry and constants."""


class Launcher:
    """One loaded kernel. Calling it launches on the current stream of the tensors' device and does not wait.

    What is `built` for the launch is taken from Triton's cache; Triton compiles what is not there.
    `resources` is None until the first launch on a GPU.
    """

    def __init__(
        self, source: TritonSource, kernel: Kernel, function: Any, kind: str | None, built: Built | None = None
    ) -> None:
        self.source, self.kernel, self._function, self._built = source, kernel, function, built or {}
        launch = {"num_warps": warps_on(kind or "", source.warps)}
        self._constants = (
            dict(source.constants) | launch | (options(kind, source.flushes) | together(source) if kind else {})
        )
        self._symbols, self._chained = kernel.symbols, kernel.follows or kernel.leads
        self._in_vectors = bool(kernel.ring) or any(a.vector > 1 for a in kernel.axes)
        self._reads = sum(p.mode == "in" for p in kernel.params)
        self._beyond = load(source.beyond, kernel.beyond, built) if source.beyond and kernel.beyond else None
        self._loaded: dict[tuple[int | None, tuple[tuple[str, int], ...]], Any] = {}
        self._compiled: dict[tuple[int | None, ...], Again] = {}
        self._is_plain = not self._symbols and not self._beyond and isinstance(source.grid, int)
        self.resources: Resources | None = None

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Launch on the non-scratch parameters' tensors in order; `sizes` gives the kernel's symbols in order.

        LaunchError where Triton cannot compile or launch the kernel: the outputs have not been touched then.
        """
        if self.again(tensors):
            return
        known = dict(zip(self._symbols, sizes, strict=True))
        if self._beyond is not None and any(evaluate(extent, known) > block for extent, block in self.source.tiles):
            self._beyond(tensors, [known[name] for name in self._beyond._symbols])
            return
        grid = self.source.grid if isinstance(self.source.grid, int) else evaluate(self.source.grid, known)
        if grid == 0:
            return
        grid = self._at_once(grid, tensors[0].device.index)
        if self._in_vectors:
            tensors = [*map(_whole, tensors[: self._reads]), *tensors[self._reads :]]
        even = {EVEN: int(all(known[s] % MULTIPLE == 0 for s in self.source.even))} if self.source.even else {}
        self.launch(grid, (*tensors, *sizes), even, tensors[0].device)

    def again(self, tensors: Sequence[torch.Tensor], ahead: Sequence[int] = ()) -> bool:
        """Launch a kernel of fixed sizes that has run before on such tensors and this device, on addresses so many
        whole vectors of bytes `ahead` of theirs; whether that was done.
        """
        if not self._is_plain:
            return False
        index = tensors[0].get_device()
        known = self._compiled.get((index,))
        if known is None or index != torch._C._cuda_getDevice():
            return False
        words = _words(tensors)
        if words is None:
            return False
        if ahead:
            words[: len(ahead)] = map(int.__add__, words, ahead)
        return known(self._at_once(self.source.grid, index), words, _stream(index))  # type: ignore[arg-type]

    def _at_once(self, grid: int, index: int | None) -> int:
        """The programs of a launch that has work for `grid` of them: one a unit, where each takes pieces in turn."""
        return min(grid, _units(index)) if self.kernel.ring else grid

    def launch(self, grid: int, arguments: Sequence[Any], constants: Mapping[str, int], device: torch.device) -> None:
        """Launch so many programs on these arguments, with `constants` beside or instead of its own. LaunchError as
        above.
        """
        words = _words(arguments)
        try:
            if device.type == "cuda" and device.index != torch.cuda.current_device():
                with torch.cuda.device(device):
                    compiled = self._launch(grid, arguments, constants, device, words)
            else:
                compiled = self._launch(grid, arguments, constants, device, words)
        except LaunchError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if self.resources is None and compiled is not None:
            self.resources = _resources(self.source, compiled)

    def _launch(
        self,
        grid: int,
        arguments: Sequence[Any],
        constants: Mapping[str, int],
        device: torch.device,
        words: Sequence[int] | None,
    ) -> Any:
        """Launch what has run before on such arguments, else what a worker compiled for them, else ask Triton, which
        takes far longer to find out what it has compiled; what was launched, None where it is known.
        """
        if words is None:
            return self._function[(grid,)](*arguments, **self._told(constants, device))
        key = (device.index, *constants.values())
        known = self._compiled.get(key)
        if known is not None and known(grid, words, _stream(device.index)):
            return None
        fixed = tuple(value for _, value in self._own(constants))
        compiled = self._ready(constants, device.index)
        if compiled is not None:
            compiled[grid, 1, 1](*words, *fixed)
        else:
            compiled = self._function[(grid,)](*arguments, **self._told(constants, device))
        if compiled is not None:
            self._compiled[key] = again(compiled, self.source.entry, len(words), fixed)
        return compiled

    def _ready(self, constants: Mapping[str, int], index: int | None) -> Any:
        """What a worker compiled for a launch with these constants, for this device alone: Triton loads it into one.
        None where none did.
        """
        own = self._own(constants)
        named = self._built.get((self.source.entry, own))
        if named and (index, own) not in self._loaded:
            self._loaded[index, own] = _cached(self.source, self._function, named)
        return self._loaded.get((index, own))

    def _own(self, constants: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """The constants of the text."""
        return tuple((name, constants.get(name, value)) for name, value in self.source.constants)

    def _told(self, constants: Mapping[str, int], device: torch.device) -> dict[str, Any]:
        """What Triton is told beside the arguments."""
        more = chained(self.source, _architecture(device.index)) if self._chained and device.type == "cuda" else {}
        return {**self._constants, **constants, **more}

    def compiled(self, arguments: Sequence[Any], device: torch.device) -> Resources:
        """What the kernel takes for such arguments, on a GPU; nothing is launched. LaunchError as above."""
        try:
            with torch.cuda.device(device):
                found = self._ready({}, device.index) if _words(arguments) is not None else None
                found = found or self._function.warmup(*arguments, grid=(1,), **self._told({}, device))
                found._init_handles()
        except Exception as error:
            raise self._failed(error) from error
        return _resources(self.source, found)

    def _failed(self, error: Exception) -> LaunchError:
        first = str(error).strip().splitlines()[:1]
        return LaunchError(
            f"{self.source.entry} cannot be launched ({type(error).__name__}: {''.join(first)}); "
            "the region runs the library path."
        )


def _stream(index: int | None) -> int:
    """The current stream of a GPU here, as its driver knows it; 0 for what is no GPU."""
    return 0 if index is None else torch._C._cuda_getCurrentRawStream(index)


def _words(arguments: Sequence[Any]) -> list[int] | None:
    """Addresses and sizes as numbers, where Triton compiles the same for all such: addresses where a vector begins,
    sizes in 31 bits. None elsewhere.
    """
    found = list[int]()
    for argument in arguments:
        word = argument if type(argument) is int else argument.data_ptr()
        if word >= 1 << 31 if type(argument) is int else word % VECTOR_BYTES:
            return None
        found.append(word)
    return found


@functools.cache
def _architecture(index: int | None) -> str:
    """The architecture of a GPU here, as targets are spelled; "" for a HIP device."""
    if torch.version.hip:
        return ""
    major, minor = torch.cuda.get_device_capability(index)
    return f"cuda:{major * 10 + minor}"


@functools.cache
def _units(index: int | None) -> int:
    """The units of a GPU here."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where it does not begin with a whole vector: a kernel that walks in these reads a few
    bytes around it, which then may belong to nobody.
    """
    if tensor.data_ptr() % VECTOR_BYTES == 0:
        return tensor
    once = tensor[
        tuple(slice(1) if step == 0 else slice(None) for step in tensor.stride())
    ]  # what repeats is there once
    made = torch.empty_strided(once.shape, once.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(once).expand(tensor.shape)


def _cached(source: TritonSource, function: Any, named: str) -> Any:
    """The compiled kernel that has this hash in Triton's cache; None where it is there no more."""
    file = f"{source.entry[:150]}.json"  # Triton's names end there
    group = importlib.import_module("triton.runtime.cache").get_cache_manager(named).get_group(file) or {}
    if file not in group:
        return None
    compiler = importlib.import_module("triton.compiler.compiler")
    signature = dict(source.arguments) | {name: "constexpr" for name, _ in source.constants}
    try:
        return compiler.CompiledKernel(compiler.ASTSource(function, signature, dict(source.constants)), group, named)
    except (OSError, LookupError, ValueError):  # some of its files are gone, or broken
        return None


def load(source: TritonSource, kernel: Kernel, built: Built | None = None) -> Launcher:
    """The launcher of a generated module, of which some forms are `built`. CompilerMissingError without Triton,
    BuildError where it does not parse.
    """
    if begin.cache_info().currsize:
        begin().join()  # both at once would do it twice
    # Triton reads a kernel's source again, through linecache; the name keeps different texts apart.
    name = f"{source.entry}_{short(source.text)}.triton.py"
    linecache.cache[name] = (len(source.text), None, source.text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": f"interfuse.generated.{source.entry}"}
    try:
        exec(compile(source.text, name, "exec"), namespace)
    except ImportError as error:
        raise CompilerMissingError(
            f"GPU kernels need Triton ({error}); install the triton that belongs to your torch."
        ) from error
    except SyntaxError as error:
        raise BuildError(f"{source.entry}: the generated module does not parse ({error}); please report it.") from error
    function = namespace[source.entry]
    interpreter = getattr(importlib.import_module("triton.runtime"), "interpreter", None)
    if interpreter is not None and isinstance(function, interpreter.InterpretedFunction):
        if "libdevice" in namespace:
            namespace["libdevice"] = _NumpyMath(interpreter.TensorHandle, namespace["tl"])
        return Launcher(source, kernel, function, None)
    return Launcher(source, kernel, function, "hip" if torch.version.hip else "cuda", built)


class _NumpyMath:
    """What the generated text calls libdevice, by NumPy, for the interpreter (libdevice is GPU code)."""

    NAMES: Mapping[str, Callable[..., Any]] = {
        "nearbyint": np.rint,
        "fast_dividef": np.divide,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    }

    def __init__(self, handle: Any, tl: Any) -> None:
        self._handle, self._tl = handle, tl

    def __getattr__(self, name: str) -> Callable[..., Any]:
        compute = self.NAMES.get(name) or getattr(np, name)

        def call(*args: Any) -> Any:
            first = next(a for a in args if hasattr(a, "handle"))
            with np.errstate(all="ignore"):
                data = compute(*(a.handle.data if hasattr(a, "handle") else a for a in args))
            return self._tl.tensor(
                self._handle(np.asarray(data).astype(first.handle.data.dtype), first.type.scalar), first.type
            )

        return call


def _resources(source: TritonSource, compiled: Any) -> Resources:
    """What Triton knows after the first launch; spills are counted in 32-bit words there."""
    target = compiled.metadata.target
    return Resources(
        source.entry,
        f"{target.backend}:{target.arch}",
        compiled.n_regs,
        4 * compiled.n_spills,
        compiled.metadata.shared,
        compiled.metadata.num_warps,
    )


def profile_of(index: int) -> DeviceProfile:
    """The profile of CUDA (or ROCm) device `index`: the table's by its name, with what the device itself states.

    A GPU that the table does not know counts as a share of the known one nearest to it. DeviceError where it is absent.
    """
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise DeviceError(f"there is no GPU {index} here; PyTorch sees {torch.cuda.device_count()}.")
    stated = torch.cuda.get_device_properties(index)
    kind = "hip" if torch.version.hip else "cuda"
    arch = stated.gcnArchName.split(":")[0] if kind == "hip" else f"sm_{stated.major}{stated.minor}"
    try:
        known = table.find(stated.name)
    except DeviceError:
        like = [p for p in table.TABLE.values() if p.kind == kind]
        nearest = min(like, key=lambda p: (p.arch != arch, abs(p.units - stated.multi_processor_count)))
        known = nearest.scaled(stated.multi_processor_count / nearest.units)
    return replace(
        known,
        name=stated.name,
        arch=arch,
        units=stated.multi_processor_count,
        cache=getattr(stated, "L2_cache_size", 0) or known.cache,
        shared_block=getattr(stated, "shared_memory_per_block_optin", 0) or known.shared_block,
    )
