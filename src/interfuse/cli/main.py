"""The `interfuse` command. In: arguments. Out: the subcommand's text; or one sentence on stderr and status 1 or 2.

Status 2 means that the arguments make no sense or name what is not there or cannot be written, 1 that they did and the
work failed, 130 that it was interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import interfuse
from interfuse.cli import cache
from interfuse.cli.bench import bench
from interfuse.cli.bisect import bisect
from interfuse.cli.common import INTERRUPTED
from interfuse.cli.doctor import doctor
from interfuse.cli.explain import explain
from interfuse.cli.run import run
from interfuse.cli.show import show
from interfuse.cli.tune import tune
from interfuse.cli.whatif import whatif


class Sentences(TyperGroup):
    """A group of commands that reports wrong arguments as one sentence, as every other error is."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; ends the process unless `standalone_mode=False` is given."""
        alone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        if not alone:
            return super().main(*args, **extra)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without our signs shows others in their place
        try:
            status = super().main(*args, **extra)
        except (KeyboardInterrupt, typer.Abort):
            typer.echo(f"interfuse: {INTERRUPTED}", err=True)
            sys.exit(130)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            if sentence := _sentence(error):
                typer.echo(sentence, err=True)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


def _sentence(error: Any) -> str:
    """A usage error in one line with the help that explains it; nothing where help was printed in its place."""
    message, context = str(error.format_message()).strip(), getattr(error, "ctx", None)
    if not message or "\n" in message:
        return message
    words = context.command_path.split()[1:] if context is not None else []
    return f"interfuse: {message.rstrip('.')}; {' '.join(['interfuse', *words])} --help lists what there is."


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"interfuse {interfuse.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Sentences,
    help="Operator fusion for PyTorch, with the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Operator fusion for PyTorch, with the evidence."""


for subcommand in (run, explain, bench, tune, show, whatif, bisect, doctor):
    app.command()(subcommand)
app.add_typer(cache.app, name="cache")
