"""Operators that have a lowering reach the graph whole."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from interfuse.capture.decompositions import table
from interfuse.capture.fx import import_graph


def test_composites_stay_whole():
    def model(x, w, b):
        y = torch.nn.functional.gelu(torch.nn.functional.silu(torch.nn.functional.layer_norm(x, (4,), w, b)))
        return torch.nn.functional.smooth_l1_loss(y.softmax(-1), x)

    gm = make_fx(model, decomposition_table=table())(torch.randn(3, 4), torch.randn(4), torch.randn(4))
    names = [c.target.split(".")[1] for c in import_graph(gm).calls]
    assert names == ["native_layer_norm", "silu", "gelu", "_softmax", "smooth_l1_loss"]


def test_the_table_is_the_callers_own():
    table()["x"] = None
    assert table() == {}
