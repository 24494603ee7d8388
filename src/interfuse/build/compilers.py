"""The C++ compiler and its flags. In: knobs. Out: which compiler, what it calls itself, the flags of a vector level.

Flags never relax IEEE 754: no -ffast-math, and no contraction either, so that a product and a sum round like eager's
two operators do; the prelude asks for fused multiply-adds where it wants them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from interfuse.base.errors import CompilerMissingError, DeviceError, OptionError
from interfuse.base.knobs import Knobs

ABI = "interfuse-cpp-1"
"""Changes when the calling convention of built kernels does, which makes every old cache entry another key."""

_NEEDS = {
    "avx512": frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "avx2": frozenset(("avx2", "fma", "bmi2")),
    "portable": frozenset[str](),
}
_MARCH = {"avx512": "-march=x86-64-v4", "avx2": "-march=x86-64-v3", "portable": "-march=x86-64"}
_COMMON = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-Wno-psabi",
)

SLEEF = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "pow"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh"),
)
"""Functions of SLEEF that the prelude calls (and fmod, whose names have another end)."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and the version text that names it in cache keys."""

    path: str
    version: str


@lru_cache(maxsize=8)
def _version(path: str, changed: int) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        said = done.stderr.strip()[:200] or f"{path} --version ends with status {done.returncode} and says nothing"
        raise CompilerMissingError(f"{path} does not run ({said}); name another by INTERFUSE_CXX.")
    return done.stdout.splitlines()[0] if done.stdout else path


def find(knobs: Knobs) -> Compiler:
    """The compiler that knob `cxx` names. CompilerMissingError says how to get one."""
    path = shutil.which(knobs.cxx)
    if path is None:
        raise CompilerMissingError(
            f"There is no C++ compiler {knobs.cxx!r}: install g++ 12 or newer (Debian, Ubuntu: "
            f"apt-get install g++), or name another one by INTERFUSE_CXX."
        )
    return Compiler(path, _version(path, Path(path).stat().st_mtime_ns))


@lru_cache(maxsize=1)
def cpu_text() -> str:
    """Model name and instruction sets of this machine's CPU, as the kernel lists them; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(next((line for line in lines if line.startswith(key)), "") for key in ("model name", "flags"))


def supports(level: str) -> bool:
    """True where this CPU runs kernels of the vector level avx512, avx2 or portable."""
    return _NEEDS[level] <= set(cpu_text().split())


def vector_level(knobs: Knobs) -> str:
    """The level that knob `vector` asks for, native resolved to the widest that this CPU has: the emitter's argument.

    OptionError for a level that does not exist, DeviceError for one that this CPU cannot run.
    """
    if knobs.vector == "native":
        return next(level for level in _NEEDS if supports(level))
    if knobs.vector not in _NEEDS:
        raise OptionError(f"INTERFUSE_VECTOR={knobs.vector!r} is unknown; choose native, {', '.join(_NEEDS)}.")
    if not supports(knobs.vector):
        raise DeviceError(f"This CPU has no {knobs.vector}; set INTERFUSE_VECTOR to native.")
    return knobs.vector


@lru_cache(maxsize=1)
def sleef() -> str | None:
    """PyTorch's library, where it has the vector functions of SLEEF in it that eager mode calls; None elsewhere."""
    found = importlib.util.find_spec("torch")
    path = Path(found.origin).parent / "lib" / "libtorch_cpu.so" if found is not None and found.origin else None
    if path is None or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    wanted = (f"Sleef_{name}{kind}_u10" for name in SLEEF for kind in ("f16", "f8", "d8", "d4"))
    return str(path) if all(hasattr(library, name) for name in (*wanted, "Sleef_fmodf16")) else None


def flags(knobs: Knobs) -> tuple[str, ...]:
    """Compiler flags of a kernel, source and output left out."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    march = ("-march=native",) if knobs.vector == "native" else (_MARCH[vector_level(knobs)],) if x86 else ()
    wide = ("-mprefer-vector-width=512",) if x86 and vector_level(knobs) == "avx512" else ()
    vectors = ("-DSLEEF",) if x86 and sleef() else ()
    return (*_COMMON, *march, *wide, *vectors)


def identity(knobs: Knobs, compiler: Compiler) -> tuple[str, ...]:
    """Everything besides the source that decides what a build gives: the rest of a cache key."""
    machine = cpu_text() if knobs.vector == "native" else ""
    return (ABI, platform.machine(), compiler.version, " ".join(flags(knobs)), machine)
