"""`interfuse tune TARGET`. In: where to find a model, a budget. Out: what was gained a region; choices are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import interfuse
from interfuse.cli.common import Off, Target, alone, case_of, chosen, command, note, output, progress, writable, write
from interfuse.report.figures import counted, figure


@command
def tune(
    target: Target,
    budget: Annotated[float, typer.Option(min=0, help="longest time to measure, in seconds")] = 120.0,
    lock: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=writable, help="also write the winners to this lock file")
    ] = None,
    off: Off = None,
) -> None:
    """Measure schedules of every region of a model and keep the winners; Ctrl-C keeps what was measured."""
    with progress() as watch:
        case = case_of(target)
        found = interfuse.tune_model(
            case.model, case.inputs, case.kwargs, budget=budget, known=lock, watch=watch, **chosen(None, off)
        )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("region", "times", "untuned us", "tuned us", "gain", "winner"):
        table.add_column(heading, justify="left" if heading in ("region", "winner") else "right")
    for name, times, before, after, winner in found.rows:
        table.add_row(name, str(times), figure(before), figure(after), f"{before / after:.2f}x", winner)
    if lock is not None:
        with alone(lock):
            write(lock, found.lock_text())
    if found.rows:
        output().print(table, highlight=False, markup=False)
    elif not found.left + found.unsure + found.failed:
        typer.echo("nothing to choose: no region of this model has more than one candidate")
    if found.unsure:
        note(
            f"{counted(found.unsure, 'region')} could not be timed, since the machine is too busy, so nothing is kept "
            "of that: run it again when less runs beside."
        )
    if found.failed:
        note(f"{counted(found.failed, 'region')} not measured: nothing but the library could be built and run.")
    if found.left:
        why = "interrupted; run it again" if found.interrupted else "give a larger --budget"
        note(f"{counted(found.left, 'region')} not measured: {why} to go on.")
    for sentence in found.warnings:
        note(sentence)
    if found.interrupted:
        raise typer.Exit(130)
