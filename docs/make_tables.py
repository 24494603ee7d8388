"""The tables of figures from the data files. In: bench/results/*.json. Out: markdown between markers.

python docs/make_tables.py

A figure that no data file holds cannot come into these pages this way; a test holds them to the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "figures.md")
RESULTS = ROOT / "bench" / "results"


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _where(data: Mapping[str, Any], file: str) -> str:
    c = data
    cores = "" if "NVIDIA" in c["device"] else f", {c['cores']} cores"
    return f"{c['device']}{cores}, torch {c['torch']}, commit {c['commit']}, {c['date']}: `bench/results/{file}`"


def models(file: str) -> str:
    """Milliseconds a call of whole models, and how many times faster than eager and Inductor."""
    data = _read(file)
    rows = []
    for name, case in data["cases"].items():
        m = case["measures"]
        ms = {who: m[who]["median_ms"] for who in ("eager", "inductor", "interfuse")}
        gains = (f"{ms['eager'] / ms['interfuse']:.2f}x", f"{ms['inductor'] / ms['interfuse']:.2f}x")
        memory = f"{m['interfuse']['peak_bytes'] / m['eager']['peak_bytes'] - 1:+.0%}"
        rows.append((name, *(f"{v:.3g}" if v < 100 else f"{v:.0f}" for v in ms.values()), *gains, memory))
    times = ("eager ms", "Inductor ms", "Interfuse ms")
    head = ("model, fp32 but for bf16", *times, "against eager", "against Inductor", "peak memory")
    last = list(data["cases"].values())[-1]["circumstances"]
    commits = " and ".join(dict.fromkeys(c["circumstances"]["commit"] for c in data["cases"].values()))
    return f"{_rows(head, rows)}\n\n{_where({**last, 'commit': commits}, file)}"


INDUCTOR = ("inductor", "inductor_max", "inductor_plain", "inductor_max_plain")


def memory_cuda() -> str:
    """Microseconds of memory-bound kernels on a GPU, the best of Inductor's four modes, the share of the twin."""
    data = _read("memory_cuda.json")
    rows, ratios = [], dict[str, float]()
    for name, c in data["cases"].items():
        if "interfuse" not in c:
            continue
        mine, eager = c["interfuse"][0], c["eager"][0]
        peer = min(c[who][0] for who in INDUCTOR if who in c)
        ratios[name] = peer / mine
        times = (f"{v:.1f}" if v < 100 else f"{v:.0f}" for v in (eager, peer, mine))
        if name in data["first"]:
            rows.append((name, *times, f"{eager / mine:.2f}x", f"{peer / mine:.2f}x", f"{c['twin'][0] / mine:.0%}"))
    head = ("fp16", "eager us", "best Inductor us", "Interfuse us", "against eager", "against Inductor", "of its twin")
    first = geometric_mean(r for name, r in ratios.items() if name in data["first"])
    commits = " and ".join(dict.fromkeys(c["commit"] for c in data["cases"].values()))
    where = _where({**data["circumstances"], "commit": commits}, "memory_cuda.json")
    means = f"{first:.2f}x over these, {geometric_mean(ratios.values()):.2f}x over all {len(ratios)} that are measured"
    return f"{_rows(head, rows)}\n\nGeometric mean against Inductor: {means}. {where}"


def products_cuda() -> str:
    """Microseconds of products of f32 on a GPU, their rate, and errors beside eager's."""
    data = _read("products_cuda.json")
    rows = []
    for name, c in data["cases"].items():
        eager, peer, mine = (c[who][0] for who in ("eager", "inductor", "interfuse"))
        times = (f"{v:.1f}" if v < 100 else f"{v:.0f}" for v in (eager, peer, mine))
        rate, error = f"{c['operations'] / mine / 1e6:.1f}", c["errors"]["interfuse"] / c["errors"]["eager"]
        rows.append((name, *times, f"{eager / mine:.2f}x", f"{peer / mine:.2f}x", rate, f"{error:.2f}x"))
    head = ("fp32, rows x features x common", "eager us", "Inductor us", "Interfuse us", "against eager")
    last = ("against Inductor", "TFLOP/s", "error, of eager's")
    return f"{_rows((*head, *last), rows)}\n\n{_where(data['circumstances'], 'products_cuda.json')}"


def traps_cuda() -> str:
    """Microseconds, launches, peak memory and the error's share of what is allowed, of cases that are known traps."""
    data = _read("traps_cuda.json")
    rows = []
    for name, c in data["cases"].items():
        us = {who: c[who]["us"][0] for who in ("eager", "inductor", "interfuse")}
        each = [" / ".join(f"{c[who][key]:.{n}f}" for who in us) for key, n in (("launches", 0), ("peak_mib", 1))]
        gains = (f"{us['eager'] / us['interfuse']:.2f}x", f"{us['inductor'] / us['interfuse']:.2f}x")
        times = (f"{v:.1f}" if v < 100 else f"{v:.0f}" for v in us.values())
        rows.append((name, *times, *gains, *each, f"{c['share_of_allowed']:.0%}", f"{c['first_s']:.1f}"))
    head = ("case", "eager us", "Inductor us", "Interfuse us", "against eager", "against Inductor")
    three = ("launches, likewise", "peak MiB, likewise", "error, of what is allowed", "first call s")
    commits = " and ".join(dict.fromkeys(c["commit"] for c in data["cases"].values()))
    where = _where({**data["circumstances"], "commit": commits}, "traps_cuda.json")
    return f"{_rows((*head, *three), rows)}\n\n{where}"


def kernels_cpu() -> str:
    """Milliseconds of memory-bound kernels on a CPU, outputs in fresh memory, and the share of a bare loop's speed."""
    data = _read("cpu.json")
    rows = []
    for name, c in data["cases"].items():
        kernel, dtype, size = name.split("/")
        if size == "2048x4096":
            ms = {who: c["fresh"][who]["median_ms"] for who in ("eager", "inductor", "interfuse")}
            reused = c["reused"]
            share = reused["twin"]["median_ms"] / reused["interfuse"]["median_ms"]
            gains = (f"{ms['eager'] / ms['interfuse']:.2f}x", f"{ms['inductor'] / ms['interfuse']:.2f}x")
            again = f"{reused['inductor']['median_ms'] / reused['interfuse']['median_ms']:.2f}x"
            rows.append((f"{kernel} {dtype}", *(f"{v:.2f}" for v in ms.values()), *gains, again, f"{share:.0%}"))
    head = ("[2048, 4096]", "eager ms", "Inductor ms", "Interfuse ms", "against eager", "against Inductor")
    last = list(data["cases"].values())[-1]
    table = _rows((*head, "the same, outputs reused", "of a bare loop"), rows)
    return f"{table}\n\n{_where(last['circumstances'], 'cpu.json')}"


def first() -> str:
    """Seconds of a first call of BERT-base, cold and warm."""
    data = _read("first_cpu.json")
    capture = {state: data["contenders"]["capture"][state]["median_s"] for state in ("cold", "warm")}
    rows = []
    for who in ("inductor", "interfuse"):
        seconds = {state: data["contenders"][who][state]["median_s"] for state in ("cold", "warm")}
        beyond = (f"{max(0.0, seconds[state] - capture[state]):.1f}" for state in ("cold", "warm"))
        rows.append((who.capitalize(), *(f"{s:.1f}" for s in seconds.values()), *beyond))
    head = ("first call of BERT-base", "cold s", "warm s", "cold, beyond capture s", "warm, beyond capture s")
    return f"{_rows(head, rows)}\n\n{_where(data['circumstances'], 'first_cpu.json')}"


def first_cuda() -> str:
    """Seconds of the first call of one-kernel functions on a GPU, without tuning, caches empty."""
    data = _read("first_cuda.json")
    rows = []
    for name, kinds in data["functions"].items():
        if "first" in kinds:
            times = [f"{kinds['first'][part]:.2f}" for part in ("capture", "plan", "build", "launch", "after")]
            rows.append((name, *times, f"{kinds['resident']['after']:.2f}" if "resident" in kinds else ""))
    head = ("first call, caches empty", "capture s", "plan s", "build s", "launch s", "beyond capture s")
    table = _rows((*head, "later in a process, beyond capture s"), rows)
    return f"{table}\n\n{_where(data['circumstances'], 'first_cuda.json')}"


def fit() -> str:
    """How far predictions lie from measured times, and how often what they rank first is the fastest."""
    data = _read("fit_cuda.json")
    rows = []
    for name, part in data["judged"].items():
        if not part["cases"]:
            continue  # not measured yet
        off = (f"{part[kind][n]:.0%}" for kind in ("all", "ours") for n in ("median", "ninth decile"))
        right = f"{part['ranked right']} of {part['regions']}"
        rows.append((f"{part['cases']} cases {name}", str(part["all"]["candidates"]), *off, right))
    errors = ("median error", "ninth decile", "median of our kernels", "ninth decile of our kernels")
    head = ("predicted against measured", "candidates", *errors, "ranked first is the fastest, or within 5%")
    return f"{_rows(head, rows)}\n\n{_where(data['circumstances'], 'fit_cuda.json')}"


def _headline(what: str, pairs: list[tuple[float | None, float]]) -> tuple[str, ...]:
    """One row: geometric means of (against eager, against Inductor), and in how many cases Inductor is slower."""
    eager = [e for e, _ in pairs if e is not None]
    gains = (f"{geometric_mean(eager):.2f}x" if eager else "", f"{geometric_mean(p for _, p in pairs):.2f}x")
    return what, str(len(pairs)), *gains, f"{sum(p > 1 for _, p in pairs)} of {len(pairs)}"


def headline() -> str:
    """What all cases together say, one row a kind of case."""

    def pairs(cases: list[tuple[float, float, float]]) -> list[tuple[float | None, float]]:
        return [(eager / mine, peer / mine) for eager, peer, mine in cases]

    def of(measures: Mapping[str, Any]) -> tuple[float, float, float]:
        eager, peer, mine = (measures[who]["median_ms"] for who in ("eager", "inductor", "interfuse"))
        return eager, peer, mine

    def whole(file: str, narrow: bool) -> list[tuple[float | None, float]]:
        found = _read(file)["cases"].items()
        return pairs([of(case["measures"]) for name, case in found if name.endswith("bf16") == narrow])

    def kernels(kind: str) -> list[tuple[float | None, float]]:
        found = _read("cpu.json")["cases"].items()
        return pairs([of(case["fresh"]) for name, case in found if name.endswith(f"/{kind}/2048x4096")])

    on_gpu = [c for c in _read("memory_cuda.json")["cases"].values() if "interfuse" in c]
    times = [(c["eager"][0], min(c[w][0] for w in INDUCTOR if w in c), c["interfuse"][0]) for c in on_gpu]
    starts = _read("first_cpu.json")
    seconds = {s: [starts["contenders"][w][s]["median_s"] for w in ("inductor", "interfuse")] for s in ("cold", "warm")}
    cores, gpu = starts["circumstances"]["cores"], _read("memory_cuda.json")["circumstances"]["device"]
    cpu = f"{starts['circumstances']['device']}, {cores} cores"
    rows = [
        _headline(f"whole models, fp32, {cpu}", whole("models_cpu.json", narrow=False)),
        _headline(f"whole models, bf16, {cpu}", whole("models_cpu.json", narrow=True)),
        _headline(f"memory-bound kernels, fp32, {cpu}", kernels("f32")),
        _headline(f"memory-bound kernels, bf16, {cpu}", kernels("bf16")),
        *(_headline(f"first call of BERT-base, {s}, {cpu}", [(None, a / b)]) for s, (a, b) in seconds.items()),
        _headline(f"whole models, {gpu}", [pair for k in (False, True) for pair in whole("models_cuda.json", k)]),
        _headline(f"memory-bound kernels, fp16, {gpu}", pairs(times)),
    ]
    return _rows(("what, on what", "cases", "against eager", "against Inductor", "faster than Inductor"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "headline": headline,
    "models_cpu": lambda: models("models_cpu.json"),
    "models_cpu_zen4": lambda: models("models_cpu_zen4.json"),
    "kernels_cpu": kernels_cpu,
    "first_cpu": first,
    "models_cuda": lambda: models("models_cuda.json"),
    "memory_cuda": memory_cuda,
    "products_cuda": products_cuda,
    "traps_cuda": traps_cuda,
    "first_cuda": first_cuda,
    "fit": fit,
}
"""Every table by the name in its markers."""


def filled(page: str) -> str:
    """The page with every table between `<!-- table:NAME -->` and `<!-- table:end -->` made anew."""

    def make(match: re.Match[str]) -> str:
        return f"<!-- table:{match[1]} -->\n{TABLES[match[1]]()}\n<!-- table:end -->"

    return re.sub(r"<!-- table:(\w+) -->\n.*?<!-- table:end -->", make, page, flags=re.DOTALL)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
