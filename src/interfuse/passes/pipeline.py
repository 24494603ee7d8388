"""The passes in order. In: nothing. Out: one flat named list, which the driver runs from first to last."""

from __future__ import annotations

from collections.abc import Callable

from interfuse.ir.graph import Graph
from interfuse.passes.drop_rounds import drop_rounds
from interfuse.passes.one_row import one_row
from interfuse.passes.simplify import simplify

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("simplify", simplify),
    ("one_row", one_row),
    ("drop_rounds", drop_rounds),
    ("simplify_again", simplify),
)
"""Every pass: its name, which is its file's too, and its function."""
