"""Sizes of captured tensors as index expressions. In: ints and SymInts. Out: Dims. SymPy stops here.

A symbol is bound where the graph's inputs give its value (a SymInt input, or a size of an input tensor); any other one
(an unbacked size, an expression that the index grammar cannot say) is data-dependent: calls that touch it stay opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch

from interfuse.base.errors import UnsupportedError
from interfuse.ir import index
from interfuse.ir.index import Dim, Expr

_FOLDS: dict[str, Callable[[Dim, Dim], Expr]] = {
    "Add": index.add,
    "Mul": index.mul,
    "FloorDiv": index.floordiv,
    "CleanDiv": index.floordiv,
    "IntTrueDiv": index.floordiv,
    "Mod": index.mod,
    "PythonMod": index.mod,
    "Min": index.minimum,
    "Max": index.maximum,
}


def _bound(value: Any, missing: int) -> int:
    """An end of a value range as an int; infinities and what is no integer give `missing`."""
    return (
        max(-index.INF, min(index.INF, int(value))) if getattr(value, "is_Integer", isinstance(value, int)) else missing
    )


def _example(value: torch.SymInt) -> int | None:
    """The example's value of a size, or None where it has none: what every version of torch spells so."""
    hint = getattr(value.node, "hint", None)
    return hint if isinstance(hint, int) else None


class Symbols:
    """The symbols of one captured graph, with the ranges that its ShapeEnv knew when tracing ended.

    `bound` holds those that inputs give, `hints` the values that these had in the example.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Expr] = {}
        self.hints: dict[str, int] = {}
        self._known: dict[str, Expr] = {}
        self._unsaid: dict[str, Expr] = {}

    def bind(self, values: Iterable[Any]) -> None:
        """Mark the plain symbols among `values` (ints, SymInts) as given by the graph's inputs."""
        for value in values:
            expr = self.dim(value)
            if isinstance(expr, Expr) and expr.op == "sym" and expr not in self._unsaid.values():
                self.bound[expr.name] = expr
                hint = _example(value)
                if hint is not None:
                    self.hints[expr.name] = hint

    def dim(self, value: Any) -> Dim:
        """`value` (int or SymInt) as a Dim; what the grammar cannot say becomes a symbol of its own that is never
        bound.
        """
        if not isinstance(value, torch.SymInt):
            return int(value)
        expr, env = value.node.expr, value.node.shape_env
        try:
            return index.unwrap(self._convert(expr, env))
        except UnsupportedError:
            return self._unsaid.setdefault(str(expr), index.sym(f"unsaid{len(self._unsaid)}", 0))

    def dims(self, values: Iterable[Any]) -> tuple[Dim, ...]:
        """Each of `values` as a Dim."""
        return tuple(self.dim(v) for v in values)

    def is_bound(self, dims: Iterable[Dim]) -> bool:
        """True where the graph's inputs alone give every dim."""
        return all(s.name in self.bound for d in dims if isinstance(d, Expr) for s in index.symbols(d))

    def _convert(self, expr: Any, env: Any) -> Expr:
        if expr.is_Integer:
            return index.const(int(expr))
        if expr.is_Symbol:
            return self._symbol(expr, env)
        if isinstance(expr, sympy.Pow) and expr.args[1].is_Integer and 0 < expr.args[1] <= 8:
            base = out = self._convert(expr.args[0], env)
            for _ in range(int(expr.args[1]) - 1):
                out = index.mul(out, base)
            return out
        fold = _FOLDS.get(type(expr).__name__)
        if fold is None:
            raise UnsupportedError(f"size expression {expr} has no index form; keep the call on the library path.")
        parts = [self._convert(a, env) for a in expr.args]
        if fold in (index.floordiv, index.mod) and parts[1].lo <= 0:
            raise UnsupportedError(
                f"size expression {expr} divides by what may be zero; keep the call on the library path."
            )
        out = parts[0]
        for part in parts[1:]:
            out = fold(out, part)
        return out

    def _symbol(self, symbol: Any, env: Any) -> Expr:
        name = str(symbol)
        if name not in self._known:
            span = env.var_to_range.get(symbol) if env is not None else None
            lo, hi = (
                (_bound(span.lower, -index.INF), _bound(span.upper, index.INF))
                if span is not None
                else (-index.INF, index.INF)
            )
            self._known[name] = index.sym(name, lo, hi)
        return self._known[name]
