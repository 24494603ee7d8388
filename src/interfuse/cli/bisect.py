"""`interfuse bisect TARGET`. In: where to find a model. Out: the regions that break the accuracy contract, and scripts.

Status 1 means that the contract is broken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Json, Off, Race, Target, case_of, chosen, command, makeable, progress, write


@command
def bisect(
    target: Target,
    rank: Annotated[bool, typer.Option("--all", help="also rank every region by its own error")] = False,
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", callback=makeable, help="where scripts are written")
    ] = Path(),
    json: Json = None,
    race: Race = None,
    off: Off = None,
) -> None:
    """Compare a compiled model with a float64 run; name the regions at fault and write a script that shows each."""
    with progress() as watch:
        case = case_of(target)
        found = interfuse.bisect(
            case.model, case.inputs, case.kwargs, rank=rank, folder=folder, watch=watch, **chosen(race, off)
        )
    write(json, found.to_json())
    typer.echo(str(found), nl=False)
    raise typer.Exit(0 if found.ok else 1)
