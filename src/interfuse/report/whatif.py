"""Plans for GPUs that are not here, as text and JSON. In: an account for each GPU. Out: a value that prints.

Every time in it is predicted and carries its error bar; registers and spills are the assembler's for that GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from interfuse.report.figures import WIDTH, figure, percent, plain_table, to_text
from interfuse.report.table import predicted
from interfuse.report.values import Account, Candidate, Region

SCHEMA = 1
"""Version of the JSON form."""

MOST_ALIKE = 3
"""Figures of a plan's kernels that stand in a row even where they are equal."""


@dataclass(frozen=True)
class Predicted:
    """Microseconds, and the bar around them: plus or minus so many microseconds."""

    us: float
    bar_us: float

    def __str__(self) -> str:
        return f"{figure(self.us)} +-{figure(self.bar_us)}"


@dataclass(frozen=True)
class Outlook:
    """What one GPU is expected to do with the model."""

    gpu: str
    account: Account

    @property
    def ours(self) -> Predicted:
        """The plan's time, all regions."""
        return _sum(r.choice for r in self.account.regions)

    @property
    def eager(self) -> Predicted:
        """The captured calls' time."""
        return _sum(r.library for r in self.account.regions)


@dataclass(frozen=True)
class WhatIf:
    """One model on several GPUs, the fastest first."""

    model: str
    outlooks: tuple[Outlook, ...]

    def to_json(self) -> str:
        """One JSON object: schema, model, and for each GPU eager's and our time and its regions with all candidates."""
        gpus = [
            {
                "gpu": o.gpu,
                "eager": asdict(o.eager),
                "interfuse": asdict(o.ours),
                "regions": [asdict(r) for r in o.account.regions],
                "kernels": [asdict(k) for k in o.account.kernels],
            }
            for o in self.outlooks
        ]
        return json.dumps({"schema": SCHEMA, "model": self.model, "gpus": gpus}, indent=2)

    def __str__(self) -> str:
        return to_text(self._parts(), WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._parts()

    def _parts(self) -> Iterator[RenderableType]:
        yield Text(f"\n  {self.model}: predicted, nothing measured\n", style="bold")
        table = plain_table(("GPU", "left"), *((h, "right") for h in ("eager us", "interfuse us", "", "launches")))
        for o in self.outlooks:
            launches = sum(r.choice.launches for r in o.account.regions)
            gain = f"{o.eager.us / o.ours.us:.2f}x" if o.ours.us else ""
            table.add_row(o.gpu, str(o.eager), str(o.ours), gain, str(launches))
        yield Padding(table, (0, 0, 1, 4))
        for o in self.outlooks:
            yield Text(f"  {o.gpu}", style="bold")
            yield Padding(_regions_table(o.account), (0, 0, 1, 4))
            yield from (Padding(Text(f"warning: {w}"), (0, 0, 0, 4)) for w in o.account.warnings)
            yield from (Padding(Text(f"runs as captured: {f}"), (0, 0, 0, 4)) for f in o.account.fallbacks)


def _sum(candidates: Iterable[Candidate]) -> Predicted:
    """The times one after the other. Bars of one model lean the same way, so they add up too."""
    found = list(candidates)
    times = [c.predicted_us or 0.0 for c in found]
    return Predicted(sum(times), sum(t * (c.error_bar or 0.0) for t, c in zip(times, found, strict=True)))


def _each(figures: Iterable[str]) -> str:
    """What kernels take one after the other; what many of them take alike, once."""
    found = list(figures)
    return ", ".join(found if len(found) <= MOST_ALIKE else dict.fromkeys(found))


def _regions_table(account: Account) -> Table:
    """One line a candidate, best first; equal regions once."""
    table = plain_table(
        ("region", "left"),
        ("times", "right"),
        ("plan", "left"),
        ("predicted us", "right"),
        ("traffic MiB", "right"),
        ("bound by", "left"),
        ("registers", "right"),
        ("spills", "right"),
        ("occupancy", "right"),
    )
    kernels = {k.name: k for k in account.kernels}
    alike: dict[tuple[str, tuple[Candidate, ...]], list[Region]] = {}
    for region in account.regions:
        if region.before_launches or region.choice.launches:
            alike.setdefault((region.name, region.candidates), []).append(region)
    for (name, candidates), group in alike.items():
        for k, c in enumerate(candidates):
            own = [kernels[n] for n in c.kernels if n in kernels]
            head = (name, str(len(group))) if k == 0 else ("", "")
            table.add_row(
                *map(Text, head),
                Text(c.label),
                predicted(c),
                figure(c.bytes / 2**20),
                c.bound,
                _each(str(x.registers) for x in own),
                _each(str(x.spills) for x in own),
                _each(percent(x.occupancy) for x in own),
            )
    return table
