"""`interfuse whatif TARGET --gpu NAME,...`. In: a model, GPUs that need not be here. Out: plans, predicted times."""

from __future__ import annotations

from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Json, Off, Target, chosen, command, loaded, output, progress, write


@command
def whatif(
    target: Target,
    gpu: Annotated[list[str], typer.Option(help="GPUs to plan for, separated by commas (repeatable)")],
    json: Json = None,
    off: Off = None,
) -> None:
    """Plan a model for GPUs that are not here: what would run on each, how long by prediction, registers and spills."""
    with progress() as watch:
        case = loaded(target)
        found = interfuse.whatif(
            case.model,
            case.inputs,
            case.kwargs,
            gpus=[name.strip() for part in gpu for name in part.split(",") if name.strip()],
            name=target,
            watch=watch,
            **chosen(None, off),
        )
    write(json, found.to_json())
    output().print(found, highlight=False, markup=False)
