"""Every lowering against eager: each target called by itself in each type that eager takes, on special values and
shapes.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from interfuse.capture import aten
from interfuse.capture.fx import import_graph
from interfuse.capture.rules import RULES
from interfuse.capture.template import resolve
from interfuse.ir.evaluate import evaluate
from tests.capture import opinfo
from tests.capture.cases import CASES, FLOATS, INTS, LATER, ROUGH, SINGLE, plain


def full_name(name):
    name = name if name.startswith("prims.") else f"aten.{name}"
    return name if name.count(".") == 2 else f"{name}.default"


def test_every_lowering_has_a_case():
    assert {full_name(n) for n in (*CASES, *LATER)} == set(RULES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_lowering_means_what_eager_does(name):
    target = full_name(name)
    seen = 0
    for dtype in (FLOATS[0], FLOATS[3]) if name in ROUGH else FLOATS[:3] if name in SINGLE else (*FLOATS, *INTS):
        for a, k in CASES[name](dtype):
            try:
                resolve(target)(*a, **k)
                gm, inputs = opinfo.trace_call(resolve(target), a, k)
            except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError, ZeroDivisionError):
                continue  # PyTorch does not take this type
            graph = import_graph(gm)
            lowered, reasons = opinfo.check(graph, inputs)
            (call,) = graph.calls
            assert call.target in (target, "aten.full.default"), "a fill may stand for a call that gives one number"
            seen += call.target in lowered
            assert call.target in lowered or reasons[call.target]
    assert seen, f"{target} was never lowered"


def test_layer_norm_gradients():
    for dtype in (torch.float32, torch.float64):
        x, w, b, g = plain(dtype, 2, 3, 8), plain(dtype, 8), plain(dtype, 8, seed=3), plain(dtype, 2, 3, 8, seed=5)
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [8], w, b, 1e-5)
        graph, inputs = opinfo.capture(
            torch.ops.aten.native_layer_norm_backward, (g, x, [8], mean, rstd, w, b, [True] * 3), {}
        )
        lowered, _ = opinfo.check(graph, inputs)
        assert lowered == {"aten.native_layer_norm_backward.default"}
        graph, inputs = opinfo.capture(
            torch.ops.aten.native_layer_norm_backward, (g, x, [8], mean, rstd, w, b, [True, False, False]), {}
        )
        assert [c.reason for c in graph.calls] == ["a result that is not a tensor"]


def test_rms_norm_stays_whole_on_a_gpu():
    with FakeTensorMode():
        x, w = (
            torch.empty(2, 3, 8, device="cuda", dtype=torch.float16),
            torch.empty(8, device="cuda", dtype=torch.float16),
        )
    gm, _ = opinfo.trace_call(torch.ops.aten._fused_rms_norm.default, (x, [8], w, 1e-6), {})
    graph = import_graph(gm)
    assert graph.device == "cuda:0" and [c.target for c in graph.calls] == ["aten._fused_rms_norm.default"]
    real = plain(torch.float32, 2, 3, 8).half(), plain(torch.float32, 8).half()
    (found,) = evaluate(
        [graph.outputs[0].node], {i.node: opinfo.to_numpy(t) for i, t in zip(graph.inputs, real, strict=True)}
    )
    wanted = torch.nn.functional.rms_norm(real[0].float(), (8,), real[1].float(), 1e-6).half()
    torch.testing.assert_close(torch.from_numpy(found), wanted)


def test_the_gradient_of_an_rms_norm_on_a_gpu():
    with FakeTensorMode():
        g, x = (torch.empty(2, 3, 8, device="cuda", dtype=torch.float16) for _ in range(2))
        rstd, w = torch.empty(2, 3, 1, device="cuda"), torch.empty(8, device="cuda", dtype=torch.float16)
    gm, _ = opinfo.trace_call(torch.ops.aten._fused_rms_norm_backward.default, (g, x, [8], rstd, w, [True] * 2), {})
    graph = import_graph(gm)
    real = [plain(torch.float32, 2, 3, 8, seed=5).half(), plain(torch.float32, 2, 3, 8).half()]
    rstd, w = torch.rsqrt(real[1].float().square().mean(-1, True) + 1e-6), plain(torch.float32, 8).half()
    values = {i.node: opinfo.to_numpy(t) for i, t in zip(graph.inputs, (*real, rstd, w), strict=True)}
    found = evaluate([o.node for o in graph.outputs], values)
    x, w = real[1].float().requires_grad_(), w.float().requires_grad_()
    torch.nn.functional.rms_norm(x, (8,), w, 1e-6).backward(real[0].float())
    for got, wanted in zip(found, (x.grad, w.grad), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), wanted.half(), rtol=2e-3, atol=2e-3)


def test_a_copy_is_a_value_of_its_own():
    graph, _ = opinfo.capture(lambda x: x.t().clone(), (plain(torch.float32, 3, 4),), {})
    assert graph.outputs[0].node.op == "copy" and graph.calls[-1].launches == 1


def test_attention_is_random_only_with_dropout():
    q = plain(torch.float32, 1, 1, 3, 4)
    for p, effect in ((0.0, ""), (0.5, "random")):
        graph, _ = opinfo.capture(
            lambda q, p=p: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, p)[0], (q,), {}
        )
        assert graph.calls[-1].effect == effect


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.topk(x, 2)[0], "no lowering for aten.topk.default yet"),
        (lambda x: torch.rand_like(x), "random"),
        (lambda x: torch.ops.aten._conj_physical(x + 1j), "no kernels for complex numbers"),
        (lambda x: x.nonzero(), "data-dependent size"),
        (lambda x: x.add_(1), "mutation"),
        (lambda x: torch.slice_scatter(x, x[::2], 0, 0, 9, 2), "elements written one between others"),
        (lambda x: x[x > 0], "data-dependent size"),
        (lambda x: torch.bmm(x[None], x.t()[None]), "a matrix product that is no plain linear layer"),
        (
            lambda x: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                x[None, None], x[None, None], x[None, None]
            )[0],
            "attention runs as one library kernel",
        ),
        (lambda x: torch.nn.functional.conv1d(x[None], x[None][:, :, :2]), "a convolution runs as a library kernel"),
        (lambda x: x.long() // x.long(), "an integer division that may trap"),
        (lambda x: torch.softmax(x[:0], 0), "a softmax of no elements"),
        (lambda x: x.to_sparse(), "not a strided tensor"),
    ],
)
def test_what_is_not_lowered_says_why(function, reason):
    graph, _ = opinfo.capture(function, (plain(torch.float32, 3, 4),), {})
    assert reason in [c.reason for c in graph.calls], [(c.target, c.reason) for c in graph.calls]


def test_a_wrong_rule_costs_a_fusion_only(monkeypatch):
    monkeypatch.setitem(RULES, "aten.relu.default", lambda c, self: c("isnan", self))
    graph, _ = opinfo.capture(torch.relu, (plain(torch.float32, 3),), {})
    assert graph.calls[0].reason == "its lowering and PyTorch do not agree on type or shape" and graph.calls[0].opaque


def test_every_operator_without_a_rule_has_a_reason():
    assert aten.why_not("aten.frobnicate.default") == "no lowering for aten.frobnicate.default yet"
    assert aten.why_not("mylib.embedding.default") == "no lowering for mylib.embedding.default yet"
