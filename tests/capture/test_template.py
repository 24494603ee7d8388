"""Argument templates and symbols: what goes in comes out, and each error says what to do."""

from __future__ import annotations

import operator

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Mod, PowByNatural

from interfuse.base.errors import UnsupportedError
from interfuse.capture import template
from interfuse.capture.symbols import Symbols
from interfuse.capture.torch_types import from_torch
from interfuse.ir import build, index
from interfuse.ir.dtypes import F32
from interfuse.ir.graph import Literal, Ref

X = build.placeholder("x", F32, (2,))


def test_arguments_come_back():
    opaque: list = []
    stranger = object()
    encoder = template.Encoder(lambda n: X, opaque)
    given = [
        1,
        2.5,
        None,
        "mean",
        [1, [True]],
        torch.float16,
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
        (1, 2),
        {"a": [3], "b": (torch.int8,)},
        slice(1, None, 2),
        stranger,
        stranger,
    ]
    coded = encoder.encode(given)
    assert template.decode(coded, (), opaque) == given and opaque == [stranger]
    assert template.decode((Ref(0), (Ref(0),)), ["tensor"]) == ["tensor", ["tensor"]]


def test_sizes_are_computed_from_symbols():
    s, t = index.sym("s0", 2), index.sym("s1", 2)
    for expr in (s * 2 + 3, (s * t) // 4, s % 5 - t, index.minimum(s, t), index.maximum(s, 7) * -1):
        literal = template.size_literal(expr)
        assert template.decode(literal, (), (), {"s0": 11, "s1": 6}) == index.evaluate(expr, {"s0": 11, "s1": 6})


@pytest.mark.parametrize(
    "target",
    [
        torch.ops.aten.addmm.default,
        torch.ops.aten.add.Tensor,
        operator.add,
        max,
        torch.sym_max,
        torch.ops.higher_order.cond,
        torch.ops.prims.iota.default,
    ],
)
def test_targets_have_names(target):
    assert template.resolve(template.target_name(target)) is target


def test_what_has_no_name_and_what_is_not_there():
    assert template.target_name(lambda x: x) is None
    with pytest.raises(UnsupportedError, match="register"):
        template.resolve("nolib.nothing.default")


def test_flatten_keeps_the_order_of_results():
    assert template.flatten((1, [None, 2], ())) == [1, None, 2]


def test_size_expressions_convert():
    env, symbols = ShapeEnv(), Symbols()
    a, b = sympy.symbols("s0 s1", positive=True, integer=True)
    env.var_to_range.update({})

    class Fake:
        shape_env = env

        def __init__(self, expr):
            self.expr = expr

    def convert(expr):
        return symbols._convert(expr, env)

    s, t = convert(a), convert(b)
    assert convert(a * 2 + b) is s * 2 + t and convert(FloorDiv(a, 4)) is s // 4 and convert(Mod(a, 4)) is s % 4
    assert convert(sympy.Max(a, b)) is index.maximum(s, t) and convert(a**2) is s * s
    for unsaid in (PowByNatural(a, b), a / 3, FloorDiv(a, b)):
        with pytest.raises(UnsupportedError, match="library path"):
            convert(unsaid)


def test_types_that_cannot_be_held_say_so():
    with pytest.raises(UnsupportedError, match="run this model through PyTorch"):
        from_torch(torch.quint8)
    assert isinstance(template.keep(object(), []), Literal)
