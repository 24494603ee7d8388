"""Regions with kernels: views, layouts, and failures. In: hand-made plans. Out: eager's values regardless."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from interfuse.base.errors import GraphError, LaunchError
from interfuse.base.record import Record
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Graph, Input, Output
from interfuse.ir.layout import Layout, contiguous
from interfuse.plan.plan import KernelStep, LibraryStep, Plan, ProviderStep, Region
from interfuse.run.program import Program
from tests.run.made import SHAPE, call, candidate, first, fused_plan, kernel, library, second


class Failing:
    """A launcher that raises after it has written half of its output; `times` counts how often it ran."""

    def __init__(self, error: type[BaseException], message: str = "no such luck") -> None:
        self.error, self.message, self.times = error, message, 0

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        self.times += 1
        tensors[-1][:2].fill_(float("nan"))
        raise self.error(self.message)


def check(program: Program, x: torch.Tensor) -> None:
    before = x.clone()
    z, y = program(x)
    assert torch.equal(y, x.exp())
    assert torch.equal(z, x.exp() + x)
    assert torch.equal(x, before)


def test_kernels_run_in_order_and_the_library_is_left_alone() -> None:
    plan, _ = fused_plan()
    ran: list[str] = []
    launchers = {
        name: (lambda tensors, sizes, f=f, name=name: (ran.append(name), f(tensors, sizes)))
        for name, f in (("first", first), ("second", second))
    }
    record = Record()
    check(Program(plan, launchers, record), torch.randn(SHAPE))
    assert ran == ["first", "second"]
    assert record.events == []


@pytest.mark.parametrize("error", [LaunchError, RuntimeError])
@pytest.mark.parametrize("place", ["first", "second"])
def test_a_kernel_that_fails_midway_leaves_the_result_right(error: type[Exception], place: str) -> None:
    plan, _ = fused_plan()
    record, failing = Record(), Failing(error)
    program = Program(plan, {"first": first, "second": second, place: failing}, record)
    for _ in range(3):
        check(program, torch.randn(SHAPE))
    assert failing.times == 1
    (event,) = record.of("fallback")
    assert event.subject == "0:both"
    assert "no such luck" in event.facts["error"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), MemoryError(), RuntimeError("can't allocate memory")])
def test_a_region_short_of_memory_falls_back_for_that_call_alone_and_says_so_once(error: Exception) -> None:
    plan, _ = fused_plan()
    record, left = Record(), 2

    def short_of_memory(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        nonlocal left
        tensors[-1][:2].fill_(float("nan"))
        left -= 1
        if left >= 0:
            raise error
        second(tensors, sizes)

    program = Program(plan, {"first": first, "second": short_of_memory}, record)
    for _ in range(4):
        check(program, torch.randn(SHAPE))
    assert left == -2
    (event,) = record.events
    assert (event.stage, event.subject) == ("warning", "0:both")
    assert event.facts["error"].endswith("(the call ran through the library)")


def test_where_the_library_is_short_of_memory_too_its_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB.")

    plan, _ = fused_plan()
    monkeypatch.setattr("interfuse.run.library._callable", lambda target: none_left)
    program = Program(plan, {"first": first, "second": Failing(torch.OutOfMemoryError)}, Record())
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as raised:
        program(torch.randn(SHAPE))
    (note,) = raised.value.__notes__
    assert note.startswith("Interfuse: region 0:both has no memory") and note.endswith("free what else holds memory.")


@pytest.mark.parametrize("place", ["first", "second"])
def test_an_interrupt_inside_a_launch_leaves_nothing_marked(place: str) -> None:
    plan, _ = fused_plan()
    record, x = Record(), torch.randn(SHAPE)
    interrupted = Failing(KeyboardInterrupt)
    launchers = {"first": first, "second": second}
    calls = {place: interrupted}

    def through(name: str) -> Any:
        return lambda tensors, sizes: calls.get(name, launchers[name])(tensors, sizes)

    program = Program(plan, {name: through(name) for name in launchers}, record)
    with pytest.raises(KeyboardInterrupt):
        program(x)
    calls.clear()
    check(program, x)
    assert interrupted.times == 1 and record.events == []


def test_other_errors_are_not_swallowed_and_an_unguarded_program_raises() -> None:
    plan, _ = fused_plan()
    with pytest.raises(KeyError):
        Program(plan, {"first": first, "second": Failing(KeyError)}, Record())(torch.randn(SHAPE))
    with pytest.raises(LaunchError):
        Program(plan, {"first": first, "second": Failing(LaunchError)}, Record(), guarded=False)(torch.randn(SHAPE))


def test_a_failed_region_keeps_no_memory_from_the_failed_try() -> None:
    plan, _ = fused_plan()
    alive: list[torch.Tensor] = []

    def keeps(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        alive.append(tensors[-1])
        raise LaunchError("no")

    program = Program(plan, {"first": first, "second": keeps}, Record())
    program(torch.randn(SHAPE))
    (half,) = alive
    # Held by `alive`, by `half` and by the call of getrefcount.
    assert sys.getrefcount(half) <= 3


def test_a_missing_launcher_or_provider_means_the_library() -> None:
    plan, (x, y, _) = fused_plan()
    record = Record()
    check(Program(plan, {"first": first}, record), torch.randn(SHAPE))
    assert "second was not built" in record.of("fallback")[0].facts["error"]
    region = replace(
        plan.regions[0],
        candidates=(candidate("provider", ProviderStep("no.such", (x,), y), LibraryStep(1)), library(0, 1)),
    )
    record = Record()
    check(Program(replace(plan, regions=(region,)), {}, record), torch.randn(SHAPE))
    assert "there is no provider no.such" in record.of("fallback")[0].facts["error"]


def test_threads_share_a_program_while_it_falls_back() -> None:
    plan, _ = fused_plan()
    record, failing = Record(), Failing(LaunchError)
    program = Program(plan, {"first": first, "second": failing}, record)
    wrong: list[BaseException] = []
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        x = torch.full(SHAPE, float(seed))
        gate.wait()
        try:
            for _ in range(20):
                check(program, x)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert len(record.of("fallback")) == 1


def moved_plan(strides: tuple[int, ...]) -> Plan:
    """out = exp(x[1:, ::2] turned), by one kernel that reads the movement as a buffer of its own with `strides`."""
    x = b.placeholder("x", F32, (4, 6))
    part = b.permute(b.take_slice(x, (1, 0), (3, 3), (1, 2)), (1, 0))
    out = b.apply("exp", part)
    calls = (
        call("aten.slice.Tensor", (x,), part.inputs[0], 0, 1, 4),
        call("aten.t.default", (part.inputs[0],), part, view_of=0),
        call("aten.exp.default", (part,), out),
    )
    graph = Graph((Input(x, contiguous(x.shape)),), calls, (Output(out, contiguous(out.shape)),))
    step = KernelStep(kernel("exp", [part], [out], {part: strides}), (part,), (out,))
    region = Region("exp", (2,), (x,), (out,), (candidate("fused", step), library(2)))
    return Plan(graph, (region,))


@pytest.mark.parametrize(("strides", "copied"), [((2, 6), False), ((3, 1), True)])
def test_a_kernel_reads_a_movement_as_it_expects_it(strides: tuple[int, ...], copied: bool) -> None:
    seen: list[torch.Tensor] = []

    def exp(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        seen.append(tensors[0])
        torch.exp(tensors[0], out=tensors[1])

    x = torch.randn(4, 6)
    program = Program(moved_plan(strides), {"exp": exp}, Record())
    (got,) = program(x)
    assert torch.equal(got, x[1:, ::2].t().exp())
    assert seen[0].stride() == strides
    assert (seen[0].data_ptr() != x.data_ptr() + 6 * x.element_size()) == copied
    # An input that lies otherwise than captured, and one that begins inside its storage, are read right too.
    for odd in (torch.randn(6, 4).t(), torch.randn(5, 6)[1:]):
        assert torch.equal(program(odd)[0], odd[1:, ::2].t().exp())


def test_an_empty_output_launches_nothing() -> None:
    x = b.placeholder("x", F32, (0, 6))
    y = b.apply("exp", x)
    graph = Graph(
        (Input(x, contiguous(x.shape)),), (call("aten.exp.default", (x,), y),), (Output(y, contiguous(y.shape)),)
    )
    step = KernelStep(kernel("exp", [x], [y]), (x,), (y,))
    region = Region("exp", (0,), (x,), (y,), (candidate("fused", step), library(0)))
    record = Record()
    (got,) = Program(Plan(graph, (region,)), {"exp": Failing(LaunchError)}, record)(torch.zeros(0, 6))
    assert got.shape == (0, 6)
    assert record.events == []


def test_a_failed_region_hands_on_the_layout_that_its_kernel_would_have_given() -> None:
    """A later kernel was built for the first one's strides; after a fallback it must still get them."""
    x = b.placeholder("x", F32, (4, 6))
    y, z = b.apply("exp", x), b.apply("neg", b.apply("exp", x))
    graph = Graph(
        (Input(x, contiguous(x.shape)),),
        (call("aten.exp.default", (x,), y), call("aten.neg.default", (y,), z)),
        (Output(z, contiguous(z.shape)),),
    )
    column = {y: (1, 4)}
    first_step = KernelStep(kernel("a", [x], [y], column), (x,), (y,))
    second_step = KernelStep(kernel("b", [y], [z], column), (y,), (z,))
    one = Region("exp", (0,), (x,), (y,), (candidate("f", first_step), library(0)))
    two = Region("neg", (1,), (y,), (z,), (candidate("f", second_step), library(1)))
    seen: list[tuple[int, ...]] = []

    def neg(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        seen.append(tensors[0].stride())
        torch.neg(tensors[0], out=tensors[1])

    value = torch.randn(4, 6)
    for launcher in (first, Failing(LaunchError)):
        (got,) = Program(Plan(graph, (one, two)), {"a": launcher, "b": neg}, Record())(value)
        assert torch.equal(got, -value.exp())
    assert seen == [(1, 4), (1, 4)]


def test_a_provider_gives_a_nodes_shape() -> None:
    x, w = b.placeholder("x", F32, (2, 3, 8)), b.placeholder("w", F32, (5, 8))
    flat = b.linear(b.reshape(x, (6, 8)), w)
    out = b.apply("tanh", b.reshape(flat, (2, 3, 5)))
    whole = b.reshape(flat, (2, 3, 5))
    graph = Graph(
        (Input(x, contiguous(x.shape)), Input(w, contiguous(w.shape))),
        (call("aten.linear.default", (x, w), whole), call("aten.tanh.default", (whole,), out)),
        (Output(out, contiguous(out.shape)),),
    )
    step = ProviderStep("onednn.linear", flat.inputs, out, (("activation", "tanh"),))
    region = Region("linear", (0, 1), (x, w), (out,), (candidate("p", step, family="provider"), library(0, 1)))
    a, c = torch.randn(2, 3, 8), torch.randn(5, 8)
    record = Record()
    (got,) = Program(Plan(graph, (region,)), {}, record)(a, c)
    torch.testing.assert_close(got, torch.tanh(a @ c.t()))


def test_a_region_that_writes_its_input_cannot_be_fused() -> None:
    plan, _ = fused_plan()
    calls = (plan.graph.calls[0], replace(plan.graph.calls[1], effect="mutation"))
    with pytest.raises(GraphError, match="cannot be run again"):
        Program(replace(plan, graph=replace(plan.graph, calls=calls)), {"first": first, "second": second}, Record())


def test_layouts_are_seen_from_a_values_own_first_element() -> None:
    x = b.placeholder("x", F32, (2,))
    graph = Graph((Input(x, Layout((1,), 5)),), (), ())
    assert graph.layouts()[x] == Layout((1,), 0)
