"""The passes in order. In: nothing. Out: one flat named list, which the driver runs from first to last."""

from __future__ import annotations

from collections.abc import Callable

from interfuse.ir.graph import Graph
from interfuse.passes.drop_rounds import drop_rounds
from interfuse.passes.few_rows import few_rows
from interfuse.passes.simplify import simplify

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("simplify", simplify),
    ("few_rows", few_rows),
    ("drop_rounds", drop_rounds),
    ("simplify_again", simplify),
)
"""Every pass: its name, which is its file's too, and its function."""
