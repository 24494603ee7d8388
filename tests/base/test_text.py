"""The writer. In: lines and blocks. Out: indented text."""

from __future__ import annotations

from interfuse.base.text import Writer


def test_blocks_indent_and_close():
    w = Writer()
    with w.block("if (x) {", "}"):
        w.line("a;")
        w.line()
        with w.block("while (y) {", "}"):
            w.line("b;")
    w.line("c;")
    assert w.text() == "if (x) {\n    a;\n\n    while (y) {\n        b;\n    }\n}\nc;\n"


def test_a_block_may_have_no_head_or_tail():
    w = Writer("  ")
    with w.block():
        w.line("a")
    with w.block("def f():"):
        w.line("pass")
    assert w.text() == "  a\ndef f():\n  pass\n"


def test_nothing_written_is_one_empty_line():
    assert Writer().text() == "\n"
