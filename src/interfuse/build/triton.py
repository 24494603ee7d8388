"""Off-line compilation of Triton kernels. In: generated modules, a target. Out: Resources, or BuildError, for each.

Works for GPUs that are absent. Kernels are compiled in worker processes, one job at a time each: where a kernel ends
its worker, it alone is reported and a new worker takes the next one.
"""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interfuse.base.errors import BuildError, CompilerMissingError
from interfuse.build.resources import Resources
from interfuse.emit.triton import TritonSource, options

WORKER = Path(__file__).with_name("triton_worker.py")
SECONDS = 300.0
"""How long one kernel may take to compile."""


class _Worker:
    """One compiling process. CompilerMissingError where it does not start."""

    def __init__(self, cache: Path | None) -> None:
        # -P keeps this folder, whose triton.py is not the package, out of the import path.
        command = [sys.executable, "-P", str(WORKER), *([str(cache)] if cache else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if self._read() is None:
            self.close()
            raise CompilerMissingError(
                "the Triton worker does not start: install triton (python -c 'import triton' shows what fails)."
            )

    def _read(self) -> dict[str, Any] | None:
        """The next answer; None where the process ended or took too long."""
        out = self._process.stdout
        assert out is not None
        # One answer a job, so nothing is ever left over in the buffer when this waits.
        ready, _, _ = select.select([out], [], [], SECONDS)
        line = out.readline() if ready else ""
        return json.loads(line) if line else None

    def run(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a job; None where it ended the worker, which is then closed."""
        stream = self._process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(job) + "\n")
            stream.flush()
            return self._read()
        except BrokenPipeError:
            return None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def compile_offline(
    sources: Sequence[TritonSource], target: str, workers: int = 1, cache: Path | None = None, assembly: bool = False
) -> list[Resources | BuildError]:
    """Compile for `target` ("cuda:90", "hip:gfx942") with `workers` processes; results in the order of `sources`.

    `cache` is Triton's cache folder (its own default for None); `assembly` keeps PTX or AMDGCN text in the results.
    CompilerMissingError where Triton cannot be imported.
    """
    results: list[Resources | BuildError | CompilerMissingError | None] = [None] * len(sources)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for k in range(len(sources)):
        todo.put(k)

    def serve() -> None:
        worker: _Worker | None = None
        try:
            while True:
                k = todo.get_nowait()
                worker = worker or _Worker(cache)
                answer = worker.run(_job(sources[k], target, assembly))
                results[k] = _result(sources[k], target, answer)
                if answer is None:
                    worker.close()
                    worker = None
        except queue.Empty:
            pass
        except CompilerMissingError as error:
            results[k] = error
        finally:
            if worker:
                worker.close()

    threads = [threading.Thread(target=serve) for _ in range(max(1, min(workers, len(sources))))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, CompilerMissingError):
            raise r
    return [r for r in results if isinstance(r, (Resources, BuildError))]


def _job(source: TritonSource, target: str, assembly: bool) -> dict[str, Any]:
    return {
        "text": source.text,
        "entry": source.entry,
        "arguments": source.arguments,
        "constants": source.constants,
        "warps": source.warps,
        "target": target,
        "assembly": assembly,
        "options": options(target.split(":")[0]),
    }


def _result(source: TritonSource, target: str, answer: dict[str, Any] | None) -> Resources | BuildError:
    if answer is None:
        return BuildError(
            f"{source.entry}: the compiler for {target} crashed or passed {SECONDS:.0f} s; "
            "the region runs the library path."
        )
    if not answer["ok"]:
        first = "\n".join(str(answer["error"]).strip().splitlines()[:8])
        return BuildError(f"{source.entry} does not compile for {target}: {first}")
    return Resources(
        source.entry,
        target,
        answer["registers"],
        answer["spills"],
        answer["shared"],
        source.warps,
        answer["seconds"],
        answer["assembly"],
    )
