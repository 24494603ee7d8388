"""`interfuse` and `python -m interfuse`. In: the command line's arguments. Out: what the subcommand prints."""

from __future__ import annotations

from interfuse.cli.interrupt import end_at_once

end_at_once()  # until the subcommand begins

from interfuse.cli.main import app  # noqa: E402


def main() -> None:
    """Run the command line and end the process with its status."""
    app(prog_name="interfuse")


if __name__ == "__main__":
    main()
