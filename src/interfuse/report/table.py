"""The ledger as text. In: an Account or one of its regions. Out: Rich renderables, or a string of a fixed width.

A figure that was not measured says so. Counted figures and measured ones are labelled as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from interfuse.report import evidence
from interfuse.report.figures import WIDTH, figure, plain_table
from interfuse.report.values import FREE_VIEWS, Account, Candidate, Change, Measure, Region, Row, Totals

ROOMY = 105  # columns from which decisions stand beside their rows
NOT_MEASURED = "not measured"
NOT_JUDGED = "not judged: random"
MIB = 2**20


def ledger_parts(account: Account, width: int = WIDTH) -> Iterator[RenderableType]:
    """The whole ledger: heading, totals with peers, rows, what is not fused, fallbacks, compile time."""
    yield Text(f"\n  {heading(account)}\n", style="bold")
    yield Padding(_totals_table(account.totals, account.measures), (0, 0, 1, 4))
    if account.rows:
        yield Padding(_rows_table(account.rows, roomy=width >= ROOMY), (0, 0, 1, 4))
    if width < ROOMY:
        yield from (_indented(line) for line in _decision_lines(account.rows))
    yield from (_indented(line) for line in _unfused_lines(account))
    yield from (_indented(f"fell back to the library: {line}") for line in account.fallbacks)
    yield from (_indented(f"warning: {line}") for line in account.warnings)
    yield from (_indented(line) for line in _compile_lines(account))


def heading(account: Account) -> str:
    """One line: the model, the batch, the element type, the device, PyTorch and the plan."""
    m = account.model
    plan = f"plan {m.plan}" if m.plan else ""
    torch = f"torch {m.torch}" if m.torch else ""
    return " · ".join(filter(None, (m.name, m.batch, m.dtype, m.device_name or m.device, torch, plan)))


def region_parts(regions: Sequence[Region], account: Account) -> Iterator[RenderableType]:
    """Regions in full: their calls, every candidate, the choice and the evidence for it, what was turned down; equal
    ones once, together.
    """
    alike: dict[Region, list[Region]] = {}
    for region in regions:
        alike.setdefault(replace(region, subject="", calls=(), sources=()), []).append(region)
    for group in alike.values():
        region = group[0]
        subjects = ", ".join(r.subject for r in group)
        yield Text(f"\n  {subjects}: {_decided(region.decision, region.choice.label)}", style="bold")
        yield _indented(f"because: {region.reason or 'no reason recorded'}")
        yield _indented(f"calls: {', '.join(region.targets)}")
        if sources := sorted({s for r in group for s in r.sources if s}):
            yield _indented(f"from: {', '.join(sources)}")
        yield Padding(_candidates_table(region), (1, 0, 0, 4))
        yield Text("")
        yield from map(_indented, evidence.lines(region, account))
        if (kernels := evidence.kernels(region, account)) is not None:
            yield Padding(kernels, (1, 0, 0, 4))
        yield from (_indented(f"not merged with {r.merge}: {r.reason}") for r in region.rejected)


# --- Figures.


def percent(change: Change) -> str:
    """The change as a signed percentage, "" where it cannot be said."""
    return "" if change.ratio is None else f"{100 * (change.ratio - 1):+.0f} %"


def _or_not(value: float | None, unit: str = "", scale: float = 1.0) -> str:
    return NOT_MEASURED if value is None else f"{figure(value if scale == 1 else value / scale)}{unit}"


def _arrow(change: Change, scale: float = 1.0) -> str:
    if change.before is None and change.after is None:
        return NOT_MEASURED
    before, after = ("?" if v is None else figure(v / scale) for v in (change.before, change.after))
    return f"{before} -> {after}"


def _whole(change: Change) -> str:
    """Counts, which print in full."""
    return " -> ".join("?" if v is None else f"{v:.0f}" for v in (change.before, change.after))


def _times(change: Change) -> str:
    """How many times faster."""
    return f"{1 / change.ratio:.2f}x" if change.ratio else ""


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _indented(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 4))


# --- Tables.


def _totals_table(totals: Totals, measures: tuple[Measure, ...]) -> Table:
    peers = [m for m in measures if m.name not in ("eager", "interfuse")]
    table = plain_table(
        ("", "left"),
        ("eager", "right"),
        ("interfuse", "right"),
        ("", "right"),
        *((p.name, "right") for p in peers),
        ("note", "left"),
    )
    eager, ours = (next((m for m in measures if m.name == n), Measure(n)) for n in ("eager", "interfuse"))

    def add(
        name: str, change: Change, unit: str, scale: float, gain: str, note: str, peer: list[str] | None = None
    ) -> None:
        sides = (_or_not(v, unit, scale) for v in (change.before, change.after))
        table.add_row(name, *sides, gain, *(peer or [""] * len(peers)), note)

    t = totals
    seen = None not in (t.profiled_launches.before, t.profiled_launches.after)
    launches = t.profiled_launches if seen else t.launches
    add(
        "launches",
        launches,
        "",
        1,
        percent(launches),
        f"seen by the profiler; counted from the graph {_whole(t.launches)}" if seen else "counted",
        ["" if p.launches is None else str(p.launches) for p in peers],
    )
    add("memory traffic", t.bytes, " MiB", MIB, percent(t.bytes), "counted")
    if t.dram_bytes.after is not None:
        add("crossed memory", t.dram_bytes, " MiB", MIB, percent(t.dram_bytes), "hardware counters, regions alone")
    add(
        "time",
        t.time_ms,
        " ms",
        1,
        _times(t.time_ms),
        _timing_note(measures),
        [f"{_or_not(p.median_ms, ' ms')} {_times(Change(eager.median_ms, p.median_ms))}".rstrip() for p in peers],
    )
    add("predicted", t.predicted_us, " ms", 1e3, _times(t.predicted_us), "cost model, all regions")
    table.add_row(
        "error, rms",
        *map(_error, (eager, ours)),
        _ratio(t.error_rms.ratio),
        *map(_error, peers),
        "against float64",
    )
    add(
        "peak memory",
        t.peak_bytes,
        " MiB",
        MIB,
        percent(t.peak_bytes),
        "above inputs and parameters",
        [_or_not(p.peak_bytes, " MiB", MIB) for p in peers],
    )
    return table


def _error(measure: Measure) -> str:
    return NOT_JUDGED if measure.random else _scientific(measure.error_rms)


def _scientific(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1e}"


def _timing_note(measures: tuple[Measure, ...]) -> str:
    """How the times were taken: "median of 50, interleaved, +-1.1 %"."""
    timed = [m for m in measures if m.median_ms is not None and m.runs]
    if not timed:
        return ""
    spread = max(m.spread for m in timed)
    share = f"{100 * spread:.1f}" if spread <= 1 else "more than 100"
    busy = ": the machine is busy" if any(m.busy for m in timed) else ""
    return f"median of {min(m.runs or 0 for m in timed)}, interleaved, +-{share} %{busy}"


def _rows_table(rows: tuple[Row, ...], roomy: bool) -> Table:
    """One line a row; where there is little room, predictions are left out and decisions go below (_decision_lines)."""
    counted = any(row.dram_bytes.after is not None for row in rows)
    table = plain_table(
        ("region", "left"),
        ("times", "right"),
        ("launches", "right"),
        ("traffic MiB", "right"),
        *([("counters MiB", "right")] if counted else []),
        *([("predicted us", "right")] if roomy else []),
        ("measured us", "right"),
        *([("ceiling", "right")] if roomy else []),
        ("error", "right"),
        *([("decision", "left")] if roomy else []),
    )
    for row in rows:
        predicted = "-" if row.predicted_us is None else figure(row.predicted_us)
        table.add_row(
            Text(row.name),
            str(row.times),
            _whole(row.launches),
            _arrow(row.bytes, MIB),
            *([] if not counted else ["" if row.dram_bytes.after is None else _arrow(row.dram_bytes, MIB)]),
            *([predicted] if roomy else []),
            _arrow(row.measured_us),
            *(["" if row.of_ceiling is None else f"{100 * row.of_ceiling:.0f} %"] if roomy else []),
            _ratio(row.error_ratio),
            *([Text(_decision(row))] if roomy else []),
        )
    return table


def _decision(row: Row) -> str:
    """What was decided, which candidate runs, and why: "fused: row, resident; 2.77x faster"."""
    return "; ".join(filter(None, (_decided(row.decision, row.label), row.reason)))


def _decided(decision: str, label: str) -> str:
    """The decision; where something else than the library runs, with its label, which may begin with "fused" itself."""
    if decision != "fused":
        return decision
    return label if label.startswith("fused") else f"fused: {label}"


def _decision_lines(rows: tuple[Row, ...]) -> Iterator[str]:
    yield from (f"{row.name}: {_decision(row)}" for row in rows)


def _candidates_table(region: Region) -> Table:
    counted = any(c.dram_bytes is not None for c in region.candidates)
    table = plain_table(
        ("candidate", "left"),
        ("launches", "right"),
        ("traffic MiB", "right"),
        *([("counters MiB", "right")] if counted else []),
        ("predicted us", "right"),
        ("measured us", "right"),
        ("error, rms", "right"),
        ("of allowed", "right"),
    )
    table.add_row("eager", str(region.before_launches), figure(region.before_bytes / MIB))
    for k, c in enumerate(region.candidates):
        mark = " (chosen)" if k == region.chosen else ""
        table.add_row(
            Text(c.label + mark),
            str(c.launches),
            figure(c.bytes / MIB),
            *([] if not counted else ["" if c.dram_bytes is None else figure(c.dram_bytes / MIB)]),
            predicted(c),
            _measured(c),
            _scientific(c.error_rms),
            "" if c.error_share is None else f"{100 * c.error_share:.0f} %",
        )
    return table


def predicted(c: Candidate) -> str:
    """Microseconds with their error bar: 12.3 +-20 %."""
    if c.predicted_us is None:
        return "-"
    return figure(c.predicted_us) + ("" if c.error_bar is None else f" +-{100 * c.error_bar:.0f} %")


def _measured(c: Candidate) -> str:
    if c.median_us is None:
        return NOT_MEASURED
    spread = "" if c.low_us is None or c.high_us is None else f" ({figure(c.low_us)} to {figure(c.high_us)})"
    return figure(c.median_us) + spread


def _unfused_lines(account: Account) -> Iterator[str]:
    for unfused in account.unfused:
        count = sum(n for _, n in unfused.targets)
        named = ", ".join(f"{n} x {target}" for target, n in unfused.targets)
        yield f"not fused: {f'{count} views' if unfused.reason == FREE_VIEWS else named} ({unfused.reason})"


def _compile_lines(account: Account) -> Iterator[str]:
    if account.stages:
        parts = ", ".join(f"{s.name} {figure(s.seconds)}" for s in account.stages)
        found = ", all kernels from the cache" if account.model.cached else ""
        yield f"compiled in {figure(sum(s.seconds for s in account.stages))} s{found}: {parts}"
