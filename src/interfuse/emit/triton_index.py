"""Index arithmetic in Triton. In: index expressions, spellings of symbols. Out: text, and which axes need 64 bits.

Triton's `//` and `%` round towards zero, so operands that may be negative are shifted up by a multiple of the divisor.
Arithmetic is 32-bit until an interval passes 2^31 - 1; then one symbol of the expression is widened, which widens all
that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import INF, Expr, const, symbols

INT32 = (1 << 31) - 1


def index_text(e: Expr, spell: Callable[[str], str], number: Callable[[int], str] = str, parent: int = 0) -> str:
    """`e` as Triton text; `spell` names symbols, `number` writes the constants that multiply."""
    if e.op == "const":
        return str(e.value) if e.value >= 0 else f"({e.value})"
    if e.op == "sym":
        return spell(e.name)
    if e.op in ("min", "max"):
        return f"tl.{e.op}imum({', '.join(index_text(a, spell, number) for a in e.args)})"
    level = 1 if e.op == "add" else 2
    if e.op == "mul":
        parts = [
            number(a.value) if a.op == "const" and a.value > 0 else index_text(a, spell, number, 2 + (k > 0))
            for k, a in enumerate(e.args)
        ]
        body = " * ".join(parts)
    elif e.op == "add":
        body = index_text(e.args[0], spell, number, 1)
        for a in e.args[1:]:
            negative = a.op == "const" and a.value < 0
            body += f" - {-a.value}" if negative else f" + {index_text(a, spell, number, 1)}"
    else:
        body = _division(e, spell, number)
    return f"({body})" if level < parent else body


def _division(e: Expr, spell: Callable[[str], str], number: Callable[[int], str]) -> str:
    """A floordiv or mod; both bind like a product and take their left operand at that level."""
    whole, divisor = e.args
    sign = "//" if e.op == "floordiv" else "%"
    by = index_text(divisor, spell, number, 3)
    if whole.lo >= 0:
        return f"{index_text(whole, spell, number, 2)} {sign} {by}"
    if divisor.op != "const" or whole.lo <= -INF:
        raise UnsupportedError(f"index {e}: a negative number divided by a size has no text")
    lifts = -(whole.lo // divisor.value)
    shifted = f"({index_text(whole, spell, number, 1)} + {lifts * divisor.value}) {sign} {by}"
    return shifted if e.op == "mod" else f"{shifted} - {lifts}"


def wide_symbols(
    indices: Iterable[Expr], prefer: tuple[str, ...], known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Names of the symbols to compute in 64 bits, so that no part of `indices` overflows 32; `prefer` comes first.

    `known` are 64 bits wide already. UnsupportedError where the part that overflows has none of the `prefer`red symbols
    in it.
    """
    wide = set(known)

    def names(parts: Iterable[Expr]) -> set[str]:
        return {s.name for a in parts for s in symbols(a) if s.hi > 0}

    def visit(e: Expr) -> None:
        for a in e.args:
            visit(a)
        # A sum or product is evaluated from the left, so each of its beginnings counts as a part.
        for k in range(2, len(e.args) + 1):
            lo, hi = _bounds(e, e.args[:k])
            if max(-lo, hi) > INT32:
                found = names(e.args[:k])
                if not found & wide:
                    widen(e, found)

    def widen(e: Expr, found: set[str]) -> None:
        for name in prefer:
            if name in found:
                wide.add(name)
                return
        raise UnsupportedError(f"index {e}: passes 2^31 in a part without an axis")

    for index in indices:
        visit(index)
    return frozenset(wide)


def _bounds(e: Expr, parts: tuple[Expr, ...]) -> tuple[int, int]:
    if e.op == "add":
        return sum(a.lo for a in parts), sum(a.hi for a in parts)
    if e.op != "mul" or len(parts) == len(e.args):
        return e.lo, e.hi
    out = const(1)
    for a in parts:
        out = out * a
    return out.lo, out.hi
