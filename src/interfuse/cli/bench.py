"""`interfuse bench TARGET`. In: where to find a model. Out: its time eager, compiled and by peers: a table, JSON."""

from __future__ import annotations

from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Json, Off, Race, Target, case_of, chosen, command, output, progress, write


@command
def bench(
    target: Target,
    json: Json = None,
    peer: Annotated[list[str] | None, typer.Option(help="time another compiler beside: inductor (repeatable)")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="timed runs of each contender, taking turns")] = 30,
    race: Race = None,
    off: Off = None,
) -> None:
    """Time a model eager, compiled by Interfuse and by peers, taking turns in one process."""
    with progress() as watch:
        case = case_of(target)
        found = interfuse.bench(
            case.model,
            case.inputs,
            case.kwargs,
            peers=peer or (),
            rounds=rounds,
            name=target,
            watch=watch,
            **chosen(race, off),
        )
    write(json, found.to_json())
    output().print(found, highlight=False, markup=False)
