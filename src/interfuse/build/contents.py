"""What lies in the cache folder. In: knobs. Out: its kernels and race results as lines, sizes, checks; or nothing left.

Nothing is made by looking: a folder that is not there is an empty cache.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from interfuse.base.errors import CacheError
from interfuse.base.knobs import Knobs
from interfuse.base.record import Record
from interfuse.base.store import Store
from interfuse.build.cache import MANIFEST, Cache, try_folder, unusable, usable_cache

RESULTS = "results.sqlite"
"""The file of race results in the cache folder."""

PREDICTED = "predicted "
"""How the keys begin under which the same file keeps what predictions came to (tune/corrections.py)."""


def results(knobs: Knobs, record: Record | None = None) -> Store:
    """The file of results in the cache folder; in memory where nothing is to be cached."""
    return Store(knobs.cache_dir / RESULTS if knobs.cache else None, record)


@dataclass(frozen=True)
class Kept:
    """One built kernel: its name, key, bytes of its files, seconds that compiling it took (None: not known)."""

    name: str
    key: str
    bytes: int
    seconds: float | None


@dataclass(frozen=True)
class Contents:
    """The cache of some knobs. `root` is None where there is none yet, or where it is switched off."""

    root: Path | None

    def kernels(self) -> list[Kept]:
        """Every built kernel, by name; one whose manifest cannot be read is called "damaged"."""
        folder = None if self.root is None else self.root / "kernels"
        if folder is None or not folder.is_dir():
            return []
        return sorted((_kept(p) for p in folder.iterdir() if p.is_dir()), key=lambda k: (k.name, k.key))

    def results(self) -> int:
        """How many race results are kept. CacheError where their file is damaged."""
        path = self._store()
        if path is None:
            return 0
        try:
            with closing(sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True, timeout=5)) as db:
                return int(db.execute(f"SELECT count(*) FROM results WHERE key NOT LIKE '{PREDICTED}%'").fetchone()[0])
        except sqlite3.Error as error:
            raise CacheError(
                f"{path} cannot be read ({error}): run interfuse cache verify, which sets it aside."
            ) from error

    def size(self) -> int:
        """Bytes of everything in the folder."""
        return 0 if self.root is None else sum(p.stat().st_size for p in self.root.rglob("*") if p.is_file())

    def clear(self) -> tuple[int, int]:
        """Remove every kernel and every race result; how many of each there were (0 for results that were damaged)."""
        cache = self._cache()
        if cache is None:
            return 0, 0
        try:
            results = self.results()
        except CacheError:
            results = 0
        try:
            for path in cache.root.glob(f"{RESULTS}*"):
                path.unlink(missing_ok=True)
            for path in (cache.root / "rejected").glob("*.cpp"):
                path.unlink()
            return cache.clear(), results
        except OSError as error:
            raise CacheError(f"{cache.root} cannot be cleared ({error}): remove it by hand.") from error

    def verify(self) -> list[str]:
        """Check every file; a sentence for each kernel that is dropped, and for results that are set aside."""
        cache = self._cache()
        if cache is None:
            return []
        found = [
            f"kernel {key[:12]} was damaged and is dropped; it is built again when needed." for key in cache.verify()
        ]
        path = self._store()
        if path is not None:
            record = Record()
            Store(path, record).close()
            found += [f"{path.name} {e.facts['warning']}." for e in record.of("store")]
        return found

    def _store(self) -> Path | None:
        path = None if self.root is None else self.root / RESULTS
        return path if path is not None and path.exists() else None

    def _cache(self) -> Cache | None:
        return None if self.root is None else Cache(self.root)


def contents(knobs: Knobs) -> Contents:
    """The contents of the cache that these knobs name. CacheError where the folder cannot be used."""
    root = Path(knobs.cache_dir)
    if not knobs.cache:
        return Contents(None)
    try:
        if not root.exists():
            try_folder(root)
            return Contents(None)
    except OSError as error:
        raise unusable(knobs) from error
    return Contents(usable_cache(knobs).root)


def _kept(folder: Path) -> Kept:
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["record"]
        return Kept(str(record["name"]), folder.name, size, float(record["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Kept("damaged", folder.name, size, None)
