"""Off-line compilation of Triton kernels. In: generated modules, a target. Out: Resources, or BuildError, for each.

Works for GPUs that are absent. Kernels are compiled in worker processes (build/workers.py), one job at a time each:
where a kernel ends its worker, it alone is reported and another worker takes the next one.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interfuse.base.errors import BuildError, CompilerMissingError
from interfuse.base.keys import digest
from interfuse.build.resources import Resources
from interfuse.build.workers import SECONDS, workers_of
from interfuse.emit.triton import TritonSource, chained, options, together, warps_on

FORM = 2
"""Rises where Resources get another field: what was stored before is not read then."""


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
        try:
            while True:
                k = todo.get_nowait()
                results[k] = _result(sources[k], target, workers_of(cache).run(_job(sources[k], target, assembly)))
        except queue.Empty:
            pass
        except CompilerMissingError as error:
            results[k] = error

    threads = [threading.Thread(target=serve) for _ in range(max(1, min(workers, len(sources))))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, CompilerMissingError):
            raise r
    return [r for r in results if isinstance(r, (Resources, BuildError))]


def key(source: TritonSource, target: str) -> str:
    """What the Resources of a source compiled for `target` depend on."""
    try:
        release = version("triton")
    except PackageNotFoundError:  # packaged under another name, or not there at all
        release = ""
    return f"triton {FORM}/{release}/{digest(json.dumps(_job(source, target, False), sort_keys=True))}"


def _job(source: TritonSource, target: str, assembly: bool) -> dict[str, Any]:
    own = chained(source, target)
    constants = {n: own.get(n, v) for n, v in source.constants}
    launch = {n: v for n, v in own.items() if n not in constants}
    return {
        "text": source.text,
        "entry": source.entry,
        "arguments": source.arguments,
        "constants": tuple(constants.items()),
        "warps": warps_on(target.split(":")[0], source.warps),
        "target": target,
        "assembly": assembly,
        "options": options(target.split(":")[0], source.flushes) | launch | together(source),
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
        answer["warps"],
        answer["seconds"],
        answer["assembly"],
        answer["hash"],
    )
