"""`interfuse show TARGET`. In: where to find a model, a stage. Out: what that stage of the compile gave, as text."""

from __future__ import annotations

from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Off, Race, Target, case_of, chosen, command, progress


@command
def show(
    target: Target,
    stage: Annotated[
        str, typer.Option(help="capture, passes, plan, kernel, source (C++ or Triton) or program; kernel by default")
    ] = "",
    region: Annotated[str, typer.Option(help="only regions of this name")] = "",
    stop_after: Annotated[
        str, typer.Option(help="last stage to run: capture, passes, plan, build, race or program")
    ] = "",
    race: Race = None,
    off: Off = None,
) -> None:
    """Print any stage of the compile as text; the compile goes no further than it must."""
    with progress() as watch:
        case = case_of(target)
        text = interfuse.show(
            case.model,
            case.inputs,
            case.kwargs,
            stage=stage,
            region=region,
            stop_after=stop_after,
            watch=watch,
            **chosen(race, off),
        )
    typer.echo(text, nl=False)
