"""Processes that compile Triton kernels. In: jobs. Out: their answers, None where a job ended its process.

Starting one takes as long as a small kernel's compilation, so they are begun before there is work for them and wait for
more of it afterwards, a minute at most.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from interfuse.base.errors import CompilerMissingError

WORKER = Path(__file__).with_name("triton_worker.py")
SECONDS = 300.0
"""How long one kernel may take to compile."""

KEPT = 4
"""Workers that wait for more work at once at most."""


class Worker:
    """One compiling process."""

    def __init__(self, folder: str) -> None:
        # -P keeps this folder, whose triton.py is not the package, out of the import path.
        command = [sys.executable, "-P", str(WORKER), *([folder] if folder else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.proved = False
        """True once it has answered."""

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def _read(self) -> dict[str, Any] | None:
        """The next answer; None where the process ended or took too long."""
        out = self._process.stdout
        assert out is not None
        # One answer a job, so nothing is ever left over in the buffer when this waits.
        ready, _, _ = select.select([out], [], [], SECONDS)
        line = out.readline() if ready else ""
        return json.loads(line) if line else None

    def run(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a job; None where it ended the worker, which is then closed. CompilerMissingError where the
        worker does not start.
        """
        if not self.proved and self._read() is None:
            self.close()
            raise CompilerMissingError(
                "the Triton worker does not start: install triton (python -c 'import triton' shows what fails)."
            )
        self.proved = True
        stream = self._process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(job) + "\n")
            stream.flush()
            answer = self._read()
        except BrokenPipeError:
            answer = None
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Workers:
    """The waiting workers of one cache folder of Triton's, its own default for "". Safe between threads."""

    def __init__(self, folder: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._waiting: list[Worker] = []

    def begin(self, count: int = 1) -> None:
        """Have at least so many waiting, without waiting for them."""
        with self._lock:
            self._waiting = [w for w in self._waiting if w.alive]
            self._waiting += [Worker(self._folder) for _ in range(count - len(self._waiting))]

    def run(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of a worker to a job; None where it ended the worker or passed SECONDS. CompilerMissingError where
        no worker starts.
        """
        worker = self._take()
        used = worker.proved
        answer = worker.run(job)
        if answer is None and used:  # it may have stopped waiting at this moment
            worker = Worker(self._folder)
            answer = worker.run(job)
        if answer is not None:
            self._give(worker)
        return answer

    def _take(self) -> Worker:
        with self._lock:
            while self._waiting:
                worker = self._waiting.pop()
                if worker.alive or not worker.proved:
                    return worker
        return Worker(self._folder)

    def _give(self, worker: Worker) -> None:
        with self._lock:
            if len(self._waiting) < KEPT:
                self._waiting.append(worker)
                return
        worker.close()


def workers_of(folder: Path | None) -> Workers:
    """The workers for a cache folder of Triton's; None for its default."""
    return _workers(str(folder or ""), os.getpid())


@cache
def _workers(folder: str, process: int) -> Workers:
    """One set for each folder and process: a child begins its own."""
    return Workers(folder)
