"""The passes in order. In: nothing. Out: one flat named list, which the driver runs and can stop anywhere in."""

from __future__ import annotations

from collections.abc import Callable

from interfuse.ir.graph import Graph
from interfuse.passes.drop_rounds import drop_rounds
from interfuse.passes.simplify import simplify

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("simplify", simplify),
    ("drop_rounds", drop_rounds),
    ("simplify_again", simplify),
)
"""Every pass: its name in logs, golden folders and the command line, and its function."""
