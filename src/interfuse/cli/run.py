"""`interfuse run TARGET`. In: where to find a model. Out: what it gives when compiled, and the time of a call."""

from __future__ import annotations

from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Off, Race, Target, case_of, chosen, command, note, progress
from interfuse.report.figures import counted


@command
def run(
    target: Target,
    rounds: Annotated[int, typer.Option(min=1, help="timed calls after the first; their median is shown")] = 10,
    race: Race = None,
    off: Off = None,
) -> None:
    """Compile a model and run it: the shapes and types of its outputs, and the time of a call."""
    with progress() as watch:
        case = case_of(target)
        done = interfuse.once(case.model, case.inputs, case.kwargs, rounds=rounds, watch=watch, **chosen(race, off))
    for number, text in enumerate(done.outputs):
        typer.echo(f"output {number}: {text}")
    t = done.timing
    spread = f" ({t.low * 1e3:.3g} to {t.high * 1e3:.3g}, {t.runs} rounds)" if t.runs > 1 else ""
    typer.echo(f"first call: {done.first_seconds:.2f} s, compile included")
    typer.echo(f"later calls: {t.median * 1e3:.3g} ms{spread}")
    typer.echo(f"{done.fused} of {counted(done.regions, 'region')} in {counted(done.graphs, 'graph')} run kernels")
    for sentence in dict.fromkeys((*done.warnings, *done.fallbacks)):
        note(sentence)
