"""Values that tell positions. In: how values are computed from positions and numbers. Out: the index that one of them
holds, so that what it picks is reached by arithmetic and needs no look-up.

An upsampled image picks its pixels by positions that went through floating point: position * 0.5, cut off. As long as
every result on the way is a number that its type holds exactly, that is position // 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from interfuse.ir.dtypes import BF16, F16, F32, F64, DType
from interfuse.ir.index import Expr, add, const, floordiv, mul
from interfuse.lower.kernel import Value

EXACT = {F64: 1 << 53, F32: 1 << 24, F16: 1 << 11, BF16: 1 << 8}
"""Whole numbers up to which a type holds every one, and every one over a power of two."""

FINEST = 1 << 10
"""The largest power of two that a number is taken to be over."""


@dataclass(frozen=True)
class _Told:
    """What a value holds: `index / over`, exactly; `over` is a power of two."""

    index: Expr
    over: int = 1


class Positions:
    """What the values of one trace tell."""

    def __init__(self) -> None:
        self._told: dict[Value, _Told] = {}

    def index(self, value: Value) -> Expr | None:
        """The index that a value is, or None."""
        found = self._told.get(value)
        return found.index if found is not None and found.over == 1 else None

    def note(self, value: Value, index: Expr) -> Value:
        """Remember that a value is an index; the value."""
        self._told[value] = _Told(index)
        return value

    def note_number(self, value: Value, number: object) -> Value:
        """Remember the number that a value is; the value."""
        if isinstance(number, (int, float)) and abs(number) < FINEST and float(number * FINEST).is_integer():
            over = next(d for d in (1 << k for k in range(FINEST.bit_length())) if float(number * d).is_integer())
            self._told[value] = _Told(const(int(number * over)), over)
        return value

    def follow(self, value: Value, op: str, args: tuple[Value, ...]) -> Value:
        """Remember what a value tells that is computed from values that tell something; the value."""
        known = [self._told[a] for a in args if a in self._told]
        found = _follow(op, value.dtype, known) if len(known) == len(args) else None
        if found is not None and _holds(value.dtype, found):
            self._told[value] = found
        return value


def _follow(op: str, dtype: DType, args: list[_Told]) -> _Told | None:
    """What `op` makes of what its arguments tell."""
    one, other = args[0], args[-1]
    if op == "cast":
        whole = dtype.is_float or one.over == 1
        return one if whole else _Told(floordiv(one.index, one.over)) if one.index.lo >= 0 else None
    if op == "add":
        over = max(one.over, other.over)
        return _Told(add(mul(one.index, over // one.over), mul(other.index, over // other.over)), over)
    if op == "mul" and "const" in (one.index.op, other.index.op):
        return _Told(mul(one.index, other.index), one.over * other.over)
    return None


def _holds(dtype: DType, told: _Told) -> bool:
    """True where the type surely has this number."""
    most = EXACT.get(dtype, 1 << (dtype.bytes * 8 - 1) if dtype.kind == "int" else 0)
    return -most < told.index.lo and told.index.hi < most and (dtype.is_float or told.over == 1)
