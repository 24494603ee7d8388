"""Captured calls' cost. In: calls as capture gives them. Out: what they ask for, and seconds that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from interfuse.cost.library import Asked, asked, library_estimate
from interfuse.cost.model import FITTED, estimate
from interfuse.device.table import find
from tests.plan.made import captured

H200, CPU = find("H200"), find("CPU avx512")
X = torch.zeros(64, 256)


def _asked(f: Callable[..., Any], *inputs: torch.Tensor) -> Asked:
    """What the last call of the function asks for."""
    graph = captured(f, *inputs)
    return asked(graph.calls[-1], dict(graph.hints))


@pytest.mark.parametrize(
    ("f", "single", "across", "rows", "steps"),
    [
        (lambda x: torch.tanh(x), 0, 0, 0, 0),
        (lambda x: x + x[0], X.numel(), 0, 0, 0),
        (lambda x: torch.tanh(x[:, :128]), X.numel() // 2, 0, 0, 0),
        (lambda x: x.t().clone(memory_format=torch.contiguous_format), 0, X.numel(), 0, 0),
        (lambda x: x.sum(-1), X.numel(), 0, 0, 0),
        (lambda x: torch.softmax(x, -1), 0, 0, 0, 0),
        (lambda x: torch.softmax(x.view(8, -1), -1), X.numel() // 2, 0, 8, 0),
        (lambda x: torch.softmax(x, 0), 0, X.numel(), 0, 3 * 64),
        (lambda x: torch.cumsum(x, -1), 0, X.numel(), 0, 16),
        (lambda x: torch.cumsum(x, 0), 0, X.numel(), 0, 64),
        (lambda x: torch.nn.functional.layer_norm(x, (256,)), 0, 0, 0, 0),
        (lambda x: torch.nn.functional.layer_norm(x[:, 1:], (255,)), 64 * 255, 0, 0, 0),
        (lambda x: torch.cat([x, x]), 0, 0, 0, 0),
        (lambda x: x * 2.0, 0, 0, 0, 0),
    ],
)
def test_what_a_call_asks_for(f: Callable[..., Any], single: int, across: int, rows: int, steps: int) -> None:
    found = _asked(f, X)
    assert (found.single, found.across, found.rows, found.steps) == (single, across, rows, steps)
    assert found.launches >= 1
    assert found.bytes > 0


def test_attention_asks_for_two_products() -> None:
    query, both = torch.zeros(2, 3, 10, 32), torch.zeros(2, 3, 50, 32)
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        assert _asked(lambda q, x: attend(q, x, x), query, both).flops == 4 * 2 * 3 * 10 * 50 * 32
        assert _asked(lambda x: attend(x, x, x), both).flops == 4 * 2 * 3 * 50 * 50 * 32


def test_a_call_with_an_empty_result_is_only_its_bytes() -> None:
    found = _asked(lambda x, factor: x * factor, torch.zeros(0, 4), torch.ones(()))
    assert found == Asked(4, found.launches)


def test_elements_one_at_a_time_take_longer_than_their_bytes() -> None:
    dense = Asked(1 << 28, 1)
    times = [
        library_estimate(Asked(1 << 28, 1, **more), H200).seconds  # type: ignore[arg-type]
        for more in ({}, {"single": 1 << 26}, {"across": 1 << 26}, {"across": 1 << 26, "steps": 1 << 12})
    ]
    assert times == sorted(set(times))
    assert library_estimate(dense, H200).seconds == estimate(1 << 28, 0, 1, H200, slack=FITTED.slack).seconds


def test_a_call_on_few_bytes_waits_for_the_first_of_them() -> None:
    for launches in (1, 2):
        launch = H200.replay + (launches - 1) * H200.gap
        seconds = library_estimate(Asked(64, launches), H200).seconds
        assert seconds == pytest.approx(launch + launches * FITTED.first)
    assert library_estimate(Asked(64, 0), H200).seconds < FITTED.first


def test_few_rows_leave_most_of_the_device_idle() -> None:
    few, many = (library_estimate(Asked(1 << 26, 1, 1 << 24, rows=rows), H200).seconds for rows in (8, 8192))
    assert few > 5 * many


def test_a_call_is_not_charged_for_what_made_its_operands() -> None:
    """Where a rounding between two calls has been left out, the second one's result looks like both."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.softmax(x.view(8, -1), -1)) + 1

    graph = captured(f, X.half())
    softmax, tanh, add = (asked(c, {}) for c in graph.calls if c.view_of is None)
    assert softmax.rows == 8
    assert (tanh.rows, tanh.single, tanh.meets) == (add.rows, add.single, add.meets) == (0, 0, 0)


def test_a_reduction_that_nothing_large_needs_is_no_column_walk() -> None:
    back = torch.ops.aten.native_layer_norm_backward.default

    def f(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, w: torch.Tensor) -> Any:
        return back(g, x, (256,), m, m, w, w, [True] * 3)

    found = _asked(f, X, X, torch.zeros(64, 1), torch.zeros(256))
    assert (found.single, found.across) == (X.numel(), 0)


def test_norms_take_programs_of_a_row_and_few_rows_take_as_long_as_many() -> None:
    wide = _asked(lambda x: torch.nn.functional.layer_norm(x, (256,)), X)
    assert (wide.norms, wide.threads, wide.walked) == (64, 128, 1.0)
    odd = _asked(lambda x: torch.nn.functional.layer_norm(x[:, 1:], (255,)), X)
    assert (odd.norms, odd.threads) == (64, 512)
    one, more, many = (library_estimate(replace(wide, norms=n), H200).seconds for n in (1, 1024, 1 << 20))
    assert one == more < many / 10


def test_rows_that_do_not_fit_on_chip_are_read_three_times() -> None:
    short, long = (_asked(lambda x: torch.softmax(x, -1), torch.zeros(4, n)) for n in (8192, 32768))
    assert (short.again, long.again) == (0, 2 * 4 * 4 * 32768)
    assert (short.single, long.single) == (4 * 8192 // 2, 4 * 32768)
    lost, kept = (replace(long, rows=1 << 12, again=1 << 30, span=span) for span in (1 << 20, 1 << 12))
    assert library_estimate(lost, H200).seconds > library_estimate(kept, H200).seconds


def test_a_cpu_goes_by_bytes() -> None:
    assert library_estimate(Asked(1 << 26, 1, 1 << 24), CPU).seconds == library_estimate(Asked(1 << 26, 1), CPU).seconds


def test_a_call_without_elements_asks_for_nothing_but_what_it_reads() -> None:
    (call,) = captured(lambda x, weight: x * weight, torch.empty(0, 3), torch.ones(3)).calls
    assert asked(call, {}) == Asked(bytes=12, launches=call.launches)


@pytest.mark.parametrize(
    ("rows", "bias", "programs"), ((128, True, 24), (128, False, 72), (8, True, 6), (1024, True, 192))
)
def test_programs_of_a_product(rows: int, bias: bool, programs: int) -> None:
    """Several share a result that has few rows, or no bias."""
    inputs = [torch.zeros(rows, 768), torch.zeros(768, 768), *([torch.zeros(768)] if bias else [])]
    found = _asked(torch.nn.functional.linear, *inputs)
    assert (found.programs, found.flops) == (programs, 2 * rows * 768 * 768)


def test_a_product_of_f32_with_few_programs_leaves_units_idle() -> None:
    few, many = (replace(Asked(1, 1, flops=1e12), programs=n) for n in (2, 2 * H200.units))
    assert library_estimate(few, H200).seconds > 100 * library_estimate(many, H200).seconds
    narrow = replace(few, dtype="bf16")
    assert library_estimate(narrow, H200).seconds == library_estimate(replace(narrow, programs=1000), H200).seconds
