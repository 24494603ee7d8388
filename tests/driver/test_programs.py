"""Random programs of PyTorch calls, compiled and judged beside eager. In: seeds. Out: the float64 contract holds.

`python -m tests.driver.test_programs FIRST SECONDS` goes on from a seed for as long, and prints what fails.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import _plain_run, _sort_of_value, judge
from tests.programs import Program, Step, program, pruned, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SEEDS = range(0, 120, 4)
GRADIENTS = (2, 6, 10, 14)
LEVELS = ("native", "native", "avx2", "portable")


def wrong(made: Program, level: str = "native", dynamic: bool = False, gradients: bool = False) -> str:
    """What is wrong with the compiled program, with other sizes too where `dynamic`, and with `gradients` instead of
    results; nothing where all is well.
    """
    torch._dynamo.reset()
    function, backend = made.function(), Backend(read(None, {"race": False}))
    fast = torch.compile(function, backend=backend, dynamic=dynamic)
    sizes = [made, resized(made)] if dynamic and _runs(resized(made)) else [made]
    if gradients:
        function, fast = differentiated(function), differentiated(fast)
    with torch.set_grad_enabled(gradients), override(vector=level):
        for p in sizes:
            verdict = judge(p.viewed(function), p.bases, p.viewed(fast))
            if not verdict.ok and not _by_rounding(p, function, fast):
                return verdict.note
    events = [e.facts for r in backend.records for e in r.events if e.stage in ("fallback", "warning")]
    return f"{events[0]}" if events else ""


def differentiable(made: Program) -> Program:
    """The program without steps that write, and what follows from them."""
    count, steps = len(made.bases), made.steps
    last = next((k for k, s in enumerate(steps) if s.writes), len(steps))
    outputs = [o for o in made.outputs if o < count + last] or [count + last - 1]
    return pruned(replace(made, steps=steps[:last], outputs=tuple(outputs)))


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the gradients of what `function` gives, where there are any."""

    def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = [o for o in function(*leaves) if o.requires_grad]
        if not outputs:
            return []
        weights = [torch.linspace(-1, 1, o.numel(), dtype=torch.float64).reshape(o.shape).to(o.dtype) for o in outputs]
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        return [g.contiguous() for g in found if g is not None]  # how gradients lie is AOTAutograd's choice

    return step


def resized(made: Program) -> Program:
    """The program on inputs of three elements more along each dimension that is not 1."""
    chance = torch.Generator().manual_seed(3)

    def other(base: torch.Tensor) -> torch.Tensor:
        x = torch.randn([n if n == 1 else n + 3 for n in base.shape], generator=chance)
        return (x * 20).to(base.dtype) if not base.is_floating_point() else x.to(base.dtype)

    return replace(made, bases=tuple(map(other, made.bases)))


def _runs(made: Program) -> bool:
    try:
        run(made)
    except (RuntimeError, IndexError):
        return False
    return True


def _by_rounding(made: Program, function, fast) -> bool:  # type: ignore[no-untyped-def]
    """True where roundings to a narrow type may explain a difference: few elements are judged, and one may cancel."""
    values = [v for v in run(made) if v is not None and v.is_floating_point() and v.numel()]
    steps = [torch.finfo(v.dtype).eps for v in values if v.dtype in (torch.float16, torch.bfloat16)]
    top = max((float(v.double().nan_to_num(0, 0, 0).abs().max()) for v in values), default=1.0)
    allowed = 16 * max(steps, default=0.0) * max(top, 1.0)
    results = (_plain_run(made.viewed(f), made.bases) for f in (fast, function))
    for got, eager in zip(*results, strict=True):
        if (got.dtype, got.shape) != (eager.dtype, eager.shape) or not got.is_floating_point():
            if (got.dtype, got.shape) != (eager.dtype, eager.shape) or not torch.equal(got, eager):
                return False
            continue
        if not torch.equal(_sort_of_value(got.double()), _sort_of_value(eager.double())):
            return False
        if not bool(((got.double() - eager.double()).nan_to_num(0, 0, 0).abs() <= allowed).all()):
            return False
    return bool(steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_keep_the_contract(seed: int) -> None:
    made = program(seed, longest=16)
    assert not (note := wrong(made, LEVELS[seed // 4 % len(LEVELS)])), f"{note}\n{made}"


@pytest.mark.parametrize("seed", (1, 5, 9, 13))
def test_and_so_they_do_at_sizes_that_change(seed: int) -> None:
    made = program(seed, longest=8)
    assert not (note := wrong(made, dynamic=True)), f"{note}\n{made}"


@pytest.mark.parametrize("seed", GRADIENTS)
def test_so_do_their_gradients(seed: int) -> None:
    made = program(seed, longest=8)
    assert not (note := wrong(differentiable(made), gradients=True)), f"{note}\n{made}"


def test_a_view_that_was_narrow_for_a_while_is_an_output() -> None:
    x = torch.ones(1, 17)
    steps = (Step("{0}.repeat_interleave(2, 0)", (0,)), Step("{0}.half()", (1,)), Step("{0}.float()", (2,)))
    assert not (note := wrong(Program((x,), ("plain",), steps, (3,)))), note


def test_a_row_of_truth_values_is_kept() -> None:
    x, y = torch.ones(6, 4, dtype=torch.bfloat16), torch.arange(24.0).reshape(6, 4).half()
    steps = (Step("{0} == {0}", (0,)), Step("F.layer_norm({0}, (4,))", (1,)), Step("{1}.masked_fill({0}, 2)", (2, 3)))
    assert not (note := wrong(Program((x, y), ("plain",) * 2, steps, (4,)))), note


def main(first: int, seconds: float) -> None:
    """Programs from a seed on, for so many seconds."""
    warnings.filterwarnings("ignore")
    end, seed = time.monotonic() + seconds, first
    while time.monotonic() < end:
        made = program(seed)
        if note := wrong(made, LEVELS[seed % len(LEVELS)], dynamic=seed % 5 == 0):
            print(f"seed {seed}: {note}\n{made}")
        if seed % 5 == 1 and (note := wrong(differentiable(made), gradients=True)):
            print(f"seed {seed}, gradients: {note}\n{made}")
        seed += 1
    print(f"{seed - first} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
