"""What every subcommand shares. In: a command function, a target, errors. Out: one sentence and a status, or a Case.

Status 2 means that the arguments make no sense or name what is not there or cannot be written, 1 that they did and the
work failed, 130 that it was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import interfuse
from interfuse.base.errors import InterfuseError, OptionError
from interfuse.base.knobs import current, misspelt
from interfuse.build import compilers
from interfuse.build.cache import try_folder, usable_cache
from interfuse.cli.interrupt import importing, raise_again
from interfuse.report.figures import WIDTH

if TYPE_CHECKING:
    from interfuse.driver.compiler import Watcher
    from interfuse.driver.load import Case

INTERRUPTED = "interrupted; kernels that were built and races that were decided are kept, so a next run goes on there."

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="package.module:function, path/file.py:function or path/file.pt2")
]
Race = Annotated[
    bool | None, typer.Option("--race/--no-race", help="measure regions against the library, or trust predictions")
]
Off = Annotated[list[str] | None, typer.Option(help="keep regions of this name on the library path (repeatable)")]

Command = TypeVar("Command", bound=Callable[..., None])


def writable(path: Path | None) -> Path | None:
    """`path`, once it is known that `write` can write it; one sentence and status 2, before any work, where not."""
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return path
    real = Path(os.path.realpath(path))
    try:
        if real.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        trial = _unfinished(real)
        trial.touch()
        trial.unlink()
    except OSError as error:
        _unwritable(path, error)
    return path


def makeable(folder: Path) -> Path:
    """`folder`, once it is known that it can be written, or made; one sentence and status 2, before any work, where
    not. Where none is named, that is told when there is something to write.
    """
    try:
        if folder != Path():
            try_folder(folder)
    except OSError as error:
        fail(f"{folder} cannot be written ({error.strerror}): name another folder.", 2)
    return folder


Json = Annotated[
    Path | None,
    typer.Option(metavar="FILE", callback=writable, help="also write the result as JSON to this file"),
]


def command(function: Command) -> Command:
    """The function as a subcommand: whatever it raises becomes one sentence on stderr and an exit status.

    With INTERFUSE_DEBUG set, errors that nobody foresaw keep their traceback.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> None:
        for sentence in misspelt():
            note(sentence)
        try:
            raise_again()
            function(*arguments, **named)
            if sys.stdout is not None:  # as it is where the caller closed it
                sys.stdout.flush()
        except OptionError as error:
            fail(str(error), 2)
        except InterfuseError as error:
            fail(str(error), 1)
        except KeyboardInterrupt:
            fail(INTERRUPTED, 130)
        except BrokenPipeError:
            # Whoever read our output has read enough; what is left must not raise again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:  # the user's model: anything may come out of it
            if current().debug:
                raise
            first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
            fail(
                f"running the model raised {type(error).__name__}: {first}; see whether it runs with "
                "INTERFUSE_DISABLE=1, and set INTERFUSE_DEBUG=1 for the traceback.",
                1,
            )

    return run  # type: ignore[return-value]


def fail(sentence: str, status: int) -> NoReturn:
    """End the command: one sentence on stderr, and the exit status."""
    typer.echo(f"interfuse: {sentence}", err=True)
    raise typer.Exit(status)


def note(sentence: str) -> None:
    """One sentence on stderr; the command goes on."""
    typer.echo(f"interfuse: note: {sentence}", err=True)


def case_of(target: str) -> Case:
    """The model that `target` names, once it is known that kernels can be built and kept.

    OptionError and ModelError as `interfuse.load`, CompilerMissingError without a compiler for a model on the CPU,
    CacheError where the cache folder cannot be used.
    """
    knobs, case = current(), loaded(target)
    if knobs.disable or not knobs.fuse:
        return case
    if case.device == "cpu":
        compilers.find(knobs)
    usable_cache(knobs)
    return case


def loaded(target: str) -> Case:
    """The model that `target` names. OptionError and ModelError as `interfuse.load`."""
    with importing():
        load, _ = interfuse.load, interfuse.compile  # PyTorch takes its time
    return load(target)


def chosen(race: bool | None, off: list[str] | None) -> dict[str, Any]:
    """The options of a compile that the command line gave."""
    return {**({} if race is None else {"race": race}), **({"off": tuple(off)} if off else {})}


@contextmanager
def progress(console: Console | None = None) -> Iterator[Watcher]:
    """A watcher that shows each stage as a bar on stderr, gone at the end; nothing where stderr is no terminal."""
    console = console or Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("loading", total=None, count="")

        def watch(stage: str, done: int = 0, total: int = 0) -> None:
            bars.tasks[0].total = total or None  # an update with None would keep the last stage's
            bars.update(task, description=stage, completed=done, count=f"{done}/{total}" if total else "")

        yield watch


def output() -> Console:
    """Standard output: as wide as the terminal, or as a ledger likes where there is none."""
    return Console() if sys.stdout is not None and sys.stdout.isatty() else Console(width=WIDTH)


def write(path: Path | None, text: str) -> None:
    """Write `text` to `path`, whole or not at all; nothing for None. One sentence and status 2 where that fails.

    What a link names is written; what is no file, as a pipe or /dev/stdout, is written to and never replaced.
    """
    if path is None:
        return
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text + "\n", encoding="utf-8")
            return
        real = Path(os.path.realpath(path))
        unfinished = _unfinished(real)
        try:
            unfinished.write_text(text + "\n", encoding="utf-8")
            unfinished.replace(real)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        _unwritable(path, error)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process that asks for the same is inside at once: for reading a file and writing it again.

    The folder is what is locked, for the file is replaced. Where that cannot be had, all go on.
    """
    folder = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _unfinished(real: Path) -> Path:
    """Where the text of the file `real` lies until it is whole: beside it."""
    return real.parent / f".{real.name}.{os.getpid()}"


def _unwritable(path: Path, error: OSError) -> NoReturn:
    fail(f"{path} cannot be written ({error.strerror}): name another file.", 2)
