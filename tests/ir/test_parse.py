"""Reading printed nodes back. In: random regions and hand-written text. Out: the very nodes, or ParseError naming the
line.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.base.errors import ParseError
from interfuse.ir import build as b
from interfuse.ir import index
from interfuse.ir.dtypes import ALL, F32, I64
from interfuse.ir.index import sym
from interfuse.ir.node import make
from interfuse.ir.parse import parse_nodes
from interfuse.ir.printer import show_nodes
from tests.strategies import regions


@settings(max_examples=150)
@given(regions(), st.booleans())
def test_regions_read_back_as_themselves(region, for_key):
    roots = tuple(region[1])
    assert parse_nodes(show_nodes(roots, for_key)) == roots


@st.composite
def _sizes(draw: st.DrawFn, depth: int = 3) -> index.Dim:
    if not depth or draw(st.booleans()):
        leaf = draw(st.sampled_from((sym("s0", 2, 512), sym("s1", 1), sym("n_2", -7, 2**40), 3, 8)))
        return leaf
    a, c = draw(_sizes(depth - 1)), draw(_sizes(depth - 1))
    make_ = draw(
        st.sampled_from(
            (
                index.add,
                index.mul,
                index.minimum,
                index.maximum,
                lambda x, y: index.wrap(x) - y,
                lambda x, y: index.floordiv(x, index.maximum(y, 1)),
                lambda x, y: index.mod(x, 6),
            )
        )
    )
    return make_(a, c)


@settings(max_examples=300)
@given(_sizes(), _sizes(2))
def test_symbolic_sizes_read_back_as_themselves(size, start):
    size = index.unwrap(index.maximum(size, 0))
    x = b.placeholder("x", F32, (size, 4))
    part = make("slice", (x,), F32, (1, 4), starts=(start, 0), steps=(1, 1)) if index.wrap(start).hi >= 0 else x
    try:
        text = show_nodes([part, x])
        assert parse_nodes(text) == (part, x)
    except ParseError as error:
        assert "leave a dimension" in str(error)


@settings(max_examples=200)
@given(
    st.text(max_size=12),
    st.one_of(
        st.floats(),
        st.integers(),
        st.booleans(),
        st.none(),
        st.text(),
        st.tuples(st.integers(), st.text(), st.tuples(st.floats())),
    ),
)
def test_attributes_read_back_as_themselves(name, value):
    x = b.placeholder(name or "x", I64, (2,))
    node = make("library", (x,), F32, (2,), token=3, target="aten.foo", detail=value)
    assert parse_nodes(show_nodes([node])) == (node,)


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_every_type_is_read(dtype):
    x = b.placeholder("x", dtype, ())
    assert parse_nodes(show_nodes([x])) == (x,)


def test_comments_and_empty_lines_are_skipped():
    x = b.placeholder("x # y", F32, (2,))
    text = "# a note\n\n%0 = input(name='x # y') : f32[2]  # it's here\n\nreturn %0  # done\n"
    assert parse_nodes(text) == (x,)


def test_nothing_after_return():
    assert parse_nodes("return\n") == ()


WRONG = {
    "%0 = input(name='x') : f32[2]\nwhat\nreturn %0": "line 2, 'what', .* neither a symbol, a node nor a return",
    "%0 = neg(%1) : f32[2]\nreturn %0": "line 1, .*%1 is not given by an earlier line",
    "%0 = input(name='x') : f32[2]\nreturn %3": "line 2, .*%3 is not given",
    "%0 = input(name='x') : f31[2]\nreturn %0": "line 1, .*'f31' is not an element type",
    "%0 = input(name='x') : f32[s0]\nreturn %0": "line 1, .*'s0' is neither a plain value",
    "%0 = input(name='x') : f32[2, 3\nreturn %0": "line 1",
    "%0 = input(name=open('f')) : f32[2]\nreturn %0": "line 1, .*neither a plain value",
    "%0 = input('x') : f32[2]\nreturn %0": "line 1, .*not attributes",
    "%0 = input(name=) : f32[2]\nreturn %0": "line 1",
    "%0 = input(name='x') : f32[2]\n%0 = neg(%0) : f32[2]\nreturn %0": "line 2, .*%0 is given twice",
    "%0 = input(name='x') : f32[2]\n%1 = mish(%0) : f32[2]\nreturn %1": "line 2, .*there is no operator 'mish'",
    "%0 = input(name='x') : f32[2]\n%1 = neg(%0) : f32[3]\nreturn %1": "line 2, .*operand shape",
    "%0 = input(name='x') : f32['a']\nreturn %0": "line 1",
    "%0 = input(name='x') : f32[4 // 0]\nreturn %0": "line 1, .*must be positive",
    "%0 = input(name='x') : f32[1.5]\nreturn %0": "line 1, .*not made of sizes",
    "%0 = input(name='x') : f32[1.5 + 2]\nreturn %0": "line 1, .*not both sizes",
    "%0 = input(name='x') : f32[2]": "no `return` line",
    "": "no `return` line",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_text_names_its_line(text):
    with pytest.raises(ParseError, match=WRONG[text]):
        parse_nodes(text)
