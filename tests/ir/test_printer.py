"""Printed graphs. In: hand-written graphs. Out: the golden text, and key text that only meaning changes."""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.index import sym
from interfuse.ir.printer import show, show_nodes
from tests import golden
from tests.ir.graphs import opaque_calls, residual_norm


def test_residual_norm(request):
    golden.check(request, show(residual_norm()))


def test_opaque_calls(request):
    golden.check(request, show(opaque_calls()))


def test_expressions(request):
    golden.check(request, show_nodes([o.node for o in residual_norm().outputs if o.node is not None]))


def _work(name: str, source: str):
    x = b.placeholder(name, F32, (3,))
    return x, b.apply("exp", b.apply("neg", x, source=source, hint=source), source=source, hint=source)


def test_keys_do_not_see_hints_lines_or_the_names_of_leaves():
    (x, one), (y, two) = _work("x", "a.py:1"), _work("y", "b.py:2")
    assert show_nodes([one]) != show_nodes([two])
    assert show_nodes([one], for_key=True, leaves=[x]) == show_nodes([two], for_key=True, leaves=[y])
    assert "a.py" not in show_nodes([one], for_key=True)


def test_keys_see_what_work_is_done():
    x = b.placeholder("x", F32, (3,))
    texts = {show_nodes([b.apply(op, x)], for_key=True, leaves=[x]) for op in ("exp", "neg", "sin")}
    texts |= {show_nodes([b.take_slice(x, (sym("s", 0, hi),), (1,))], for_key=True, leaves=[x]) for hi in (1, 2)}
    assert len(texts) == 5


def test_leaves_hide_what_computes_them():
    top = _work("x", "")[1]
    middle = top.inputs[0]
    text = show_nodes([top, middle], for_key=True, leaves=[middle])
    assert text == "%0 = input(name='0') : f32[3]\n%1 = exp(%0) : f32[3]\nreturn %1, %0\n"


def test_no_roots_print_an_empty_return():
    assert show_nodes([]) == "return\n"


def test_comments_stay_on_their_line():
    x = b.apply("neg", b.placeholder("x", F32, (3,)), hint="two\nlines", source="a.py:1")
    assert "neg(%0) : f32[3]  # two lines at a.py:1\n" in show_nodes([x])
