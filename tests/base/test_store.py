"""The results store. In: good, damaged, foreign and forbidden files. Out: values, or a warning and a working store."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from interfuse.base.record import Record
from interfuse.base.store import Store, plain


def warnings(record: Record) -> list[str]:
    return [e.facts["warning"] for e in record.of("store")]


def test_values_come_back_in_a_later_store(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.sqlite"
    one = Store(path)
    assert one.get("a") is None
    one.put("a", {"times": [1.5, 2]})
    one.put("a", {"times": [2.5]})
    one.close()
    record = Record()
    assert Store(path, record).get("a") == {"times": [2.5]}
    assert warnings(record) == []


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.touch(mode=0o644)
    path.chmod(0o644)
    store = Store(path)
    store.put("a", 1)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


@pytest.mark.parametrize(
    "junk", [b"this is no database, but long enough to look at" * 40, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, junk: bytes) -> None:
    path, record = tmp_path / "results.sqlite", Record()
    path.write_bytes(junk)
    store = Store(path, record)
    store.put("a", 1)
    assert Store(path).get("a") == 1
    (aside,) = tmp_path.glob("results.sqlite.damaged-*")
    assert aside.read_bytes() == junk
    assert "was damaged" in warnings(record)[0]


def test_a_file_damaged_while_open_is_set_aside(tmp_path: Path) -> None:
    path, record = tmp_path / "results.sqlite", Record()
    store = Store(path, record)
    for k in range(200):
        store.put(f"key {k}", "x" * 200)
    store.close()
    pages = bytearray(path.read_bytes())
    store = Store(path, record)
    pages[4096:] = b"\xff" * (len(pages) - 4096)
    path.write_bytes(bytes(pages))
    assert store.get("key 3") is None
    store.put("key 3", 4)
    assert Store(path).get("key 3") == 4
    assert warnings(record)


def test_an_unusable_place_means_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = Record()
    store = Store(tmp_path / "file" / "results.sqlite", record)
    store.put("a", [1])
    assert store.get("a") == [1]
    assert "stay in memory" in warnings(record)[0]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target, record = tmp_path / "elsewhere", Record()
    target.write_text("precious")
    (tmp_path / "results.sqlite").symlink_to(target)
    Store(tmp_path / "results.sqlite", record).put("a", 1)
    assert target.read_text() == "precious"
    assert "stay in memory" in warnings(record)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    path, record = tmp_path / "results.sqlite", Record()
    Store(path).close()
    os.chown(path, 12345, 12345)
    Store(path, record)
    assert "another user" in warnings(record)[0]


def test_a_value_that_is_no_json_counts_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO results VALUES ('a', '{broken', 0)")
    assert Store(path).get("a") is None


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    store.put("a", 1)
    assert store.get("a") == 1
    assert list(tmp_path.iterdir()) == []


def _write(path: Path, name: str) -> None:
    store = Store(path)
    for k in range(30):
        store.put(f"{name}/{k}", k)


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    spawn = multiprocessing.get_context("spawn")
    workers: list[threading.Thread | multiprocessing.process.BaseProcess] = [
        spawn.Process(target=_write, args=(path, f"p{k}")) for k in range(2)
    ]
    workers += [threading.Thread(target=_write, args=(path, f"t{k}")) for k in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    store = Store(path)
    for name in ("p0", "p1", "t0", "t1", "t2"):
        assert [store.get(f"{name}/{k}") for k in range(30)] == list(range(30))


OTHER = "import sys; from pathlib import Path; from interfuse.base.store import Store; s = Store(Path(sys.argv[1])); "


def test_nothing_is_lost_where_a_process_has_the_file_open_twice(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"

    def other(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", f"{OTHER} s.put({name!r}, 1); print(flush=True); input(); s.close()", path]
        begun = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert begun.stdout is not None and begun.stdout.readline()
        return begun

    first = Store(path)
    first.put("a", 1)
    Store(path).close()  # must not drop the locks of `first`
    other("b").communicate("\n")
    later = other("c")
    first.put("d", 1)
    first.close()
    later.communicate("\n")
    assert Store(path).under("") == dict.fromkeys("abcd", 1)


def test_a_folder_in_its_place_means_memory(tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").mkdir()
    record = Record()
    Store(tmp_path / "results.sqlite", record)
    assert "is no file" in warnings(record)[0]


def test_a_forked_child_opens_the_file_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.sqlite")
    store.put("a", 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if store.get("a") == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("a") == 1


def test_all_values_under_a_prefix(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    for key in ("b/2", "b/1", "a/1", "b", "c/1"):
        store.put(key, key)
    assert list(store.under("b/").items()) == [("b/1", "b/1"), ("b/2", "b/2")]
    assert store.under("d") == {}


@dataclass(frozen=True)
class Kept:
    name: str
    count: int
    share: float


@pytest.mark.parametrize(
    "change", [{"count": "abc"}, {"count": 1.5}, {"count": True}, {"share": None}, {"share": float("nan")}, {"more": 1}]
)
def test_plain_values_are_what_they_were_or_nothing(change: dict[str, object]) -> None:
    kept = Kept("a", 3, 0.5)
    assert plain(Kept, json.loads(json.dumps(asdict(kept)))) == kept
    assert plain(Kept, {**asdict(kept), "share": 2}).share == 2
    for broken in ({**asdict(kept), **change}, {"name": "a"}, [1], None):
        with pytest.raises(ValueError, match="no Kept: "):
            plain(Kept, broken)
