"""What the text of an operator may count on. In: a kernel's statements and lanes. Out: shorter texts, the same values.

A division is a dozen instructions and a branch, so it is taken apart where many elements share the divisor, and is a
product where the divisor is a power of two. A conversion to 8 bits need not look for what overflows where a value was
clamped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from interfuse.emit import triton_prelude as prelude
from interfuse.emit.triton_lanes import Lane
from interfuse.ir.dtypes import F32, I8, DType
from interfuse.lower.kernel import Let, Role, Stmt, Value

MOST_POWER = 126
"""Powers of two up to this one have a normal inverse."""


ROUNDING = frozenset(("add", "sub", "mul", "div"))
"""Operators whose results are rounded."""


class Known:
    """What is known of the values of one kernel; `lanes` are the axes that its tensors vary over, by name."""

    def __init__(self, statements: Iterable[Stmt], lanes: Mapping[str, Lane]) -> None:
        self._makers = {s.out: s for s in statements if isinstance(s, Let)}
        self._lanes = frozenset(lanes)
        self._whole = [x.axis.role for x in lanes.values()] == [Role.TILE]  # what varies over no lane is a scalar

    def text(self, s: Let) -> str:
        """The text of an operator on its operands, with {0}, {1}, ...; UnsupportedError where there is none."""
        typed = s.args[1] if s.op == "where" else s.args[0]
        if s.op == "div" and s.attrs:
            least, most = (prelude.literal(n, F32) for _, n in s.attrs)
            near = "codes_near" if self._has_digits(s.args[0]) else "codes_within"
            return f"{near if s.out.dtype is I8 else 'divided_within'}({{0}}, {{1}}, {least}, {most})"
        if s.op == "div" and s.out.dtype is F32:
            by = self._constant(s.args[1])
            if by is not None and _is_power(by) and self._constant(s.args[0]) is None:
                return f"{{0}} * {prelude.literal(1 / by, F32)}"
            if self._varies(s.args[1]) < self._varies(s.args[0]) and by is None:
                return "divided({0}, {1})" if self._whole else "divided_lanes({0}, {1})"
        if s.op == "sigmoid" and s.attrs:
            return "coarse_sigmoid({0})"
        return prelude.operator_text(s.op, typed.dtype)

    def _has_digits(self, value: Value, steps: int = 2) -> bool:
        """True for what some operations in a row gave, which leaves it all the digits that it can have: it hardly ever
        lies halfway between two codes, as an element of 16 bits does that is half of the largest one.
        """
        made = self._makers.get(value)
        if made is None or made.op not in ROUNDING or any(self._constant(a) is not None for a in made.args):
            return False
        return steps == 1 or any(self._has_digits(a, steps - 1) for a in made.args)

    def converted(self, value: Value, text: str, target: DType) -> str:
        """`text`, which spells `value`, converted to `target`."""
        return prelude.convert(text, value.dtype, target, self.limits(value))

    def limits(self, value: Value) -> tuple[float, float]:
        """The least and the most that a value can be, where it is a number at all."""
        made = self._makers.get(value)
        if made is not None and made.op == "div" and made.attrs:
            return dict(made.attrs)["least"], dict(made.attrs)["most"]
        if made is None or made.op not in ("maximum", "minimum", "rint", "const"):
            return prelude.EVERYTHING
        fixed = self._constant(value)
        if fixed is not None:
            return fixed, fixed
        if made.op == "rint":
            lo, hi = self.limits(made.args[0])
            return math.floor(lo) if math.isfinite(lo) else lo, math.ceil(hi) if math.isfinite(hi) else hi
        (lo, hi), (other_lo, other_hi) = map(self.limits, made.args)
        pick = max if made.op == "maximum" else min
        return pick(lo, other_lo), pick(hi, other_hi)

    def _varies(self, value: Value) -> frozenset[str]:
        return self._lanes.intersection(value.axes)

    def _constant(self, value: Value) -> float | None:
        """The number that a constant is; None for any other value."""
        made = self._makers.get(value)
        return float(dict(made.attrs)["value"]) if made is not None and made.op == "const" else None


def _is_power(x: float) -> bool:
    """True for a power of two, or its negative, whose inverse is a number like any other."""
    mantissa, power = math.frexp(x)
    return abs(mantissa) == 0.5 and abs(power) < MOST_POWER
