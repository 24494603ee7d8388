"""Products on tile registers. In: awkward sizes, layouts, activations and numbers. Out: what float64 gives, or the
library's where pieces do not add up. The loops that stand for tile registers give the same bits as these.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch

import interfuse
from interfuse.base.knobs import current, override
from interfuse.emit.linear import ACTIVATIONS
from interfuse.run import linear as module
from interfuse.run.linear import Function, built, linear, missing
from tests.judge import judge_arrays
from tests.run.test_providers import meaning

HERE = missing(current()) is None
FORMS = [pytest.param(True, marks=pytest.mark.skipif(not HERE, reason="this CPU has no tile registers")), False]
"""With tile registers, and with loops in their place."""

EAGER: Mapping[str, Any] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "swish": torch.nn.functional.silu,
}


@cache
def function(tiles: bool) -> Function:
    return built(current(), tiles)


def refused(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> torch.Tensor:
    raise AssertionError("the function was to multiply these itself")


def library(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> torch.Tensor:
    return torch.full((), 42.0)


def made(
    rows: int, columns: int, depth: int, x_rows: bool = True, weight_rows: bool = True, bias: bool = True
) -> list[torch.Tensor]:
    """x, weight and bias; where not `x_rows`, the columns of x lie side by side."""
    generator = torch.Generator().manual_seed(rows + columns + depth)
    x, weight = (torch.randn(n, depth, generator=generator) for n in (rows, columns))
    x, weight = (t if in_rows else t.t().contiguous().t() for t, in_rows in ((x, x_rows), (weight, weight_rows)))
    return [x, weight, *([torch.randn(columns, generator=generator)] if bias else [])]


def check(tensors: list[torch.Tensor], tiles: bool, activation: str = "none") -> None:
    got = linear(tensors, {"activation": activation}, refused, function(tiles))
    eager = EAGER[activation](torch.nn.functional.linear(*tensors))
    exact = EAGER[activation](torch.nn.functional.linear(*(t.double() for t in tensors)))
    verdict = judge_arrays(got, eager, exact)
    assert verdict.ok, verdict
    assert got.is_contiguous()


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize("weight_rows", [True, False])
@pytest.mark.parametrize("x_rows", [True, False])
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 40, 64), (33, 47, 65), (40, 1, 7), (300, 70, 130), (48, 100, 1700)])
def test_sizes_and_layouts(size: tuple[int, int, int], x_rows: bool, weight_rows: bool, tiles: bool) -> None:
    check(made(*size, x_rows, weight_rows), tiles)


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str, bias: bool, tiles: bool) -> None:
    check(made(35, 50, 60, bias=bias), tiles, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_means_what_the_planner_takes_it_for(activation: str) -> None:
    tensors = made(6, 7, 5)
    got = linear(tensors, {"activation": activation}, refused, function(False))
    want = torch.from_numpy(meaning("interfuse.linear", tensors, {"activation": activation}))
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not HERE, reason="this CPU has no tile registers")
@pytest.mark.parametrize("size", [(70, 90, 1000), (257, 33, 31)])
def test_loops_give_the_bits_of_tile_registers(size: tuple[int, int, int]) -> None:
    ours, theirs = (linear(made(*size), {}, refused, function(tiles)) for tiles in (True, False))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("tiles", FORMS)
def test_leading_dimensions_and_rows_apart(tiles: bool) -> None:
    x, weight, bias = made(24, 50, 60)
    wide = torch.randn(24, 120)
    wide[:, 30:90] = x
    want = linear([x, weight, bias], {}, refused, function(tiles))
    assert torch.equal(
        linear([x.view(2, 3, 4, 60), weight, bias], {}, refused, function(tiles)), want.view(2, 3, 4, 50)
    )
    assert torch.equal(linear([wide[:, 30:90], weight, bias], {}, refused, function(tiles)), want)
    apart = torch.randn(24, 120)[:, ::2].copy_(x)
    assert torch.equal(
        linear([apart, weight, bias[:1].expand(50)], {}, refused, function(tiles)),
        linear([x, weight, bias[:1].repeat(50)], {}, refused, function(tiles)),
    )


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12, 1e25])
def test_sizes_of_numbers(scale: float, tiles: bool) -> None:
    x, weight = made(35, 50, 60, bias=False)
    check([x * scale, weight], tiles)
    check([x, weight * scale], tiles)


@pytest.mark.parametrize("tiles", FORMS)
def test_zeros_are_numbers_like_others(tiles: bool) -> None:
    x, weight, bias = made(70, 50, 60)
    x[3] = 0.0
    weight[:, 5] = 0.0
    weight[20] = -0.0
    check([x, weight, bias], tiles)
    check([torch.zeros_like(x), weight, bias], tiles)


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38])
@pytest.mark.parametrize("operand", [0, 1])
def test_what_pieces_do_not_add_up_to_is_the_librarys(operand: int, bad: float, tiles: bool) -> None:
    tensors = made(70, 50, 60)
    tensors[operand][33, 7] = bad
    assert linear(tensors, {}, library, function(tiles)).item() == 42.0


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize(("row", "column"), [(1e-38, 1.0), (1.0, 1e-40), (1e-20, 1e-20)])
def test_rows_of_tiny_numbers_are_the_librarys(row: float, column: float, tiles: bool) -> None:
    x, weight, bias = made(70, 50, 60)
    x[65] *= row
    weight[40] *= column
    assert linear([x, weight, bias], {}, library, function(tiles)).item() == 42.0


@pytest.mark.parametrize("tiles", FORMS)
def test_a_tiny_number_among_others_is_none(tiles: bool) -> None:
    x, weight, bias = made(70, 50, 60)
    x[:, ::7] *= 1e-39
    weight[:, ::5] *= 1e-30
    check([x, weight, bias], tiles)


@pytest.mark.parametrize("tiles", FORMS)
@pytest.mark.parametrize("scales", [(1e-19, 1e-19), (1e-17, 1e-17), (1e-15, 1e-19), (1e-33, 1.0)])
def test_tiny_numbers_behind_a_large_one_are_the_librarys(scales: tuple[float, float], tiles: bool) -> None:
    """The large one meets a 0, so that the sums are made of the others alone."""
    x, weight = (t * scale for t, scale in zip(made(40, 50, 60, bias=False), scales, strict=True))
    x[:, 0], weight[:, 0] = 1.0, 0.0
    if scales[1] == 1.0:
        weight[:, 1:] = torch.eye(50, 59)
    assert linear([x, weight], {}, library, function(tiles)).item() == 42.0


@pytest.mark.parametrize("tiles", FORMS)
def test_sums_that_are_zero_are_no_tiny_ones(tiles: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randint(-1, 2, (n, 64), generator=generator).float() for n in (70, 50))
    assert ((x @ weight.t()) == 0).any()
    assert torch.equal(linear([x, weight], {}, refused, function(tiles)), x @ weight.t())


def test_nothing_to_do_is_the_librarys() -> None:
    for x, weight in (((0, 4), (3, 4)), ((2, 0), (3, 0)), ((2, 4), (0, 4))):
        assert linear([torch.ones(x), torch.ones(weight)], {}, library, function(False)).item() == 42.0


@pytest.mark.parametrize("tiles", FORMS)
def test_threads_do_not_change_a_bit(tiles: bool) -> None:
    tensors, before = made(300, 200, 130), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = linear(tensors, {}, refused, function(tiles))
        torch.set_num_threads(2)
        assert torch.equal(alone, linear(tensors, {}, refused, function(tiles)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("tiles", FORMS)
def test_products_behind_each_other_in_a_sum_of_many(tiles: bool) -> None:
    """What each part of a long sum leaves is added up in f32, whatever lay in the result's memory before."""
    x, weight, bias = made(40, 40, 2500)
    poisoned = [torch.full((40, 40), math.nan) for _ in range(8)]
    del poisoned
    check([x, weight, bias], tiles)


def test_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_text", lambda: "flags : fpu avx512f")
    assert missing(current()) == "this CPU has no tile registers (AMX)"
    monkeypatch.setattr(module, "cpu_text", lambda: "flags : amx_tile amx_bf16")
    with override(vector="portable"):
        assert "beside vectors of AVX-512" in str(missing(current()))
    monkeypatch.setattr(module, "vector_level", lambda knobs: "avx512")
    monkeypatch.setattr(module, "function", lambda knobs: lambda buffers, numbers: 1)
    assert "does not let programs use" in str(missing(current()))


@pytest.mark.skipif(not HERE, reason="this CPU has no tile registers")
def test_a_model_whose_products_run_on_them() -> None:
    """Weights stay live: what is loaded into them later counts."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 600), torch.nn.GELU(), torch.nn.Linear(600, 512)).eval()
    x = torch.randn(300, 512)
    ledger = interfuse.explain(model, (x,), tiles=True, race=False)
    regions = json.loads(ledger.to_json())["regions"]
    assert [r["candidates"][r["chosen"]]["label"].split()[0] for r in regions] == ["interfuse.linear"] * 2
    compiled = interfuse.compile(model, tiles=True, race=False)
    for _ in range(2):
        with torch.no_grad():
            verdict = judge_arrays(compiled(x), model(x), copy.deepcopy(model).double()(x.double()))
        assert verdict.ok, verdict
        for p in model.parameters():
            p.data.mul_(1.5)
