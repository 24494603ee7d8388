"""`python -m interfuse`. In: the command line's arguments. Out: what the subcommand prints."""

from __future__ import annotations

from interfuse.cli.main import app

if __name__ == "__main__":
    app(prog_name="interfuse")
