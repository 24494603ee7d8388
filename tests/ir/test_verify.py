"""The verifier. In: graphs and nodes with one thing wrong each. Out: GraphError that names the node or call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interfuse.base.errors import GraphError
from interfuse.ir import build as b
from interfuse.ir.dtypes import BOOL, F32, F64, I32, I64, DType
from interfuse.ir.graph import Call, Graph, Input, Literal, Output, Ref
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import make
from interfuse.ir.verify import check_node, verify
from tests.ir.graphs import library_node, opaque_calls, residual_norm

X, N, A = b.placeholder("x", F32, (2, 3)), b.placeholder("n", I32, (2, 3)), b.placeholder("a", F32, (4, 2, 3))


@pytest.mark.parametrize("graph", [residual_norm(), opaque_calls(), Graph((), (), ())], ids=lambda g: g.name)
def test_right_graphs_pass(graph):
    verify(graph)


BAD_NODES = {
    "no operator 'mish'": lambda: make("mish", (X,), F32, (2, 3)),
    "takes 2 operands, not 1": lambda: make("add", (X,), F32, (2, 3)),
    "not an element type": lambda: make("neg", (X,), DType("f99", 4, "float", F32.numpy), (2, 3)),
    "negative size": lambda: make("input", (), F32, (-1,), name="q"),
    "only library and item nodes carry a token": lambda: make("neg", (X,), F32, (2, 3), token=1),
    "needs a token": lambda: make("library", (X,), F32, (2, 3)),
    "cast first": lambda: make("add", (X, N), F32, (2, 3)),
    "type must be f32": lambda: make("neg", (X,), F64, (2, 3)),
    "type must be bool": lambda: make("lt", (X, X), F32, (2, 3)),
    r"operand shape \(2, 3\)": lambda: make("neg", (X,), F32, (3, 2)),
    "name of a narrow type, not 'f64'": lambda: make("round", (X,), F32, (2, 3), to="f64"),
    "narrow type, not None": lambda: make("round", (X,), F32, (2, 3)),
    "constant has no dimensions": lambda: make("const", (), F32, (2,), value=1.0),
    "1 is no constant of f32": lambda: make("const", (), F32, (), value=1),
    "1.0 is no constant of bool": lambda: make("const", (), BOOL, (), value=1.0),
    "iota has one dimension": lambda: make("iota", (), I64, (2, 2)),
    "input needs a name": lambda: make("input", (), F32, (2,)),
    "different numbers of elements": lambda: make("reshape", (X,), F32, (7,)),
    "does not order": lambda: make("permute", (X,), F32, (3, 2), order=(1, 1)),
    r"by \(1, 0\) is not \(2, 3\)": lambda: make("permute", (X,), F32, (2, 3), order=(1, 0)),
    "does not expand": lambda: make("expand", (X,), F32, (4, 3)),
    "differ in length": lambda: make("slice", (X,), F32, (2,), starts=(0,), steps=(1,)),
    "leave a dimension of 3": lambda: make("slice", (X,), F32, (2, 2), starts=(0, 2), steps=(1, 1)),
    "from 1 by -1 leave a dimension of 3": lambda: make("slice", (X,), F32, (2, 3), starts=(0, 1), steps=(1, -1)),
    "one operand at least": lambda: make("concat", (), F32, (2, 3), axis=0),
    r"concat of \(2, 3\) and \(3, 2\) along 0": lambda: make("concat", (X, b.permute(X, (1, 0))), F32, (4, 3), axis=0),
    r"concat along 2 of": lambda: make("concat", (X, X), F32, (4, 3), axis=2),
    r"shape must be \(4, 3\)": lambda: make("concat", (X, X), F32, (2, 6), axis=0),
    "concat on types": lambda: make("concat", (X, N), F32, (4, 3), axis=0),
    r"shape must be \(3, 3\)": lambda: make("pad", (X,), F32, (2, 3), lo=(1, 0), hi=(0, 0), value=0.0),
    "slice first where it is negative": lambda: make("pad", (X,), F32, (1, 3), lo=(-1, 0), hi=(0, 0), value=0.0),
    r"pad of \(2, 3\) by None": lambda: make("pad", (X,), F32, (2, 3), value=0.0),
    "None is no constant of f32": lambda: make("pad", (X,), F32, (2, 3), lo=(0, 0), hi=(0, 0)),
    "distinct and in range": lambda: make("sum", (X,), F32, (2,), axes=(2,)),
    r"axes \(1, 0\)": lambda: make("sum", (X,), F32, (), axes=(1, 0)),
    r"axes None": lambda: make("sum", (X,), F32, ()),
    r"without \(1,\) is not \(3,\)": lambda: make("sum", (X,), F32, (3,), axes=(1,)),
    "one axis and gives i64": lambda: make("argmax", (X,), F32, (2,), axes=(1,)),
    "needs a correction": lambda: make("variance", (X,), F32, (2,), axes=(1,)),
    "no largest or smallest": lambda: make("max", (b.placeholder("z", F32, (2, 0)),), F32, (2,), axes=(1,)),
    "axis 2": lambda: make("cumsum", (X,), F32, (2, 3), axis=2, reverse=False),
    "keeps its operand's shape": lambda: make("cumsum", (X,), F32, (3, 2), axis=0, reverse=False),
    "in reverse": lambda: make("cumsum", (X,), F32, (2, 3), axis=0),
    "no matrix product": lambda: make("matmul", (X, X), F32, (2, 3)),
    r"by \(4, 3, 2\) does not give \(4, 2, 9\)": lambda: make("matmul", (A, b.permute(A, (0, 2, 1))), F32, (4, 2, 9)),
    "linear of": lambda: make("linear", (X, b.permute(X, (1, 0))), F32, (2, 2)),
    "bias must have shape": lambda: make("linear", (X, X, X), F32, (2, 2)),
    r"does not give \(3, 3\)": lambda: make("linear", (X, X), F32, (3, 3)),
}


@pytest.mark.parametrize("sentence", BAD_NODES)
def test_wrong_nodes_are_named(sentence):
    node = BAD_NODES[sentence]()
    with pytest.raises(GraphError, match=sentence) as error:
        check_node(node)
    assert str(error.value).startswith(f"{node.op}:")


def test_the_models_line_is_named():
    with pytest.raises(GraphError, match=r"^neg:f64\[2x3\] \(model.py:3\): "):
        # Of an input of its own: equal nodes are one, and another test's would have no line.
        check_node(make("neg", (b.placeholder("mine", F32, (2, 3)),), F64, (2, 3), source="model.py:3"))


def _with_call(k: int, **change) -> Graph:
    graph = opaque_calls()
    calls = list(graph.calls)
    calls[k] = replace(calls[k], **change)
    return replace(graph, calls=tuple(calls))


def _with(**change) -> Graph:
    return replace(opaque_calls(), **change)


ONE = Input(X, contiguous((2, 3)))
EXTRA = Call("aten.neg.default", (Ref(0),), (), (X,), (b.apply("neg", X),), (contiguous((2, 3)),))

BAD_GRAPHS = {
    "neg:f64": lambda: Graph((ONE,), (), (Output(make("neg", (X,), F64, (2, 3)), contiguous((2, 3))),)),
    "two inputs share a name": lambda: Graph((ONE, Input(b.placeholder("x", F64, ()), Layout(()))), (), ()),
    "input neg:f32.* must be an input node": lambda: Graph((Input(b.apply("neg", X), contiguous((2, 3))),), (), ()),
    r"input x: strides \(1,\) for shape \(2, 3\)": lambda: Graph((Input(X, Layout((1,))),), (), ()),
    r"call 0 \(aten.neg.default\) needs input:f32\[2x3\]": lambda: Graph((), (EXTRA,), ()),
    r"call 0 .* needs library": lambda: Graph((ONE,), (replace(EXTRA, operands=(library_node(9),)),), ()),
    "call 1 .* needs library:.* which nothing before it gives": lambda: _with(calls=opaque_calls().calls[::3]),
    r"call 0 \(aten.sort.default at model.py:7\) refers to operand 4 of 1": lambda: _with_call(0, args=((Ref(4),),)),
    "call 1 .* refers to opaque object 0 of 0": lambda: _with(opaque=()),
    "refers to opaque object x": lambda: _with_call(0, kwargs=(("g", Literal("opaque", "x")),)),
    "2 results and 1 layouts": lambda: _with_call(0, layouts=(Layout((1,)),)),
    "has a layout but no node": lambda: _with_call(0, layouts=(Layout((1,)), Layout((1,)))),
    r"call 0 .*: strides \(1, 2\)": lambda: _with_call(0, layouts=(Layout((1, 2)), None)),
    "is a view of operand 1": lambda: _with_call(0, view_of=1),
    "unknown effect 'magic'": lambda: _with_call(1, effect="magic"),
    "-1 launches": lambda: _with_call(0, launches=-1),
    "call 0 .* must say why": lambda: _with_call(0, reason=""),
    "output 0 needs input": lambda: Graph((), (), (Output(X, contiguous((2, 3))),)),
    "output 0 needs library": lambda: Graph((ONE,), (), (Output(library_node(9), Layout((1,))),)),
    r"output 0: strides \(1,\)": lambda: Graph((ONE,), (), (Output(X, Layout((1,))),)),
    "output 0 has a layout but no node": lambda: Graph((), (), (Output(None, Layout((1,))),)),
}


@pytest.mark.parametrize("sentence", BAD_GRAPHS)
def test_wrong_graphs_are_named(sentence):
    with pytest.raises(GraphError, match=sentence):
        verify(BAD_GRAPHS[sentence]())


def test_a_call_may_use_its_own_results_and_expressions_of_earlier_ones():
    graph = opaque_calls()
    noise = graph.calls[1].outs[0]
    powered = b.apply("exp", noise)
    later = Call("aten.neg.default", (Ref(0),), (), (powered,), (b.apply("neg", powered),), (Layout((1,)),))
    verify(replace(graph, calls=(*graph.calls, later)))
