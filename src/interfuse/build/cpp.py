"""Builds C++ kernels. In: named sources, knobs, a cache. Out: one shared library each, built or found, in order.

Compilers are processes; several run side by side. What differs in anything that matters to the result has another key.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from interfuse.base.errors import BuildError
from interfuse.base.keys import digest
from interfuse.base.knobs import Knobs
from interfuse.build import compilers
from interfuse.build.cache import Cache, Entry

LINES = 12
"""How many lines of the compiler's complaint a BuildError quotes."""


@dataclass(frozen=True)
class Artifact:
    """A built kernel: its library and the library's SHA-256, the cache key, whether the cache had it, seconds spent
    compiling, and its source."""

    path: Path
    sha256: str
    key: str
    cached: bool
    seconds: float
    source_path: Path


def build(
    sources: Sequence[tuple[str, str]], knobs: Knobs, cache: Cache, on_done: Callable[[Artifact], None] | None = None
) -> list[Artifact]:
    """Artifacts of the (name, text) sources, in order. `on_done` is called, one at a time, as each becomes ready.

    BuildError carries the compiler's first lines and the path of the source; CompilerMissingError as `compilers.find`.
    """
    if not sources:
        return []
    compiler = compilers.find(knobs)
    flags, identity = compilers.flags(knobs), compilers.identity(knobs, compiler)
    keys = [digest(name, text, *identity) for name, text in sources]
    unique = dict(zip(keys, sources, strict=True))

    def one(key: str) -> Artifact:
        name, text = unique[key]
        entry = cache.get(key, (f"{name}.cpp", f"{name}.so"))
        if entry is not None:
            return _artifact(entry, name, True, 0.0)
        return _compile(key, name, text, (compiler.path, *flags), compiler.version, cache)

    done: dict[str, Artifact] = {}
    with ThreadPoolExecutor(max_workers=knobs.workers or os.cpu_count() or 1) as pool:
        for key, artifact in zip(unique, pool.map(one, unique), strict=True):
            done[key] = artifact
            if on_done is not None:
                on_done(artifact)
    return [done[key] for key in keys]


def _artifact(entry: Entry, name: str, cached: bool, seconds: float) -> Artifact:
    library = f"{name}.so"
    return Artifact(entry.path(library), entry.hashes[library], entry.key, cached, seconds, entry.path(f"{name}.cpp"))


def _compile(key: str, name: str, text: str, command: Sequence[str], version: str, cache: Cache) -> Artifact:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise BuildError(f"{name!r} cannot name a kernel: use letters, digits and underscores.")
    with cache.workspace() as folder:
        source, library = folder / f"{name}.cpp", folder / f"{name}.so"
        source.write_text(text, encoding="utf-8")
        started = time.perf_counter()
        vectors = compilers.sleef() if "Sleef_" in text else None
        line = [*command, "-o", str(library), str(source), *([vectors] if vectors else []), "-lm"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        if done.returncode or not library.exists():
            kept = _keep(cache, key, name, text)
            said = "\n".join((done.stderr or done.stdout).replace(str(source), str(kept)).splitlines()[:LINES])
            raise BuildError(f"The C++ compiler rejects {name} (see {kept}; please report it): it says\n{said}")
        files = {source.name: text.encode(), library.name: library.read_bytes()}
    facts = {"command": [*command[1:]], "compiler": version, "seconds": seconds, "name": name}
    return _artifact(cache.put(key, files, facts), name, False, seconds)


def _keep(cache: Cache, key: str, name: str, text: str) -> Path:
    """Write a source that does not compile where it can be read later."""
    folder = cache.root / "rejected"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}_{key[:12]}.cpp"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
