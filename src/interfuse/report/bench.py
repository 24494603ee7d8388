"""Contenders beside each other. In: the measures of one model. Out: a value that prints as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from interfuse.report.figures import WIDTH, figure, to_text
from interfuse.report.table import MIB, NOT_JUDGED, NOT_MEASURED
from interfuse.report.values import Measure, Model

SCHEMA = 1
"""Version of the JSON form."""

HEADINGS = ("", "median ms", "95% interval", "beside eager", "peak MiB", "error rms", "launches")


@dataclass(frozen=True)
class Bench:
    """What was timed, and a Measure for each contender: eager, interfuse, then the peers."""

    model: Model
    measures: tuple[Measure, ...]

    def to_json(self) -> str:
        """One JSON object: schema, model, measures; what was not measured is null."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        return to_text(self._parts(), WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._parts()

    def _parts(self) -> Iterator[RenderableType]:
        m = self.model
        torch = f"torch {m.torch}" if m.torch else ""
        busy = "the machine is busy: times say little" if any(one.busy for one in self.measures) else ""
        parts = (m.name, m.batch, m.dtype, m.device_name or m.device, torch, busy)
        yield Text(f"\n  {' · '.join(filter(None, parts))}\n", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for k, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="left" if k == 0 else "right")
        eager = next((m for m in self.measures if m.name == "eager"), Measure("eager"))
        for measure in self.measures:
            table.add_row(measure.name, *_cells(measure, eager))
        yield Padding(table, (0, 0, 1, 4))


def _cells(m: Measure, eager: Measure) -> tuple[str, ...]:
    known = m.low_ms is not None and m.high_ms is not None
    return (
        NOT_MEASURED if m.median_ms is None else figure(float(m.median_ms)),
        f"{figure(float(m.low_ms or 0))} - {figure(float(m.high_ms or 0))}" if known else "",
        "" if not (m.median_ms and eager.median_ms) else f"{eager.median_ms / m.median_ms:.2f}x",
        "" if m.peak_bytes is None else figure(m.peak_bytes / MIB),
        NOT_JUDGED if m.random else "" if m.error_rms is None else f"{m.error_rms:.1e}",
        "" if m.launches is None else str(m.launches),
    )
