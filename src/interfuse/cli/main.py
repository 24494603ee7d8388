"""The `interfuse` command. In: arguments. Out: the subcommand's text; or one sentence on stderr and status 1 or 2.

Status 2 means that the arguments make no sense, 1 that they did and the work failed.
"""

from __future__ import annotations

import typer

from interfuse.cli.doctor import doctor
from interfuse.cli.explain import explain

app = typer.Typer(
    help="Operator fusion for PyTorch, with the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(explain)
app.command()(doctor)
