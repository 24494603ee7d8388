"""A whole model: a small BERT as transformers builds it."""

from __future__ import annotations

import pytest
import torch

from interfuse.ir.verify import verify
from tests.capture.test_fx import captured

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(0, 50, (2, 8))
    with torch.no_grad():
        wanted = model(ids).last_hidden_state
    found, graphs = captured(lambda i: model(i).last_hidden_state, ids)
    return model, wanted, found, graphs


def test_one_graph_gives_the_models_values(bert):
    _, wanted, found, graphs = bert
    assert len(graphs) == 1
    verify(graphs[0])
    torch.testing.assert_close(found, wanted)


def test_linears_take_the_parameter_itself(bert):
    _, _, _, (graph,) = bert
    weights = {i.node: i for i in graph.inputs if i.kind == "parameter"}
    linears = [c.outs[0] for c in graph.calls if c.outs[0].op == "linear"]
    assert len(linears) == 12 and all(n.inputs[1] in weights for n in linears)


def test_idle_dropouts_launch_nothing(bert):
    _, _, _, (graph,) = bert
    clones = [c for c in graph.calls if c.target == "aten.clone.default"]
    idle = [c for c in clones if c.launches == 0]
    assert len(idle) == 5 and all(c.view_of == 0 and c.outs[0] is c.operands[0] for c in idle)


def test_only_attention_stays_with_the_library(bert):
    _, _, _, (graph,) = bert
    assert {c.reason for c in graph.calls if c.opaque} == {"attention runs as one library kernel"}
    assert sum("attention" in c.target for c in graph.calls) == 2


def test_sources_name_the_models_file(bert):
    _, _, _, (graph,) = bert
    assert {c.source.split(":")[0] for c in graph.calls if c.outs[0].op == "linear"} == {"modeling_bert.py"}
