"""Constructors reject what the table forbids. In: wrong operands. Out: GraphError, with a sentence that names the
rule.
"""

from __future__ import annotations

import pytest

from interfuse.base.errors import GraphError
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, C64, F16, F32, F64, I32, I64, U8
from interfuse.ir.index import sym
from interfuse.ir.verify import check_node

X, Y = b.placeholder("x", F32, (2, 3)), b.placeholder("y", F32, (2, 3))
N, H, T = b.placeholder("n", I32, (2, 3)), b.placeholder("h", BF16, (2, 3)), b.placeholder("t", BOOL, (2, 3))
Z = b.placeholder("z", C64, (2, 3))
V, W = b.placeholder("v", F32, (3,)), b.placeholder("w", F32, (4, 3))
S = sym("s", 2, 9)
E = b.placeholder("e", F32, (S, 0))

WRONG = {
    "no operator 'mish'": lambda: b.apply("mish", X),
    "elementwise": lambda: b.apply("sum", X),
    "takes 2 operands": lambda: b.apply("add", X),
    "broadcast first": lambda: b.apply("add", X, V),
    r"f32, i32\]: cast first": lambda: b.apply("add", X, N),
    "condition must be bool": lambda: b.apply("where", N, X, Y),
    "add on bf16: widen to f32 first": lambda: b.apply("add", H, H),
    "exp on i32: it takes floats": lambda: b.apply("exp", N),
    "isnan on i32: it takes floats": lambda: b.apply("isnan", N),
    "and on f32: it takes bool or integers": lambda: b.apply("and", X, Y),
    "shl on bool: it takes integers": lambda: b.apply("shl", T, T),
    "sub on bool: cast first": lambda: b.apply("sub", T, T),
    "add on c64: complex": lambda: b.apply("add", Z, Z),
    "add gives f32, not f64": lambda: b.apply("add", X, Y, dtype=F64),
    "cast gives None": lambda: b.apply("cast", X),
    "round from i32": lambda: b.rounded(N, BF16),
    "round from f32 to f64": lambda: b.rounded(X, F64),
    "1.5 is no constant of i64": lambda: b.constant(1.5, I64),
    "nan is no constant of i32": lambda: b.constant(float("nan"), I32),
    "300 lies outside u8": lambda: b.constant(300, U8),
    "no constant of c64": lambda: b.constant(1.0, C64),
    "iota of -1": lambda: b.iota(-1),
    "iota of 3 as bool": lambda: b.iota(3, BOOL),
    "input ''": lambda: b.placeholder("", F32, ()),
    "of shape \\(-2,\\)": lambda: b.placeholder("q", F32, (-2,)),
    "reshape \\(2, 3\\) to \\(5,\\)": lambda: b.reshape(X, (5,)),
    "reshape .* to \\(s, 3\\)": lambda: b.reshape(X, (S, 3)),
    "permute": lambda: b.permute(X, (0, 0)),
    "permute \\(2, 3\\) by \\(0,\\)": lambda: b.permute(X, (0,)),
    "expand \\(3,\\)": lambda: b.expand(V, (6,)),
    "expand \\(3,\\) to \\(2, 3\\)": lambda: b.expand(V, (2, 3)),
    "broadcast \\(2, 3\\) to \\(3,\\)": lambda: b.broadcast(X, (3,)),
    "leaves \\(2, 3\\)": lambda: b.take_slice(X, (0, 1), (2, 3)),
    "leaves .*": lambda: b.take_slice(X, (-1, 0), (2, 3)),
    "by \\(1, 2\\) leaves": lambda: b.take_slice(X, (0, 0), (2, 3), (1, 2)),
    "slice \\(2, 3\\) at": lambda: b.take_slice(X, (0, 0), (2, 3), (1, 0)),
    "slice \\(2, 3\\) at \\(0,\\)": lambda: b.take_slice(X, (0,), (2,)),
    "'add' among reduce": lambda: b.reduce("add", X, (0,)),
    "sum over \\(2,\\)": lambda: b.reduce("sum", X, (2,)),
    "sum over \\(1, 1\\)": lambda: b.reduce("sum", X, (1, 1)),
    "argmax takes one axis": lambda: b.reduce("argmax", X, (0, 1)),
    "variance with attributes \\[\\]": lambda: b.reduce("variance", X, (0,)),
    "sum with attributes \\['correction'\\]": lambda: b.reduce("sum", X, (0,), correction=1),
    "max of no elements": lambda: b.reduce("max", E, (1,)),
    "sum on bf16: widen": lambda: b.reduce("sum", H, (1,)),
    "sum on bool: cast first": lambda: b.reduce("sum", T, (1,)),
    "mean on i32: it takes floats": lambda: b.reduce("mean", N, (1,)),
    "'sum' among scan": lambda: b.scan("sum", X, 0),
    "cumsum along 2": lambda: b.scan("cumsum", X, 2),
    "cumsum on bf16": lambda: b.scan("cumsum", H, 0),
    "linear \\(2, 3\\) by \\(2, 4\\)": lambda: b.linear(X, b.placeholder("u", F32, (2, 4))),
    "bias must be \\[N\\]": lambda: b.linear(X, W, V),
    "linear on types": lambda: b.linear(X, b.placeholder("k", F16, (4, 3))),
    "linear on i32": lambda: b.linear(N, N),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_operands_are_rejected(sentence):
    with pytest.raises(GraphError, match=sentence):
        WRONG[sentence]()


RIGHT = (
    lambda: b.apply("where", T, H, H),
    lambda: b.apply("add", T, T),
    lambda: b.cast(H, F32),
    lambda: b.rounded(X, BF16),
    lambda: b.apply("cast", X, dtype=I32),
    lambda: b.constant(True, F32),
    lambda: b.constant(2.0, I64),
    lambda: b.constant(255, U8),
    lambda: b.iota(S, F32),
    lambda: b.broadcast(V, (S, 2, 3)),
    lambda: b.reshape(E, (0,)),
    lambda: b.take_slice(E, (S - 1, 0), (1, 0)),
    lambda: b.take_slice(X, (1, 2), (0, 0)),
    lambda: b.take_slice(X, (0, 0), (1, 2), (2, 2)),
    lambda: b.reduce("variance", X, (1, 0), correction=1),
    lambda: b.reduce("sum", E, (1,), keepdims=True),
    lambda: b.reduce("any", X, ()),
    lambda: b.scan("cummax", X, 1, reverse=True),
    lambda: b.linear(X, W, b.placeholder("c", F32, (4,))),
)


@pytest.mark.parametrize("k", range(len(RIGHT)))
def test_right_operands_give_nodes_that_the_verifier_accepts(k):
    check_node(RIGHT[k]())


def test_movements_that_change_nothing_are_the_operand_itself():
    assert b.reshape(X, (2, 3)) is b.permute(X, (0, 1)) is b.expand(X, (2, 3)) is b.take_slice(X, (0, 0), (2, 3)) is X
    assert b.cast(X, F32) is X


def test_shapes_and_types_follow_the_rules():
    assert b.reduce("argmax", X, (1,)).dtype is I64
    assert b.reduce("any", X, (1,)).dtype is BOOL
    assert b.reduce("sum", X, (0,), keepdims=True).shape == (1, 3)
    assert b.permute(b.broadcast(V, (S, 2, 3)), (2, 0, 1)).shape == (3, S, 2)
    assert b.apply("lt", N, N).dtype is BOOL
    assert b.linear(X, W).shape == (2, 4)
