"""The knob table. In: environment variables. Out: typed, documented settings; the only reader of the environment.

A knob is read once a compile, through `current()`, and travels from there as a frozen value; `override()` changes
knobs for a block of code in this thread, which tests and the bisection use.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import difflib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interfuse.base.errors import OptionError


def _default_cache() -> Path:
    """$XDG_CACHE_HOME or ~/.cache, or a private folder in the temporary directory where neither can be had."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "interfuse"
    try:
        return Path.home() / ".cache" / "interfuse"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"interfuse-{os.getuid()}"


def _knob(env: str, doc: str, default: object = None, factory: object = None):  # type: ignore[no-untyped-def]
    meta = {"env": env, "doc": doc}
    if factory is not None:
        return field(default_factory=factory, metadata=meta)  # type: ignore[call-overload]
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Knobs:
    """Every setting that the environment can give. Each field's metadata names its variable and says what it does."""

    disable: bool = _knob("INTERFUSE_DISABLE", "kill switch: run every model through PyTorch unchanged", False)
    fuse: bool = _knob("INTERFUSE_FUSE", "plan fused regions; 0 keeps every call on the library path", True)
    off: str = _knob("INTERFUSE_OFF", "comma-separated region names (or their parts) that stay on the library path", "")
    race: bool = _knob("INTERFUSE_RACE", "measure fused regions against the library and keep the faster", True)
    race_seconds: float = _knob("INTERFUSE_RACE_SECONDS", "longest time one compile may spend racing, in seconds", 20.0)
    correct: bool = _knob("INTERFUSE_CORRECT", "correct predictions by what races have measured on this device", True)
    lock: str = _knob("INTERFUSE_LOCK", "lock file of measured choices, which its regions take without measuring", "")
    cache_dir: Path = _knob("INTERFUSE_CACHE", "folder of built kernels and race results", factory=_default_cache)
    cache: bool = _knob("INTERFUSE_USE_CACHE", "use the on-disk cache; 0 builds into a throw-away folder", True)
    cxx: str = _knob("INTERFUSE_CXX", "C++ compiler for CPU kernels", "g++")
    ncu: str = _knob("INTERFUSE_NCU", "Nsight Compute's command, which reads memory counters", "ncu")
    vector: str = _knob("INTERFUSE_VECTOR", "CPU vector extension: native, avx512, avx2 or portable", "native")
    tiles: bool = _knob(
        "INTERFUSE_TILES",
        "let f32 products on a CPU's tile registers (AMX) race: faster on cores that are not shared",
        False,
    )
    workers: int = _knob("INTERFUSE_WORKERS", "processes that compile kernels side by side; 0 takes one a core", 0)
    pool_mib: int = _knob(
        "INTERFUSE_POOL_MIB",
        "most MiB of large results of CPU kernels (32 MiB and up) kept for later calls; 0 keeps none",
        1024,
    )
    debug: int = _knob("INTERFUSE_DEBUG", "0 quiet, 1 one line a stage, 2 what each stage changed, 3 kernels too", 0)


def _convert(name: str, text: str, kind: type) -> object:
    try:
        if kind is bool:
            lowered = text.strip().lower()
            if lowered in ("1", "true", "yes", "on"):
                return True
            if lowered in ("0", "false", "no", "off"):
                return False
            raise ValueError
        value = kind(text)
        if kind is float and math.isnan(value):
            raise ValueError
        if kind in (int, float) and value < 0:
            raise OptionError(f"{name}={text!r} is below 0; unset it or give 0 or more.")
        return value
    except ValueError:
        wanted = _WANTED.get(kind.__name__, kind.__name__)
        raise OptionError(f"{name}={text!r} is not allowed; unset it or give {wanted}.") from None


_WANTED: Mapping[str, str] = {
    "bool": "1 or 0, true or false, yes or no, on or off",
    "int": "a whole number",
    "float": "a number of seconds",
}
VECTORS = ("native", "avx512", "avx2", "portable")
"""What knob `vector` may be."""

_ALLOWED: Mapping[str, tuple[object, ...]] = {"vector": VECTORS, "debug": (0, 1, 2, 3)}
"""Knobs that may be one of a few values."""

_KINDS: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str, "Path": Path}


def from_environment(environment: Mapping[str, str]) -> Knobs:
    """Knobs with each field taken from `environment` where its variable is set. OptionError names a bad value."""
    values = {}
    for f in dataclasses.fields(Knobs):
        text = environment.get(f.metadata["env"])
        if text is not None and text.strip():  # an empty variable is one that is not set
            values[f.name] = _convert(f.metadata["env"], text, _KINDS[str(f.type)])
            allowed = _ALLOWED.get(f.name, (values[f.name],))
            if values[f.name] not in allowed:
                given = ", ".join(map(str, allowed))
                raise OptionError(f"{f.metadata['env']}={text!r} is not allowed; unset it or give {given}.")
    return Knobs(**values)  # type: ignore[arg-type]


def misspelt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """One sentence for each variable that looks like a knob's and is none."""
    known = [f.metadata["env"] for f in dataclasses.fields(Knobs)]
    found = []
    for name in sorted(n for n in environment if n.startswith("INTERFUSE_") and n not in known):
        near = difflib.get_close_matches(name, known, 1, 0.8)
        meant = f"{near[0]} may be meant" if near else "docs/knobs.md lists what there is"
        found.append(f"{name} is set and is no setting: {meant}.")
    return found


_overrides: contextvars.ContextVar[Mapping[str, object]] = contextvars.ContextVar("interfuse_knobs", default={})


def current() -> Knobs:
    """The knobs in force here: the environment's, then the enclosing `override` blocks'."""
    return dataclasses.replace(from_environment(os.environ), **_overrides.get())  # type: ignore[arg-type]


@contextlib.contextmanager
def override(**values: object) -> Iterator[Knobs]:
    """Change knobs inside a `with` block of this thread. OptionError for a knob that does not exist."""
    known = {f.name for f in dataclasses.fields(Knobs)}
    for name in values:
        if name not in known:
            raise OptionError(f"there is no knob {name!r}; the knobs are {', '.join(sorted(known))}.")
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield current()
    finally:
        _overrides.reset(token)
