"""The on-disk cache of built kernels. In: a key and files. Out: entries whose files match the hashes in their manifest.

An entry is a folder named by its key with the files and manifest.json (a SHA-256 a file; `record`: plain JSON facts).
It appears by one rename, so that many processes can build the same key at once and readers see all of it or nothing.
Folders belong to us alone (0700): one that others own or can write is refused, as are files that do not match.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interfuse.base.errors import CacheError
from interfuse.base.knobs import Knobs

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One verified entry: its key, folder, the SHA-256 of each file, and the facts recorded with it."""

    key: str
    folder: Path
    hashes: Mapping[str, str]
    record: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """Where the file `name` of this entry lies."""
        return self.folder / name


@dataclass(frozen=True)
class Cache:
    """A cache folder. `warning` says why it is not the one that was asked for, or is empty."""

    root: Path
    warning: str = ""
    _owner: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def kernels(self) -> Path:
        """The folder of entries."""
        return self.root / "kernels"

    def get(self, key: str, needed: Collection[str] = ()) -> Entry | None:
        """The entry of `key` with every file checked; None where there is none.

        A damaged entry, or one without a file that is `needed`, is dropped.
        """
        folder = self.kernels / key
        if not folder.is_dir():
            return None
        _refuse_foreign(folder)
        try:
            return _checked(key, folder, needed)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CacheError):
            self.drop(key)
            return None

    def put(self, key: str, files: Mapping[str, bytes], record: Mapping[str, Any]) -> Entry:
        """Write an entry; where another process was faster with the same key, its entry stands."""
        with self.workspace() as made:
            hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
            for name, data in files.items():
                (made / name).touch(mode=0o600)  # whatever the umask is: what others can write is refused later
                (made / name).write_bytes(data)
            manifest = {"key": key, "files": hashes, "record": dict(record)}
            (made / MANIFEST).touch(mode=0o600)
            (made / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
            try:
                os.rename(made, self.kernels / key)
            except OSError:
                existing = self.get(key, files)
                if existing is not None:
                    return existing
                self.drop(key)  # what is in the way is no entry
                os.rename(made, self.kernels / key)
        return Entry(key, self.kernels / key, hashes, dict(record))

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private folder on the cache's file system, removed at the end unless it was renamed into place."""
        folder = Path(tempfile.mkdtemp(prefix="making-", dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def drop(self, key: str) -> None:
        """Remove an entry; it vanishes at once."""
        with self.workspace() as gone, contextlib.suppress(FileNotFoundError):
            os.rename(self.kernels / key, gone / "entry")

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        return sorted(p.name for p in self.kernels.iterdir() if p.is_dir())

    def size(self) -> int:
        """Bytes in all entries."""
        return sum(p.stat().st_size for p in self.kernels.rglob("*") if p.is_file())

    def clear(self) -> int:
        """Drop every entry; how many there were."""
        keys = self.keys()
        for key in keys:
            self.drop(key)
        return len(keys)

    def verify(self) -> list[str]:
        """Check every entry; the keys of those that were damaged and are dropped."""
        return [key for key in self.keys() if self.get(key) is None]


def open_cache(knobs: Knobs) -> Cache:
    """The cache in knob `cache_dir`, made where it is missing.

    A folder that cannot be written gives a private temporary cache with a `warning`; so does knob `cache` off, without
    one. CacheError for a folder that somebody else owns or can write: what it holds would be run as code.
    """
    if not knobs.cache:
        return _temporary("")
    root = Path(knobs.cache_dir)
    try:
        for folder in (root, root / "kernels"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(f"no permission to write {folder}")
    except (OSError, ValueError) as error:
        return _temporary(
            f"The cache folder {root} cannot be used ({error}) and kernels are built into a temporary "
            f"one; give a writable folder by INTERFUSE_CACHE."
        )
    return Cache(root)


def usable_cache(knobs: Knobs) -> Cache:
    """The cache of these knobs. CacheError for a folder that cannot be used, where `open_cache` takes another one."""
    cache = open_cache(knobs)
    if cache.warning:
        raise unusable(knobs)
    return cache


def unusable(knobs: Knobs) -> CacheError:
    """What is said of a cache folder that cannot be used."""
    return CacheError(
        f"The cache folder {knobs.cache_dir} cannot be used: give a writable one by INTERFUSE_CACHE, or set "
        "INTERFUSE_USE_CACHE=0 to do without."
    )


def try_folder(folder: Path) -> None:
    """Make a folder in `folder`, or in the nearest above it that is there, and remove it again. OSError where it cannot
    be made: what permissions say is not enough, for root has all of them, in /proc too.
    """
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists() or p.is_symlink())
    Path(tempfile.mkdtemp(prefix="interfuse-", dir=there)).rmdir()


def _temporary(warning: str) -> Cache:
    root = Path(tempfile.mkdtemp(prefix="interfuse-"))
    (root / "kernels").mkdir(mode=0o700)
    cache = Cache(root, warning)
    # The folder lives as long as some copy of the cache value holds the owner, or until the process ends.
    cache._owner.append(_Folder(root))
    return cache


class _Folder:
    """Removes a folder when it is no longer referred to, and at the latest when the process ends."""

    def __init__(self, path: Path) -> None:
        self._remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)


def _refuse_foreign(path: Path) -> None:
    status = path.stat()  # through links: what counts is who can change the bytes
    if status.st_uid != os.geteuid():
        raise CacheError(f"{path} belongs to another user; give a folder of your own by INTERFUSE_CACHE.")
    if status.st_mode & 0o022:
        raise CacheError(f"{path} can be written by other users; run chmod go-w {path} or set INTERFUSE_CACHE.")


def _checked(key: str, folder: Path, needed: Collection[str]) -> Entry:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["key"] != key:
        raise CacheError(f"{folder} holds the entry of another key; it is dropped and built again.")
    if not set(needed) <= set(manifest["files"]):
        raise CacheError(f"{folder} does not list {', '.join(needed)}; the entry is dropped and built again.")
    for name, expected in manifest["files"].items():
        _refuse_foreign(folder / name)
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
            raise CacheError(f"{folder / name} does not match its hash; the entry is dropped and built again.")
    return Entry(key, folder, manifest["files"], manifest["record"])
