"""`interfuse cache list|size|clear|verify`. In: the cache folder. Out: what is kept there, or that it is gone."""

from __future__ import annotations

import typer
from rich.table import Table

from interfuse.base.knobs import current
from interfuse.build.contents import contents
from interfuse.cli.common import command, note, output, progress
from interfuse.report.figures import counted, figure
from interfuse.report.table import MIB

app = typer.Typer(help="Built kernels and race results: list, size, clear, verify.", no_args_is_help=True)


@app.command("list")
@command
def list_kernels() -> None:
    """List every built kernel: its name, key, size and the time that compiling it took."""
    knobs = current()
    kept = contents(knobs)
    kernels = kept.kernels()
    if not kernels:
        typer.echo(f"no kernels in {knobs.cache_dir}")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading, justify in (("kernel", "left"), ("key", "left"), ("KiB", "right"), ("compiled in", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for k in kernels:
        table.add_row(k.name, k.key[:12], figure(k.bytes / 1024), "" if k.seconds is None else f"{k.seconds:.2f} s")
    output().print(table, highlight=False, markup=False)


@app.command()
@command
def size() -> None:
    """Say how many kernels and race results are kept, and the bytes that they take."""
    knobs = current()
    kept = contents(knobs)
    kernels, results = counted(len(kept.kernels()), "kernel"), counted(kept.results(), "race result")
    typer.echo(f"{knobs.cache_dir}: {kernels}, {results}, {figure(kept.size() / MIB)} MiB")


@app.command()
@command
def clear() -> None:
    """Remove every kernel and race result; models build and measure what they need again."""
    kernels, results = contents(current()).clear()
    typer.echo(f"removed {counted(kernels, 'kernel')} and {counted(results, 'race result')}")


@app.command()
@command
def verify() -> None:
    """Check every file against its hash and drop what is damaged. Status 1 where something was."""
    kept = contents(current())
    with progress() as watch:
        watch("checking")
        found = kept.verify()
    for sentence in found:
        note(sentence)
    if found:
        raise typer.Exit(1)
    kernels, results = counted(len(kept.kernels()), "kernel"), counted(kept.results(), "race result")
    typer.echo(f"{kernels} and {results} are whole")
