"""What eager does for a call beside its values: launches, views, effects."""

from __future__ import annotations

import pytest
import torch

from tests.capture import opinfo
from tests.capture.test_fx import captured


@pytest.mark.parametrize(
    ("function", "launches"),
    [
        (lambda x: x.t().reshape(12)[:4].unsqueeze(0).expand(2, 4), 1),  # the reshape copies
        (lambda x: torch.nn.functional.layer_norm(x, (3,)), 1),
        (lambda x: x.softmax(-1) + x, 2),
        (lambda x: torch.nn.functional.linear(x, x), 1),
        (lambda x: x.masked_fill(x > 0, 1.0), 3),
        (lambda x: torch.nn.functional.conv1d(x[None, :, :], x[:, None][:, [0, 0, 0, 0]][:, :, :2], x[:, 0]), 4),
        (lambda x: torch.empty_like(x), 0),
    ],
)
def test_launch_counts(function, launches):
    graph, _ = opinfo.capture(function, (torch.randn(4, 3),), {})
    assert sum(c.launches for c in graph.calls) == launches, [(c.target, c.launches) for c in graph.calls]


def test_views_name_their_operand():
    graph, _ = opinfo.capture(lambda x: [*x.split(2), x.diagonal(), x.view(torch.int32)], (torch.randn(4, 3),), {})
    assert len(graph.calls) >= 3 and {(c.view_of, c.launches) for c in graph.calls} == {(0, 0)}


def test_only_a_dropouts_clone_is_idle():
    def model(x):
        return torch.nn.functional.dropout(x + 1, 0.5, False) * x.t().contiguous().t().clone()

    _, (graph,) = captured(model, torch.randn(4, 3))
    assert [c.launches for c in graph.calls if c.target == "aten.clone.default"] == [0, 1, 1]


def test_effects():
    def model(x):
        return torch.rand_like(x), x.copy_(x * 2)

    graph, _ = opinfo.capture(model, (torch.randn(3),), {})
    assert [c.effect for c in graph.calls if c.effect] == ["random", "mutation"]
    assert all(c.reason == c.effect for c in graph.calls if c.effect)
    tokens = [o.token for c in graph.calls if c.effect for o in c.outs]
    assert len(set(tokens)) == len(tokens)
