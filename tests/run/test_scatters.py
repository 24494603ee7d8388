"""Calls that scatter into a fill. In: models. Out: eager's values; one buffer where nothing else reads the fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interfuse.run.memory import peak_bytes
from tests.run.made import compiled

ROWS, WIDTH, COUNT = 512, 16, 40
INDEX = torch.randint(0, ROWS, (COUNT,))
WIDE = INDEX[:, None].expand(COUNT, WIDTH)


def zeros() -> torch.Tensor:
    return torch.zeros(ROWS, WIDTH)


SCATTERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index_put": lambda g: zeros().index_put((INDEX,), g, accumulate=True),
    "scatter_add": lambda g: zeros().scatter_add(0, WIDE, g),
    "scatter": lambda g: torch.full((ROWS, WIDTH), 2.0).scatter(0, WIDE, g),
    "scatter_value": lambda g: zeros().scatter(0, WIDE, 3.0) + g.sum(),
    "scatter_reduce": lambda g: torch.full((ROWS, WIDTH), -9.0).scatter_reduce(0, WIDE, g, "amax"),
    "index_add": lambda g: zeros().index_add(0, INDEX, g),
    "index_copy": lambda g: zeros().index_copy(0, INDEX, g),
    "twice": lambda g: zeros().index_add(0, INDEX, g).index_add(0, INDEX, g * 2),
}

KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "fill_is_a_result": lambda g: (lambda z: (z.index_add(0, INDEX, g), z))(zeros()),
    "fill_is_read_later": lambda g: (lambda z: (z.index_add(0, INDEX, g), z.scatter(0, WIDE, g)))(zeros()),
    "fill_is_the_source": lambda g: (lambda z: z.index_copy(0, INDEX.flip(0), z[:COUNT]) + g.sum())(
        torch.ones(ROWS, 1)
    ),
    "fill_is_the_whole_source": lambda g: (lambda z: z.index_add(0, torch.tensor([0]), z[:1].clone()))(
        g.new_full((1, 1), 2.0)
    ),
    "operand_is_an_input": lambda g: g.index_add(0, INDEX % 8, g),
    "operand_is_repeated": lambda g: torch.zeros(1, WIDTH).expand(ROWS, WIDTH).index_add(0, INDEX, g),
}


@pytest.mark.parametrize("name", [*SCATTERS, *KEPT])
def test_values_are_eagers_and_inputs_stay(name: str) -> None:
    function = (SCATTERS | KEPT)[name]
    g = torch.randn(COUNT, WIDTH)
    before = g.clone()
    fast = compiled(function, [])
    with torch.no_grad():
        for _ in range(2):  # what a program keeps between calls must not be written
            torch.testing.assert_close(fast(g), function(g))
            assert torch.equal(g, before)


@pytest.mark.parametrize("name", ["index_put", "scatter_add", "scatter", "scatter_reduce", "index_add", "index_copy"])
def test_a_fill_that_nothing_else_reads_is_written_into(name: str) -> None:
    g, fast, table = torch.randn(COUNT, WIDTH), compiled(SCATTERS[name], []), ROWS * WIDTH * 4
    with torch.no_grad():
        assert table <= peak_bytes(lambda: fast(g)) < 2 * table
