"""Captured models through the library path. In: models. Out: eager's values, layouts, aliasing and memory."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from interfuse.base.errors import GraphError
from interfuse.base.record import Record
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Graph, Input, Output
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import make
from interfuse.plan.flow import analyse
from interfuse.run.memory import peak_bytes
from interfuse.run.program import Program
from tests.run.made import SHAPE, call, chain, compiled


def same(got: Any, want: Any) -> None:
    """Equal values, types and strides, tensor by tensor."""
    got, want = ([t] if isinstance(t, torch.Tensor) else list(t) for t in (got, want))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, c = torch.split(x.view(4, 2, 3) * 2, 1, dim=1)
    return a.squeeze(1).t(), c.expand(4, 5, 3), x[1:3, ::2] + 1, x.t().contiguous().view(-1)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.relu(x) * 0.5 + 1, (3, 5)),
        (views, (4, 6)),
        (lambda x: torch.cat([x, x.exp()], dim=1)[:, 1:].max(dim=1), (4, 6)),
        (lambda x: x.sort(dim=-1).values.cumsum(-1).to(torch.float16), (4, 6)),
        (lambda x: torch.where(x > 0, x, torch.zeros((), dtype=x.dtype)) / x.sum(-1, keepdim=True), (0, 6)),
    ],
    ids=["chain", "views", "cat", "sort", "empty"],
)
def test_functions_give_eagers_values_and_layouts(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with torch.no_grad():
        same(compiled(function, [], fullgraph=True)(x), function(x))


def test_mlp() -> None:
    model, x = Mlp().eval(), torch.randn(4, 16)
    with torch.no_grad():
        same(compiled(model, [])(x), model(x))


def test_tiny_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    ids = torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        got, want = compiled(model, [])(input_ids=ids), model(input_ids=ids)
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state)
    torch.testing.assert_close(got.pooler_output, want.pooler_output)


def test_inputs_that_are_written_keep_the_old_value_where_it_is_returned() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = x.clone()
        x.mul_(2).add_(y)
        y.copy_(old)
        return old, x + 1

    ours, theirs = ([torch.arange(6.0).view(2, 3), torch.ones(2, 3)] for _ in range(2))
    got, want = compiled(update, [])(*ours), update(*theirs)
    same(got, want)
    same(ours, theirs)
    assert got[0].data_ptr() not in (ours[0].data_ptr(), ours[1].data_ptr())


@pytest.mark.parametrize("cloned", [True, False])
def test_a_value_that_is_read_after_its_buffer_was_overwritten_is_saved_first(cloned: bool) -> None:
    x = b.placeholder("x", F32, SHAPE)
    y, turned, z = b.apply("exp", x), b.permute(x, (1, 0)), b.apply("neg", b.permute(x, (1, 0)))
    done = make("library", (x, y), F32, SHAPE, token=1)
    calls = (
        *([call("aten.clone.default", (x,), x)] if cloned else []),
        call("aten.exp.default", (x,), y),
        call("aten.t.default", (x,), turned, view_of=0),
        call("aten.copy_.default", (x, y), done, effect="mutation"),
        call("aten.neg.default", (turned,), z),
    )
    graph = Graph((Input(x, contiguous(SHAPE)),), calls, (Output(z, Layout((1, 6))),))
    value = torch.randn(SHAPE)
    before = value.clone()
    (got,) = Program.library(graph, Record())(value)
    assert torch.equal(value, before.exp())
    assert torch.equal(got, -before.t())


def test_dropout_draws_what_eager_draws() -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.dropout(x, 0.5), nn.functional.dropout(x, 0.5)

    fast, x = compiled(twice, []), torch.ones(64)
    torch.manual_seed(3)
    got = fast(x)
    torch.manual_seed(3)
    same(got, twice(x))
    assert not torch.equal(*got)


def test_dynamic_sizes_run_through_one_program() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.reshape(-1, 2).t() * x.shape[0], x.new_zeros(x.shape[0] + 1) + x.numel()

    programs: list[Program] = []
    fast = compiled(function, programs, dynamic=True)
    for rows in (4, 7, 12):
        x = torch.randn(rows, 6)
        same(fast(x), function(x))
    assert len(programs) == 1


def test_training_step() -> None:
    ours = nn.Sequential(Mlp(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    theirs, x = copy.deepcopy(ours), torch.randn(8, 16)
    for run in (compiled(ours, []), theirs):
        run(x).square().mean().backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


def test_outputs_share_storage_as_in_eager() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y.view(-1), y.clone(), x * 1, x.clone()

    x = torch.randn(SHAPE)
    with torch.no_grad():
        y, flat, copied, once, clone = compiled(function, [])(x)
    same((y, flat, copied, once, clone), function(x))
    assert flat.data_ptr() == y.data_ptr()
    assert len({t.data_ptr() for t in (x, y, copied, once, clone)}) == 5


def test_one_value_given_by_two_calls_comes_out_as_two_tensors() -> None:
    x = b.placeholder("x", F32, SHAPE)
    y = b.apply("exp", x)
    out = Output(y, contiguous(SHAPE))
    twice = call("aten.exp.default", (x,), y)
    for calls, buffers in (((twice, twice), 2), ((twice,), 1)):
        graph = Graph((Input(x, contiguous(SHAPE)),), calls, (out, out))
        first, second = Program.library(graph, Record())(torch.randn(SHAPE))
        assert len({first.data_ptr(), second.data_ptr()}) == buffers
        assert torch.equal(first, second)


def test_an_output_is_laid_out_as_the_graph_says() -> None:
    graph, (_, y, _) = chain()
    turned = Output(y, Layout((1, 4)))
    graph = Graph(graph.inputs, graph.calls, (turned,))
    x = torch.randn(SHAPE)
    (got,) = Program.library(graph, Record())(x)
    assert got.stride() == (1, 4)
    assert torch.equal(got, x.exp())


def test_numbers_and_none_pass_through() -> None:
    graph, _ = chain()
    graph = Graph(graph.inputs, (), (Output(None, None, 7), Output(None)))
    assert Program.library(graph, Record())(torch.zeros(SHAPE)) == [7, None]


def test_calls_that_nobody_needs_do_not_run() -> None:
    graph, (_, y, _) = chain()
    assert analyse(graph).needed == (0, 1)
    assert analyse(Graph(graph.inputs, graph.calls, (Output(y, contiguous(SHAPE)),))).needed == (0,)


def test_a_plan_that_reads_what_nothing_gives_is_refused() -> None:
    graph, (*_, z) = chain()
    lost = Graph(graph.inputs, (graph.calls[1],), (Output(z, contiguous(SHAPE)),))
    with pytest.raises(GraphError, match=r"call 0 \(aten.add.Tensor\) reads exp"):
        Program.library(lost, Record())
    with pytest.raises(GraphError, match="takes 1 inputs and was given 2"):
        Program.library(graph, Record())(torch.zeros(SHAPE), torch.zeros(SHAPE))


def test_peak_memory_is_at_most_eagers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x.exp() + 1).log()
        return x.t().contiguous()

    programs: list[Program] = []
    x = torch.randn(64, 128)
    with torch.no_grad():
        compiled(function, programs)(x)
        (program,) = programs
        eager, ours = peak_bytes(lambda: function(x)), peak_bytes(lambda: program(x))
    assert x.nbytes < ours <= eager


def test_inputs_given_in_a_list_are_freed_after_their_last_use() -> None:
    graph, _ = chain()
    program = Program.library(graph, Record())
    x = torch.randn(SHAPE)
    seen, values = weakref.ref(x), [x]
    del x
    outputs = program.run(values)
    gc.collect()
    assert values == []
    assert seen() is None
    assert len(outputs) == 2
