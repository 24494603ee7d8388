"""The on-disk cache. In: entries, several processes, damage, foreign folders. Out: entries or refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from interfuse.base.errors import CacheError
from interfuse.base.keys import digest
from interfuse.base.knobs import Knobs
from interfuse.build.cache import Cache, open_cache

KEY = digest("one")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(Knobs(cache_dir=tmp_path / "deep" / "cache"))


def test_an_entry_comes_back_with_its_record(cache: Cache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, {"a.txt": b"hello", "b.bin": bytes(300)}, {"seconds": 1.5})
    entry = cache.get(KEY)
    assert entry is not None and entry.path("a.txt").read_bytes() == b"hello"
    assert entry.record == {"seconds": 1.5} and set(entry.hashes) == {"a.txt", "b.bin"}
    assert cache.keys() == [KEY] and cache.size() > 305


def test_folders_and_files_are_private_under_any_umask(cache: Cache) -> None:
    before = os.umask(0)
    try:
        entry = cache.put(KEY, {"a": b"x"}, {})
    finally:
        os.umask(before)
    assert cache.get(KEY) is not None
    for folder in (cache.root, cache.kernels, entry.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["bytes", "missing file", "manifest", "other key"])
def test_a_damaged_entry_is_dropped(cache: Cache, damage: str) -> None:
    entry = cache.put(KEY, {"a": b"good"}, {})
    cache.put(digest("two"), {"a": b"good"}, {})
    if damage == "bytes":
        entry.path("a").write_bytes(b"evil")
    elif damage == "missing file":
        entry.path("a").unlink()
    elif damage == "manifest":
        entry.path("manifest.json").write_text("[1, 2")
    else:
        entry.path("manifest.json").write_text(entry.path("manifest.json").read_text().replace(KEY, digest("x")))
    assert cache.verify() == [KEY]
    assert cache.get(KEY) is None and not entry.folder.exists()
    assert cache.keys() == [digest("two")]
    assert cache.put(KEY, {"a": b"good"}, {}).path("a").read_bytes() == b"good"


def test_the_first_of_two_writers_wins(cache: Cache) -> None:
    first = cache.put(KEY, {"a": b"first"}, {})
    second = cache.put(KEY, {"a": b"second"}, {})
    assert second.hashes == first.hashes and second.path("a").read_bytes() == b"first"


def test_a_damaged_entry_in_the_way_is_replaced(cache: Cache) -> None:
    cache.put(KEY, {"a": b"first"}, {}).path("a").write_bytes(b"evil")
    assert cache.put(KEY, {"a": b"second"}, {}).path("a").read_bytes() == b"second"


def test_clear_drops_everything_and_leaves_no_rubbish(cache: Cache) -> None:
    for k in range(3):
        cache.put(digest(k), {"a": b"x"}, {})
    assert cache.clear() == 3
    assert cache.keys() == [] and cache.size() == 0
    assert [p.name for p in cache.root.iterdir()] == ["kernels"]


@pytest.mark.parametrize("which", ["root", "entry", "file"])
def test_what_others_can_write_is_refused(cache: Cache, which: str) -> None:
    entry = cache.put(KEY, {"a": b"x"}, {})
    {"root": cache.root, "entry": entry.folder, "file": entry.path("a")}[which].chmod(0o777)
    if which == "root":
        with pytest.raises(CacheError, match="chmod go-w"):
            open_cache(Knobs(cache_dir=cache.root))
    elif which == "entry":
        with pytest.raises(CacheError, match="chmod go-w"):
            cache.get(KEY)
    else:
        assert cache.get(KEY) is None


def test_a_folder_of_another_user_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    with pytest.raises(CacheError, match="another user"):
        open_cache(Knobs(cache_dir=cache.root))


def test_an_unusable_folder_gives_a_temporary_cache_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = open_cache(Knobs(cache_dir=tmp_path / "file" / "cache"))
    assert "INTERFUSE_CACHE" in cache.warning
    root = cache.root
    cache.put(KEY, {"a": b"x"}, {})
    assert cache.get(KEY) is not None
    del cache
    assert not root.exists()


def test_a_folder_without_write_permission_gives_a_temporary_cache(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to write" in open_cache(Knobs(cache_dir=cache.root)).warning


def test_the_cache_can_be_turned_off(tmp_path: Path) -> None:
    cache = open_cache(replace(Knobs(cache_dir=tmp_path / "unused"), cache=False))
    assert cache.warning == "" and not (tmp_path / "unused").exists()


WRITER = """
import sys
from pathlib import Path
from interfuse.base.keys import digest
from interfuse.base.knobs import Knobs
from interfuse.build.cache import open_cache
cache = open_cache(Knobs(cache_dir=Path(sys.argv[1])))
for k in range(12):
    data = {"a": f"{k}".encode() * 5000}
    entry = cache.get(digest(k)) or cache.put(digest(k), data, {})
    assert entry.path("a").read_bytes() == data["a"], k
    again = cache.get(digest(k))
    assert again is not None and again.path("a").read_bytes() == data["a"], k
"""


def test_many_processes_share_one_folder(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
    running = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in running:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    cache = open_cache(Knobs(cache_dir=tmp_path / "cache"))
    assert len(cache.keys()) == 12 and cache.verify() == []
    assert [p.name for p in cache.root.iterdir()] == ["kernels"]
