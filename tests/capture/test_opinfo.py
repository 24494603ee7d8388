"""PyTorch's own operator samples: what is lowered means what eager does, what is not says why."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("expecttest")
from torch.testing._internal.common_methods_invocations import op_db

from tests.capture import opinfo

NAMES = frozenset(
    (
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "where",
        "clamp",
        "masked_fill",
        "lerp",
        "addcmul",
        "nn.functional.gelu",
        "nn.functional.silu",
        "nn.functional.glu",
        "nn.functional.layer_norm",
        "nn.functional.group_norm",
        "nn.functional.batch_norm",
        "nn.functional.instance_norm",
        "nn.functional.linear",
        "softmax",
        "log_softmax",
        "sum",
        "mean",
        "amax",
        "var",
        "var_mean",
        "std",
        "logsumexp",
        "linalg.vector_norm",
        "cumsum",
        "expand",
        "permute",
        "transpose",
        "reshape",
        "squeeze",
        "unsqueeze",
        "chunk",
        "split",
        "unbind",
        "narrow",
        "tril",
        "addmm",
        "argmax",
        "max",
        "nan_to_num",
        "nn.functional.mse_loss",
        "topk",
        "index_select",
        "sort",
        "svd",
        "cat",
        "stack",
        "roll",
        "flip",
        "repeat",
        "slice_scatter",
        "select_scatter",
        "nn.functional.pad",
        "__getitem__",
        "__rsub__",
        "full_like",
        "arange",
        "nn.functional.embedding",
    )
)
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SAMPLES = 2
ENTRIES = [op for op in op_db if op.name in NAMES and not op.variant_test_name]


def test_the_names_exist():
    assert {op.name for op in op_db} >= NAMES


@pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.name)
def test_samples(op):
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        samples = list(op.sample_inputs("cpu", dtype))
        random.Random(0).shuffle(samples)
        for sample in samples[:SAMPLES]:
            graph, inputs = opinfo.capture(op.op, (sample.input, *sample.args), sample.kwargs)
            opinfo.check(graph, inputs)
