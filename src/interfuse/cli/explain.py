"""`interfuse explain MODULE:FUNCTION`. In: where to find a model and its inputs. Out: the ledger, printed or as JSON.

The function takes no arguments and returns (model, inputs) or (model, inputs, kwargs), inputs a tuple or one tensor.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import interfuse
from interfuse.base.errors import InterfuseError
from interfuse.report.table import WIDTH


def explain(
    target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="a function that returns (model, inputs)")],
    json: Annotated[Path | None, typer.Option(help="write the ledger as JSON to this file")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="another compiler to measure beside: inductor")] = None,
    measure: Annotated[bool, typer.Option(help="run the model beside eager, or only plan, build and race")] = True,
    region: Annotated[str, typer.Option(help="show this region in full instead of the whole ledger")] = "",
) -> None:
    """Compile a model, run it beside eager, and print what each fused region saved and why."""
    model, inputs, kwargs = _model_of(_function(target))
    console = Console(stderr=True)
    try:
        with console.status("compiling ...") as status:
            ledger = interfuse.explain(
                model,
                inputs,
                kwargs=kwargs,
                measure=measure,
                peers=peer or (),
                name=target,
                watch=lambda stage, done=0, total=0: status.update(f"{stage} ..."),
            )
        text = ledger.region(region) if region else None
    except InterfuseError as error:
        fail(str(error), 1)
    if json is not None:
        _write(json, ledger.to_json())
    output().print(ledger if text is None else text, highlight=False, markup=False)


def output() -> Console:
    """Standard output: as wide as the terminal, or as a ledger likes where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def fail(sentence: str, status: int) -> NoReturn:
    """End the command: one sentence on stderr, and the exit status."""
    typer.echo(f"interfuse: {sentence}", err=True)
    raise typer.Exit(status)


def _function(target: str) -> Callable[[], Any]:
    """The function that `target` names; modules in the working directory are found as `python -m` finds them."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        fail(f"{target!r} is not MODULE:FUNCTION; write for example package.module:function.", 2)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        fail(f"{module_name} cannot be imported ({error}): run from the folder that holds it, or install it.", 2)
    function = getattr(module, name, None)
    if not callable(function):
        fail(f"{module_name} has no function {name}: check the name after the colon.", 2)
    return function  # type: ignore[no-any-return]


def _model_of(function: Callable[[], Any]) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    made = function()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0])):
        fail(f"{function.__name__} must return (model, inputs) or (model, inputs, kwargs), with a model to call.", 2)
    model, inputs, *rest = made
    return model, inputs if isinstance(inputs, (tuple, list)) else (inputs,), dict(rest[0]) if rest else {}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror}): name another file with --json.", 1)
