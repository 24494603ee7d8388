"""The importer: every captured call runs again through its template and gives the graph module's own results."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from interfuse.base.errors import UnsupportedError
from interfuse.capture import template
from interfuse.capture.fx import import_graph
from interfuse.ir.evaluate import evaluate
from interfuse.ir.graph import Graph, Literal
from interfuse.ir.verify import verify
from tests.capture import opinfo


def test_a_fill_lets_go_of_the_tensor_whose_shape_it_takes():
    gm, _ = opinfo.trace(lambda x: (torch.full_like(x * 2, 3.0), torch.zeros_like(x.t())), (torch.randn(2, 3),), {})
    graph = import_graph(gm)
    fill, *_, transposed = graph.calls[1:]
    assert (fill.target, fill.args, fill.operands) == ("aten.full.default", ((2, 3), 3.0), ())
    assert transposed.target == "aten.zeros_like.default", "a layout of its own keeps the captured call"


def run_calls(graph: Graph, inputs):
    """The graph's outputs, each call run through the library as captured."""
    symbols = template.symbol_values(graph, inputs)
    env = {given.node: value for given, value in zip(graph.inputs, inputs, strict=True)}
    for call in graph.calls:
        operands = [env[o] for o in call.operands]
        result = template.resolve(call.target)(
            *template.decode(call.args, operands, graph.opaque, symbols),
            **template.decode_kwargs(call.kwargs, operands, graph.opaque, symbols),
        )
        for out, value, _layout in zip(call.outs, template.flatten(result), call.layouts, strict=True):
            if out is not None:
                env[out] = value
    return [
        env[o.node] if o.node is not None else template.decode(o.value, (), graph.opaque, symbols)
        for o in graph.outputs
    ]


def captured(model, *inputs, dynamic=False, grad=False):
    """Run `model` compiled by a backend that executes imported graphs call by call: (its results, the graphs)."""
    graphs: list[Graph] = []

    def compiler(gm, example_inputs):
        graph = import_graph(gm, example_inputs, f"graph{len(graphs)}")
        graphs.append(graph)

        def call(args):
            found = run_calls(graph, list(args))
            args.clear()
            return found

        call._boxed_call = True
        return call

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    with torch.set_grad_enabled(grad):
        return torch.compile(model, backend=backend, dynamic=dynamic)(*inputs), graphs


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(0.1)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        y = self.drop(torch.nn.functional.gelu(self.fc(self.norm(x))))
        return x + y * self.scale * torch.tensor(2.0)


def attention(x):
    q = x.view(2, 4, 2, 4).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 4, 8)


def several(x):
    a, b = x.split(4, -1)
    values, where = x.max(-1)
    return a * b, values, where, x.shape[0], None, x.var(-1), torch.var_mean(x, -1)


def complex_numbers(x):
    return torch.fft.rfft(x).abs()


def dynamic_sizes(x):
    return x.reshape(x.shape[0] * x.shape[1], -1) + x.shape[0], x.new_zeros(x.shape[0] + 1), torch.arange(x.shape[1])


def unbacked(x):
    where = (x > 0).nonzero()
    return where + 1, where.shape[0]


CASES = [
    (Block().eval(), (2, 4, 8), False),
    (attention, (2, 4, 8), False),
    (several, (2, 4, 8), False),
    (complex_numbers, (4, 8), False),
    (dynamic_sizes, (3, 5, 7), True),
    (several, (3, 5, 8), True),
    (Block().eval(), (3, 5, 8), True),
    (torch.nn.TransformerEncoderLayer(8, 2, 16).eval(), (2, 4, 8), False),
    (
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AvgPool2d(2)
        ).eval(),
        (1, 3, 8, 8),
        False,
    ),
    (torch.nn.LSTMCell(8, 8).eval(), (4, 8), False),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_calls_give_the_models_own_results(case):
    model, shape, dynamic = CASES[case]
    torch.manual_seed(case)
    x = torch.randn(shape)
    with torch.no_grad():
        wanted = model(x)
    found, graphs = captured(model, x, dynamic=dynamic)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert graphs and all(call.reason for graph in graphs for call in graph.calls if call.opaque)


def test_unbacked_sizes_stay_opaque():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.randn(3, 4)
        found, graphs = captured(unbacked, x)
    torch.testing.assert_close(found, unbacked(x))
    (graph,) = graphs
    assert {c.target: c.reason for c in graph.calls}["aten.add.Tensor"] == "data-dependent size"


def test_training_gives_the_same_gradients():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 4, 8)
    model.drop.p = 0.0
    model(x).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    found, graphs = captured(model, x, grad=True)
    found.sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted)
    assert len(graphs) == 2


def test_inputs_line_up_with_placeholders():
    x = torch.randn(3, 5, 7)
    _, (graph,) = captured(dynamic_sizes, x, dynamic=True)
    symbolic = [i for i in graph.inputs if i.node.attr("python")]
    assert symbolic and all(i.node.shape == () and i.node.attr("symbol") in graph.symbols for i in symbolic)
    assert len(graph.inputs) == len(symbolic) + 1


def test_output_sizes_are_expressions():
    _, (graph,) = captured(lambda x: (x + 1, x.shape[0] * 2), torch.randn(3, 5), dynamic=True)
    value = graph.outputs[1].value
    assert isinstance(value, Literal) and template.decode(value, (), (), dict.fromkeys(graph.symbols, 3)) == 6


def test_kinds_of_inputs():
    _, (graph,) = captured(Block().eval(), torch.randn(2, 4, 8))
    kinds = [i.kind for i in graph.inputs]
    assert kinds.count("user") == 1 and kinds.count("buffer") >= 1 and kinds.count("parameter") == 4


def test_symbolic_sizes_are_lowered():
    model, x = Block().eval(), torch.randn(3, 5, 8)
    _, (graph,) = captured(model, x, dynamic=True)
    verify(graph)
    assert {c.reason for c in graph.calls} == {""}
    x = torch.randn(4, 6, 8)
    given = [*model.norm.parameters(), *model.fc.parameters(), model.scale]
    values = {}
    for i in graph.inputs:
        if i.node.attr("python"):
            continue
        match = (
            x
            if i.kind == "user"
            else next(t for t in given if tuple(t.shape) == i.node.shape and not any(t is v for v in values.values()))
        )
        values[i.node] = match
    arrays = {n: t.detach().numpy() for n, t in values.items()}
    sizes = {
        d.name: n for i in graph.inputs for d, n in zip(i.node.shape, x.shape, strict=False) if not isinstance(d, int)
    }
    (found,) = evaluate([graph.outputs[0].node], arrays, symbols=sizes)
    assert found.shape == (4, 6, 8)


def test_a_constant_of_one_element_is_a_number_and_a_larger_one_is_kept():
    table = torch.arange(3.0)
    _found, (graph,) = captured(lambda x: x * torch.tensor(2.5) + torch.tensor([1.0, 2.0, 4.0]) + table, torch.randn(3))
    constants = [c for c in graph.calls if c.target == template.CONSTANT]
    assert [c.outs[0].op for c in constants] == ["const", "library"] and len(graph.inputs) == 2
    assert all(c.launches == 0 for c in constants)


def test_a_module_graph_is_refused():
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(UnsupportedError, match="ATen graph"):
        import_graph(gm)
