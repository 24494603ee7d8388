"""The results store. In: keys and JSON values. Out: the same values in a later process.

One SQLite file that any number of processes may use at once, readable and writable by its owner alone. It is a cache:
a damaged file is set aside and begun again, and where no file can be used the values live in memory until the process
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from interfuse.base.errors import CacheError
from interfuse.base.record import Record

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value TEXT NOT NULL, written REAL NOT NULL)"
_WAIT_SECONDS = 5.0
_PLAIN: Mapping[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "str": (str,)}
T = TypeVar("T")
_CLAIMING = threading.Lock()


def plain(kind: type[T], value: Any) -> T:
    """The dataclass `kind`, whose fields are numbers and texts, of what `asdict` made of one. ValueError for anything
    else: other names, other types, or NaN.
    """
    if not isinstance(value, Mapping) or value.keys() != {f.name for f in fields(kind)}:  # type: ignore[arg-type]
        raise ValueError(f"no {kind.__name__}: {value}")
    for f in fields(kind):  # type: ignore[arg-type]
        held = value[f.name]
        if type(held) not in _PLAIN[str(f.type)] or held != held:
            raise ValueError(f"no {kind.__name__}: {f.name} is {held!r}")
    return kind(**value)


class Store:
    """A map from text keys to JSON values. Safe between threads, processes and across fork."""

    def __init__(self, path: Path | None, record: Record | None = None) -> None:
        """Open or create the file at `path`; None keeps everything in memory. What goes wrong goes into `record`."""
        self.path, self._record = path, record or Record()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._db = self._open()

    def get(self, key: str) -> Any | None:
        """The value stored under `key`, or None."""
        row = self._run("SELECT value FROM results WHERE key = ?", (key,))
        try:
            return None if not row else json.loads(row[0][0])
        except ValueError:
            return None

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value under `key`, replacing what was there."""
        text = json.dumps(value, sort_keys=True)
        self._run("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (key, text, time.time()))

    def under(self, prefix: str) -> dict[str, Any]:
        """The values of all keys that begin with `prefix`, in the keys' order."""
        rows = self._run(
            "SELECT key, value FROM results WHERE key >= ? AND key < ? ORDER BY key", (prefix, prefix + "\U0010ffff")
        )
        found: dict[str, Any] = {}
        for key, text in rows:
            try:
                found[key] = json.loads(text)
            except ValueError:
                continue
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._pid != os.getpid():
                # SQLite connections do not survive a fork.
                self._pid, self._db = os.getpid(), self._open()
            try:
                return self._execute(statement, values)
            except sqlite3.OperationalError as error:
                # Locked for too long, or the disk is full: the value is measured again another time.
                self._warn(f"not used this time: {error}")
                return []
            except sqlite3.DatabaseError as error:
                self._db.close()
                self._set_aside(str(error))
                self._db = self._open()
                return self._execute(statement, values)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._db:
            return self._db.execute(statement, values).fetchall()

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            for _ in range(2):
                try:
                    return self._file(self.path)
                except sqlite3.OperationalError as error:
                    self._warn(f"cannot be used, results stay in memory: {error}")
                    break
                except sqlite3.DatabaseError as error:
                    self._set_aside(str(error))
                except (OSError, CacheError) as error:
                    self._warn(f"cannot be used, results stay in memory: {error}")
                    break
            self.path = None
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.execute(_SCHEMA)
        return db

    @staticmethod
    def _file(path: Path) -> sqlite3.Connection:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _claim(path)
        db = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(_SCHEMA)
            db.execute("SELECT count(*) FROM results").fetchone()
            db.commit()
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _set_aside(self, why: str) -> None:
        """Rename a damaged file, so that it can be looked at, and begin a new one."""
        if self.path is None:
            return
        aside = self.path.with_name(f"{self.path.name}.damaged-{os.getpid()}-{time.time_ns()}")
        try:
            self.path.rename(aside)
            for companion in ("-wal", "-shm"):
                self.path.with_name(self.path.name + companion).unlink(missing_ok=True)
            self._warn(f"was damaged ({why}); set aside as {aside.name} and begun again")
        except OSError as error:
            self._warn(f"is damaged and cannot be set aside: {error}")
            self.path = None

    def _warn(self, sentence: str) -> None:
        self._record.add("store", str(self.path), warning=sentence)


def _claim(path: Path) -> None:
    """Have a file at `path` that its owner alone, this user, can read; its companions take its mode. CacheError where
    another user's file or no file is there.

    A file that is there is not opened: closing it would drop the locks that other connections of this process hold on
    it, and a process that closes the file then takes away what they have yet to write.
    """
    with _CLAIMING, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    held = path.lstat()
    if not stat.S_ISREG(held.st_mode):
        raise CacheError(f"{path} is no file; remove it or set another cache folder.")
    if held.st_uid != os.geteuid():
        raise CacheError(f"{path} belongs to another user; remove it or set another cache folder.")
    if stat.S_IMODE(held.st_mode) & 0o077:
        path.chmod(0o600)
