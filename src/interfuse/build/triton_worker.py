"""A process that compiles Triton kernels for a GPU that need not be here. In: JSON jobs, one a line. Out: JSON results.

Stands alone (no torch, nothing else of the package), because a bad kernel can end the process that compiles it. The
first line out is {"triton": version}. A job is {text, entry, arguments, constants, warps, target, assembly, options};
its result {ok, error} or {ok, registers, spills, shared, warps, seconds, assembly_bytes, assembly, hash}, where
`hash` names the compiled kernel in Triton's cache. The first argument names that cache's folder. The process ends with
its input, or after a minute without a job.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import linecache
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource
from triton.runtime import cache
from triton.runtime.build import compile_module_from_src

IDLE_SECONDS = 60.0
ALIGNED = [["tt.divisibility", 16]]


def load(text: str, entry: str) -> Any:
    """The @triton.jit or @gluon.jit function `entry` of the module `text`, whose source Triton finds in linecache."""
    name = f"{entry}.triton.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": f"generated.{entry}"}
    exec(compile(text, name, "exec"), namespace)
    return namespace[entry]


def source_of(function: Any, signature: dict[str, str], constants: dict[str, int], attrs: dict[Any, Any]) -> Any:
    """What Triton compiles: @triton.jit or @gluon.jit, of which the latter is imported where a kernel is written so."""
    if not function.is_gluon():
        return ASTSource(function, signature, constants, attrs)
    runtime = importlib.import_module("triton.experimental.gluon._runtime")
    return runtime.GluonASTSource(function, signature, constants, attrs)


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one job; every pointer is taken to be aligned to 16 bytes."""
    started = time.perf_counter()
    kind, arch = job["target"].split(":")
    target = GPUTarget("cuda", int(arch), 32) if kind == "cuda" else GPUTarget("hip", arch, 64)
    signature = dict(job["arguments"]) | {name: "constexpr" for name, _ in job["constants"]}
    attrs = {(k,): ALIGNED for k, (_, of) in enumerate(job["arguments"]) if of.startswith("*")}
    source = source_of(load(job["text"], job["entry"]), signature, dict(job["constants"]), attrs)
    launcher = threading.Thread(target=build_launcher, args=(source,))
    launcher.start()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        compiled = triton.compile(source, target=target, options={"num_warps": job["warps"], **job["options"]})
    launcher.join()
    assembly = compiled.asm["ptx" if kind == "cuda" else "amdgcn"]
    figures = _nvidia(said.getvalue() or _assembled(assembly, int(arch))) if kind == "cuda" else _amd(assembly)
    return {
        "ok": True,
        **figures,
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "seconds": time.perf_counter() - started,
        "assembly_bytes": len(assembly),
        "assembly": assembly if job["assembly"] else "",
        "hash": compiled.hash,
    }


def build_launcher(source: ASTSource) -> None:
    """Have the C module in Triton's cache that launches kernels of this signature, where this Triton has one for each.

    The process that launches would build it otherwise, one kernel after the other.
    """
    with contextlib.suppress(Exception):  # that process will say what is wrong
        text = driver.make_launcher(source.constants, source.signature, None)
        places = {"library_dirs": driver.library_dirs(), "include_dirs": driver.include_dirs}
        compile_module_from_src(src=text, name="__triton_launcher", libraries=driver.libraries, **places)


@functools.cache
def own_key() -> str:
    """Changes where Triton does: its version, and size and time of each of its files. Triton's own key is a digest of
    all of them, half a gigabyte that every process would read.
    """
    root = Path(triton.__file__).parent
    folders = ((Path(folder), names) for folder, _, names in os.walk(root) if not folder.endswith("__pycache__"))
    files = ((folder / name, (folder / name).stat()) for folder, names in folders for name in names)
    stamps = sorted(f"{path.relative_to(root)} {found.st_size} {found.st_mtime_ns}" for path, found in files)
    return f"{triton.__version__} {hashlib.sha256('; '.join(stamps).encode()).hexdigest()}"


def _nvidia(report: str) -> dict[str, int]:
    """Registers a thread and bytes spilled, as `ptxas -v` reports them."""
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", report))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", report))
    return {"registers": registers, "spills": spills}


def _assembled(ptx: str, arch: int) -> str:
    """The report of `ptxas -v`, where Triton had the kernel in its cache and did not ask for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        # Beside the input and output these are the flags that Triton itself gives and that change the code.
        allocation = ["--regAllocOptLevel=2"] if [*map(int, triton.__version__.split(".")[:2])] >= [3, 7] else []
        command = [
            get_ptxas(arch).path,
            "-v",
            "--fmad=false",
            *allocation,
            f"--gpu-name={sm_arch_from_capability(arch)}",
            str(path),
            "-o",
            str(path.with_suffix(".cubin")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr + done.stdout


def _amd(assembly: str) -> dict[str, int]:
    """Vector registers a thread and bytes spilled, as the assembly's metadata states them."""

    def figure(name: str) -> int:
        return max((int(n) for n in re.findall(rf"\.{name}:\s+(\d+)", assembly)), default=0)

    return {"registers": figure("vgpr_count"), "spills": 4 * figure("vgpr_spill_count")}


def main() -> None:
    """Answer jobs until the input ends."""
    if len(sys.argv) > 1:
        triton.knobs.cache.dir = sys.argv[1]
    triton.knobs.nvidia.dump_ptxas_log = True
    cache.triton_key = own_key
    out = sys.stdout
    sys.stdout = sys.stderr  # what Triton prints must not come between the answers
    print(json.dumps({"triton": triton.__version__}), file=out, flush=True)
    # One job at a time, so nothing is ever left over in the buffer when this waits.
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        try:
            answer = compile_job(json.loads(line))
        except Exception as error:  # whatever the compiler throws is this kernel's answer
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
