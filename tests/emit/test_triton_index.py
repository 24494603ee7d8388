"""Index arithmetic as Triton text. In: random expressions. Out: the text's value by Triton's own rules of // and %."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interfuse.base.errors import UnsupportedError
from interfuse.emit.triton_index import INT32, index_text, wide_symbols
from interfuse.ir.index import Expr, const, evaluate, floordiv, maximum, minimum, mod, sym


class Truncating(int):
    """An integer whose // and % round towards zero, as Triton's do; it complains where 32 bits overflow."""

    def __add__(self, other: int) -> Truncating:
        return Truncating(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Truncating:
        return Truncating(int(self) - int(other))

    def __mul__(self, other: int) -> Truncating:
        return Truncating(int(self) * int(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Truncating:
        quotient = abs(int(self)) // abs(int(other))
        return Truncating(quotient if (self < 0) == (other < 0) else -quotient)

    def __mod__(self, other: int) -> Truncating:
        return Truncating(int(self) - int(other) * int(self // other))


ROW, COL = sym("row", 0, 40), sym("col", 0, 12)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Expr:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from((ROW, COL, const(draw(st.integers(-20, 20))))))
    a, b = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    make = draw(st.sampled_from(("add", "mul", "floordiv", "mod", "min", "max")))
    n = draw(st.integers(1, 9))
    return {
        "add": lambda: a + b,
        "mul": lambda: a * (n - 4),
        "floordiv": lambda: floordiv(a, n),
        "mod": lambda: mod(a, n),
        "min": lambda: minimum(a, b),
        "max": lambda: maximum(a, b),
    }[make]()


@given(e=expressions(), row=st.integers(0, 40), col=st.integers(0, 12))
def test_text_means_the_expression(e: Expr, row: int, col: int) -> None:
    text = re.sub(r"(?<![\w.])(\d+)", r"T(\1)", index_text(e, str))
    tl = SimpleNamespace(minimum=min, maximum=max)
    assert eval(text, {"row": Truncating(row), "col": Truncating(col), "T": Truncating, "tl": tl}) == evaluate(
        e, {"row": row, "col": col}
    )


def test_plain_texts() -> None:
    assert index_text(ROW * 64 + COL, str, lambda n: "COLS" if n == 64 else str(n)) in (
        "row * COLS + col",
        "col + row * COLS",
    )
    assert index_text(floordiv(ROW + COL, 5), str) == "(col + row) // 5"
    assert index_text(floordiv(ROW + -3, 5), str) == "(row + 2) // 5 - 1"
    assert index_text(mod(ROW, 5) * 3, str) == "row % 5 * 3"


def test_a_negative_number_divided_by_a_size_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="negative"):
        index_text(floordiv(ROW + -3, sym("n", 1, 9)), str)


def test_one_symbol_is_widened_and_preferred_ones_first() -> None:
    row, col = sym("row", 0, 1 << 20), sym("col", 0, 1 << 12)
    assert wide_symbols([row * 4096 + col], ("row", "col")) == {"row"}
    assert wide_symbols([row * 2000 + col], ("row", "col")) == frozenset()
    assert wide_symbols([col * (1 << 20) + row], ("row", "col")) == {"col"}, (
        "widening row would leave the product in 32 bits"
    )
    with pytest.raises(UnsupportedError, match="without an axis"):
        wide_symbols([sym("n", 0, INT32) * 2 + row], ("row",))
