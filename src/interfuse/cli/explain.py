"""`interfuse explain TARGET`. In: where to find a model and its inputs. Out: the ledger, printed and as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

import interfuse
from interfuse.cli.common import Json, Off, Race, Target, case_of, chosen, command, output, progress, write


@command
def explain(
    target: Target,
    json: Json = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="measure another compiler beside: inductor (repeatable)")
    ] = None,
    measure: Annotated[bool, typer.Option(help="run the model beside eager, or only plan, build and race")] = True,
    region: Annotated[str, typer.Option(help="show this region in full instead of the whole ledger")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="timed runs of each contender")] = 30,
    counters: Annotated[
        bool, typer.Option("--counters", help="also read what crosses device memory from hardware counters (ncu)")
    ] = False,
    race: Race = None,
    off: Off = None,
) -> None:
    """Compile a model, run it beside eager, and print what each fused region saved and why."""
    with progress() as watch:
        case = case_of(target)
        ledger = interfuse.explain(
            case.model,
            case.inputs,
            kwargs=case.kwargs,
            measure=measure and not (region and json is None),  # a region's figures come from its race
            peers=peer or (),
            rounds=rounds,
            name=target,
            counters=target if counters else "",
            watch=watch,
            **chosen(race, off),
        )
    text = ledger.region(region) if region else None
    write(json, ledger.to_json())
    output().print(ledger if text is None else text, highlight=False, markup=False)
