"""Softmax weights that end in a narrow type, in fewer operations. In: a tidied Kernel. Out: a Kernel, and whether
exponentials may flush what is subnormal to 0.

A weight exp(x - max) that is only summed, divided by its sum and stored as f16 or bf16 needs no more digits than these
have: it is a power of two of a product, and the division by the sum, which is one for a whole row, a product with its
reciprocal. A GPU does both for half of what it takes to read and write the elements; exactly, they cost more. A sigmoid
of which nobody sees more is a power of two and an approximate reciprocal likewise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from interfuse.emit.triton_prelude import operator_text
from interfuse.ir.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32
from interfuse.lower.kernel import PART, Kernel, Let, Load, Loop, Meet, Reduce, Scan, Stmt, Store, Value, operands, walk

CURVES = frozenset(("sigmoid", "normal_cdf"))
"""Operators with exponentials inside."""

JOINED: Mapping[str, int] = {"add": 0, "where": 2}
"""Operators by which a sum of exponentials goes on as it is, or becomes what no row has: which operand it is."""

COARSE = (("coarse", True),)
"""The attributes of a sigmoid of which nobody sees more digits than a narrow type has."""

LOG2_E = math.log2(math.e)


class _Uses:
    """Who makes and who reads each value of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        types, statements = {p.name: p.dtype for p in kernel.params}, walk(kernel.body)
        self.maker: dict[Value, Stmt] = {}
        self.users: dict[Value, dict[Stmt, None]] = defaultdict(dict)
        reduced: set[Value] = set()
        for s in statements:
            if not isinstance(s, Store):
                self.maker[s.out] = s  # type: ignore[union-attr]
                if isinstance(s, (Reduce, Scan)) or not reduced.isdisjoint(operands(s)):
                    reduced.add(s.out)  # type: ignore[union-attr]
            for v in operands(s):
                self.users[v][s] = None
        stores = [s for s in statements if isinstance(s, Store)]
        coded = [s for s in stores if types[s.param].bytes == 1 and types[s.param] is not BOOL]
        # Codes may differ by one in a thousand where they are rounded from what came through a reduction.
        self.codes = bool(coded) and reduced.issuperset(s.arg for s in coded)
        kinds = (F16, BF16, F8E4M3, F8E5M2) if self.codes else (F16, BF16)
        self.narrow = {s.param for s in stores if types[s.param] in kinds}

    def coarse(self, value: Value) -> bool:
        """True where nobody sees more digits of the value than a narrow type has."""
        return bool(self.users[value]) and all(map(self._rounds, self.users[value]))

    def _rounds(self, s: Stmt) -> bool:
        if isinstance(s, Store):
            return s.param in self.narrow
        if isinstance(s, Let) and s.op == "round" and self.codes:
            return True
        if isinstance(s, Let):
            kept = s.out.dtype is F32 and (s.op in ("mul", "div") or (s.op in JOINED and self.is_sum(s.out)))
        else:
            kept = isinstance(s, Meet) or (isinstance(s, Reduce) and s.op == "sum")
        return kept and self.coarse(s.out)  # type: ignore[union-attr]

    def is_sum(self, value: Value) -> bool:
        """True for a sum of exponentials that one measures from their maximum, or what adds nothing to it."""
        made = self.maker.get(value)
        if isinstance(made, Let) and made.op in JOINED:
            return self.is_sum(made.args[JOINED[made.op]])
        if not isinstance(made, Reduce) or made.op == "expsum":
            return isinstance(made, Reduce)
        terms = self.maker.get(made.arg)
        if isinstance(terms, Let) and terms.op == "mul" and made.axis == PART:  # sums of parts, brought to one maximum
            terms = self.maker.get(terms.args[1])
        return made.op == "sum" and self.weight(terms)

    def scaled(self, value: Value, weights: Collection[Value]) -> bool:
        """True for one of the weights, or a multiple of it."""
        made = self.maker.get(value)
        return value in weights or (isinstance(made, Let) and made.op == "mul" and made.args[0] in weights)

    def curve(self, s: Let) -> bool:
        """True for a sigmoid or a normal distribution's curve of whose digits, or tails, nobody sees much."""
        tails = s.op == "normal_cdf" and not any(isinstance(u, Store) for u in self.users[s.out])
        return s.out.dtype is F32 and ((s.op == "sigmoid" and self.coarse(s.out)) or tails)

    def weight(self, s: Stmt | None) -> bool:
        """True for exp(x - max of a row) in f32."""
        apart = self.maker.get(s.args[0]) if isinstance(s, Let) and s.op == "exp" and s.out.dtype is F32 else None
        top = self.maker.get(apart.args[1]) if isinstance(apart, Let) and apart.op == "sub" else None
        if isinstance(top, Let) and top.op == "maximum":  # with the lowest number, so that -inf has a distance
            top = self.maker.get(top.args[0])
        return isinstance(top, Reduce) and top.op == "max"


def narrowed(kernel: Kernel) -> tuple[Kernel, bool]:
    """The kernel with cheaper softmax weights where narrow results allow it, and whether subnormal results of its
    exponentials matter to nobody.
    """
    uses = _Uses(kernel)
    weights = {s.out for s in walk(kernel.body) if isinstance(s, Let) and uses.weight(s) and uses.coarse(s.out)}
    shares = {
        s
        for s in walk(kernel.body)
        if isinstance(s, Let)
        and s.op == "div"
        and uses.scaled(s.args[0], weights)
        and uses.is_sum(s.args[1])
        and uses.coarse(s.out)
    }
    curves = {s.out for s in walk(kernel.body) if isinstance(s, Let) and uses.curve(s)}
    inverse = {s.args[1]: Value(f"{s.args[1].name}_inverse", F32, s.args[1].axes) for s in shares}
    body = _rewritten(kernel.body, weights | curves, shares, inverse)
    sums = any(isinstance(s, Reduce) and s.op == "expsum" for s in walk(body))
    flushes = (bool(weights | curves) or sums) and all(_is_plain(s, weights | curves, uses) for s in walk(kernel.body))
    return replace(kernel, body=body), flushes


def _rewritten(
    body: tuple[Stmt, ...], coarse: set[Value], shares: set[Let], inverse: Mapping[Value, Value]
) -> tuple[Stmt, ...]:
    """`body` with `coarse` weights as powers of two, shares as products, and `inverse` of each sum as soon as it is
    there; a coarse sigmoid says that it is.
    """
    out: list[Stmt] = []
    for s in body:
        ready = [s.out] if isinstance(s, (Load, Let)) else []
        if isinstance(s, Loop):
            out.append(replace(s, body=_rewritten(s.body, coarse, shares, inverse)))
            ready = [r.out for r in s.body if isinstance(r, Reduce)]
        elif isinstance(s, Let) and s.out in coarse and s.op in CURVES:
            out.append(replace(s, attrs=COARSE) if s.op == "sigmoid" else s)
        elif isinstance(s, Let) and s.out in coarse:
            scaled, factor = (Value(f"{s.out.name}_{n}", F32, a) for n, a in (("power", s.out.axes), ("scale", ())))
            out += [Let(factor, "const", (), (("value", LOG2_E),)), Let(scaled, "mul", (s.args[0], factor))]
            out.append(replace(s, op="exp2", args=(scaled,)))
        elif isinstance(s, Let) and s in shares:
            own = Value(f"{s.args[1].name}_inverse", F32, s.args[1].axes)
            out.append(replace(s, op="mul", args=(s.args[0], own)))
        else:
            out.append(s)
        for total in (v for v in ready if v in inverse):
            one = Value(f"{total.name}_one", F32)
            out += [Let(one, "const", (), (("value", 1.0),)), Let(inverse[total], "div", (one, total))]
    return tuple(out)


def _is_plain(s: Stmt, coarse: set[Value], uses: _Uses) -> bool:
    """True where flushing does not change what a statement gives: it calls no function that may meet a subnormal."""
    if not isinstance(s, Let) or s.op in ("const", "index", "within", "cast", "round") or s.out in coarse:
        return True
    if s.op in CURVES:  # their tails end in subnormals
        return False
    if s.op == "log":
        return uses.is_sum(s.args[0])
    typed = s.args[1] if s.op == "where" else s.args[0]
    return s.op == "exp" or "libdevice" not in operator_text(s.op, typed.dtype)
