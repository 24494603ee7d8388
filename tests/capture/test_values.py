"""What lowerings build with: promotion, one round a call, movements that merge."""

from __future__ import annotations

import itertools

import pytest
import torch

from interfuse.base.errors import UnsupportedError
from interfuse.capture import values
from interfuse.capture.torch_types import from_torch, to_torch
from interfuse.ir import build
from interfuse.ir.dtypes import BF16, F16, F32, F64, I8
from interfuse.ir.index import sym
from interfuse.ir.node import topological
from tests.capture import opinfo

KINDS = (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("first", KINDS)
def test_promotion_is_pytorchs(first):
    for second, ranks in itertools.product(KINDS, itertools.product((0, 1), repeat=2)):
        pair = [torch.zeros((2,) * r, dtype=d) for r, d in zip(ranks, (first, second), strict=True)]
        nodes = [build.placeholder(f"x{k}", from_torch(t.dtype), tuple(t.shape)) for k, t in enumerate(pair)]
        assert to_torch(values.promote(*nodes)) is torch.result_type(*pair), (first, second, ranks)
    for number, rank in itertools.product((True, 2, 0.5), (0, 1)):
        tensor = torch.zeros((2,) * rank, dtype=first)
        node = build.placeholder("x", from_torch(first), tuple(tensor.shape))
        assert to_torch(values.promote(node, number)) is torch.result_type(tensor, number)


def test_a_chain_of_half_operators_rounds_once_each_and_never_narrows_inside():
    def chain(x):
        return (x + 1).view(12).mul(x.view(12)).exp()

    graph, inputs = opinfo.capture(chain, (torch.randn(3, 4).half(),), {})
    opinfo.check(graph, inputs)
    ops = [n.op for n in topological([graph.outputs[0].node])]
    assert ops.count("round") == 3 and ops.count("cast") == 2  # x widened, the result narrowed


def test_exact_operators_are_not_rounded():
    graph, inputs = opinfo.capture(lambda x: (-x).relu().abs(), (torch.randn(3).bfloat16(),), {})
    opinfo.check(graph, inputs)
    assert "round" not in [n.op for n in topological([graph.outputs[0].node])]


def test_wide_undoes_narrow_through_movements():
    x = build.placeholder("x", F32, (2, 3))
    narrow = values.narrow(build.apply("exp", x), F16)
    moved = values.permute(values.reshape(narrow, (3, 2)), (1, 0))
    assert values.wide(moved).dtype is F32 and "cast" not in [n.op for n in topological([values.wide(moved)])]
    loaded = values.permute(build.placeholder("h", F16, (2, 3)), (1, 0))
    assert values.wide(loaded) is values.permute(build.cast(loaded.inputs[0], F32), (1, 0))


def test_a_value_of_one_narrow_type_is_rounded_to_another():
    half = build.placeholder("x", F16, (2,))
    assert values.convert(half, BF16).op == "round" and values.convert(half, F16).op == "cast"
    assert values.convert(half, F64) is build.cast(build.cast(half, F32), F64)


def test_movements_merge():
    x = build.placeholder("x", F32, (2, 3, 1))
    assert values.permute(values.permute(x, (2, 0, 1)), (1, 2, 0)) is x
    assert values.reshape(values.reshape(x, (6,)), (2, 3, 1)) is x
    assert values.permute(x, (2, 0, 1)).op == "reshape"
    assert values.expand(values.expand(x, (2, 3, 4)), (2, 3, 4)).inputs[0] is x


def test_sizes_that_may_differ_and_numbers_that_do_not_fit():
    with pytest.raises(UnsupportedError, match="sizes that may differ"):
        values.broadcast_shape([(sym("s0", 2),), (sym("s1", 2),)])
    make = values.Maker([I8], [(2,)], "", "aten.add.Tensor")
    with pytest.raises(UnsupportedError, match="the number 300 is outside i8"):
        make("add", build.placeholder("x", I8, (2,)), 300)
    for value, reason in (
        (sym("s0"), "a size symbol"),
        (1j, "no real number"),
        (build.placeholder("x", I8, ()), "a tensor"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            values.number(value)
