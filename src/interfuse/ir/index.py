"""Index expressions. In: integers and symbols with intervals. Out: small interned integer expressions, kept simplified.

The grammar: an integer constant; a symbol; a sum; a product with at least one constant or symbol; floordiv and mod by a
positive divisor (Python's meaning, rounding down); min and max. Arithmetic is exact (no overflow): the emitters choose
64-bit arithmetic where an interval passes 2^31. SymPy never comes in here.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

INF = 1 << 62


@dataclass(frozen=True, eq=False)
class Expr:
    """One interned expression: `op` is const, sym, add, mul, floordiv, mod, min or max; equal means the same object.

    `args` are the operands (Expr), `value` the constant, `name` the symbol; `lo` and `hi` bound its value, inclusive.
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: int = 0
    name: str = ""
    lo: int = -INF
    hi: int = INF

    def __add__(self, other: Dim) -> Expr:
        return add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Expr:
        return mul(self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Dim) -> Expr:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Dim) -> Expr:
        return add(mul(self, -1), other)

    def __floordiv__(self, other: Dim) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: Dim) -> Expr:
        return mod(self, other)

    def __repr__(self) -> str:
        return text(self)


Dim = Union[int, Expr]
"""A size: an integer, or an expression over size symbols."""

Fold = Callable[[Dim, Dim], Expr]

_table: dict[tuple, Expr] = {}


def _intern(
    op: str, args: tuple[Expr, ...] = (), value: int = 0, name: str = "", lo: int = -INF, hi: int = INF
) -> Expr:
    if args and lo == hi and abs(lo) < INF:
        return const(lo)
    key = (op, tuple(id(a) for a in args), value, name, lo, hi)
    found = _table.get(key)
    if found is None:
        # setdefault keeps one winner when two threads meet here; the table holds args alive, so ids stay unique.
        found = _table.setdefault(key, Expr(op, args, value, name, max(lo, -INF), min(hi, INF)))
    return found


_remember = functools.lru_cache(maxsize=1 << 16)
"""For functions of expressions: these are interned and stay, so equal operands are the same objects."""


def _known(fold: Fold) -> Fold:
    return _remember(fold)


def const(value: int) -> Expr:
    """The constant `value`."""
    return _intern("const", value=int(value), lo=int(value), hi=int(value))


def sym(name: str, lo: int = 0, hi: int = INF) -> Expr:
    """The symbol `name`, known to lie in [lo, hi]."""
    return _intern("sym", name=name, lo=lo, hi=hi)


def wrap(value: Dim) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else const(value)


def unwrap(value: Dim) -> Dim:
    """A plain int where `value` is a constant."""
    return value.value if isinstance(value, Expr) and value.op == "const" else value


def linear_terms(e: Expr) -> dict[Expr, int]:
    """e as {factor: coefficient}; the constant sits under the factor 1."""
    if e.op == "add":
        out: dict[Expr, int] = {}
        for a in e.args:
            for factor, coefficient in linear_terms(a).items():
                out[factor] = out.get(factor, 0) + coefficient
        return out
    if e.op == "const":
        return {const(1): e.value} if e.value else {}
    if e.op == "mul" and e.args[-1].op == "const":
        rest = e.args[:-1]
        return {rest[0] if len(rest) == 1 else _product(rest): e.args[-1].value}
    return {e: 1}


@_remember
def _order(e: Expr) -> tuple:
    return (e.op == "const", e.op, e.name, e.value, text(e))


def _from_terms(terms: Mapping[Expr, int]) -> Expr:
    parts, constant = list[Expr](), 0
    for factor, coefficient in terms.items():
        if factor.op == "const":
            constant += factor.value * coefficient
        elif coefficient:
            parts.append(factor if coefficient == 1 else _scaled(factor, coefficient))
    parts.sort(key=_order)
    if constant or not parts:
        parts.append(const(constant))
    if len(parts) == 1:
        return parts[0]
    # An end at INF means "no bound", so a sum that has one has none either.
    lo = -INF if any(p.lo <= -INF for p in parts) else _clamp(sum(p.lo for p in parts))
    hi = INF if any(p.hi >= INF for p in parts) else _clamp(sum(p.hi for p in parts))
    return _intern("add", tuple(parts), lo=lo, hi=hi)


def _clamp(v: int) -> int:
    return max(-INF, min(INF, v))


def _product(args: tuple[Expr, ...]) -> Expr:
    """The interned product of sorted factors."""
    lo, hi = 1, 1
    for a in args:
        ends = [x * y for x in (lo, hi) for y in (a.lo, a.hi)]
        lo, hi = _clamp(min(ends)), _clamp(max(ends))
    return _intern("mul", args, lo=lo, hi=hi)


def _scaled(factor: Expr, coefficient: int) -> Expr:
    return _product((*(factor.args if factor.op == "mul" else (factor,)), const(coefficient)))


def _factors(e: Expr) -> tuple[Expr, ...]:
    return e.args if e.op == "mul" else (e,)


def _without(factors: tuple[Expr, ...], gone: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """`factors` without each of `gone`, once for each time that it stands there; None where one is missing."""
    left = list(factors)
    for g in gone:
        if g not in left:
            return None
        left.remove(g)
    return tuple(left)


def _remerge(terms: dict[Expr, int]) -> dict[Expr, int]:
    """(a // n) * n * k + (a % n) * k = a * k, applied until nothing changes; n and k may have symbols in them.

    So is (a // n % m) * n * k + (a % n) * k = a % (n * m) * k, for numbers n, m and k.
    """
    for factor, k in terms.items():
        upper = _upper_digit(factor, k, terms)
        if upper is not None:
            whole, n = factor.args
            left = {f: c for f, c in terms.items() if f is not factor and f is not upper}
            merged = mod(whole, n.value * upper.args[1].value)
            left[merged] = left.get(merged, 0) + k
            return _remerge({f: c for f, c in left.items() if c})
        for rest in _factors(factor):
            if rest.op != "mod":
                continue
            whole, n = rest.args
            quotient = floordiv(whole, n)
            if quotient.op == "const" or len(linear_terms(quotient)) != 1:
                continue
            around = functools.reduce(mul, _without(_factors(factor), (rest,)) or (), const(k))
            partner = linear_terms(mul(mul(quotient, n), around))
            if all(terms.get(f) == c for f, c in partner.items()):
                left = {f: c for f, c in terms.items() if f is not factor and f not in partner}
                for f, c in linear_terms(mul(whole, around)).items():
                    left[f] = left.get(f, 0) + c
                return _remerge({f: c for f, c in left.items() if c})
    return terms


def _upper_digit(lower: Expr, k: int, terms: Mapping[Expr, int]) -> Expr | None:
    """a // n % m where `lower` is a % n and the terms have k * n of it."""
    if lower.op != "mod" or lower.args[1].op != "const":
        return None
    whole, n = lower.args[0], lower.args[1].value
    above = floordiv(whole, n)
    found = (f for f, c in terms.items() if f.op == "mod" and f.args[0] is above and c == k * n)
    return next((f for f in found if f.args[1].op == "const"), None)


@_known
def add(a: Dim, b: Dim) -> Expr:
    """a + b with like terms joined."""
    terms = dict(linear_terms(wrap(a)))
    for factor, coefficient in linear_terms(wrap(b)).items():
        terms[factor] = terms.get(factor, 0) + coefficient
    return _from_terms(_remerge({f: c for f, c in terms.items() if c}))


@_known
def mul(a: Dim, b: Dim) -> Expr:
    """a * b, distributed over sums."""
    a, b = wrap(a), wrap(b)
    if a.op == "const":
        a, b = b, a
    if b.op == "const":
        if a.op == "const":
            return const(a.value * b.value)
        if b.value == 0:
            return const(0)
        return _from_terms({f: c * b.value for f, c in linear_terms(a).items()})
    if a.op == "add" or b.op == "add":
        out = const(0)
        for fa, ca in linear_terms(a).items():
            for fb, cb in linear_terms(b).items():
                out = add(out, mul(mul(fa, fb), ca * cb))
        return out
    if any(e.op == "mul" and e.args[-1].op == "const" for e in (a, b)):
        ((fa, ca),) = linear_terms(a).items()
        ((fb, cb),) = linear_terms(b).items()
        return mul(mul(fa, fb), ca * cb)
    flat = tuple(sorted((*(a.args if a.op == "mul" else (a,)), *(b.args if b.op == "mul" else (b,))), key=_order))
    return _product(flat)


def _split(e: Expr, n: int) -> tuple[Expr, Expr]:
    """e = n * q + r, moving every term whose coefficient n divides into q."""
    q: dict[Expr, int] = {}
    r: dict[Expr, int] = {}
    for factor, c in linear_terms(e).items():
        if c % n == 0:
            q[factor] = c // n
        elif factor.op == "const":
            q[factor], r[factor] = (c // n), c % n
        else:
            r[factor] = c
    return _from_terms(q), _from_terms(r)


def _whole_steps(a: Expr, n: int) -> tuple[int, Expr, Expr] | None:
    """(k, q, r) with a = k * q + r and 0 <= r < k, for some k > 1 that divides n: r has no say in a // n."""
    for k in sorted({math.gcd(n, c) for c in linear_terms(a).values()}, reverse=True):
        q, r = _split(a, k)
        if k > 1 and r.lo >= 0 and r.hi < k and r is not a:
            return k, q, r
    return None


def _split_by_size(a: Expr, n: Expr) -> tuple[Expr, Expr]:
    """a = n * q + r for a size `n` with symbols in it, every term that has all of n's factors in q."""
    terms = linear_terms(n)
    if len(terms) != 1:
        return _split_by_sum(a, n, terms)
    ((product_, k),) = terms.items()
    q, r = const(0), const(0)
    for factor, c in linear_terms(a).items():
        left = _without(_factors(factor), _factors(product_)) if c % k == 0 else None
        if left is None:
            r = add(r, mul(factor, c))
        else:
            q = add(q, functools.reduce(mul, left, const(c // k)))
    return q, r


def _split_by_sum(a: Expr, n: Expr, terms: Mapping[Expr, int]) -> tuple[Expr, Expr]:
    """a = n * q + r for a sum `n` of `terms`: whole multiples of the sum that stand in `a` term by term are in q."""
    first, k = next((f, c) for f, c in terms.items() if f.op != "const")
    q, r = const(0), a
    for factor, c in linear_terms(a).items():
        left = _without(_factors(factor), _factors(first)) if c % k == 0 else None
        times = functools.reduce(mul, left or (), const(0 if left is None else c // k))
        found, wanted = linear_terms(r), linear_terms(mul(times, n))
        if all(found.get(f) == w or (f.op == "const" and abs(found.get(f, 0)) >= abs(w)) for f, w in wanted.items()):
            q, r = add(q, times), add(r, mul(mul(times, n), -1))
    return q, r


def _floordiv_by_size(a: Expr, n: Expr) -> Expr:
    """a // n where n > 0 has symbols in it."""
    q, r = _split_by_size(a, n)
    if q is not const(0):
        return add(q, floordiv(r, n))
    if (a.lo >= 0 and a.hi < n.lo) or (a.op == "mod" and a.args[1] is n):
        return const(0)
    if a.op == "floordiv" and floordiv(a.args[0], a.args[1] * n) is const(0):
        return const(0)
    if n.op == "mul":
        # a // (c * m) = a // c // m: where a // c is plain, more may be known of it.
        for first in n.args:
            inner = floordiv(a, first)
            if inner.op != "floordiv" or inner.args[1] is not first:
                return floordiv(inner, functools.reduce(mul, _without(n.args, (first,)) or (), const(1)))
    return _intern("floordiv", (a, n), lo=min(a.lo, 0), hi=max(a.hi, 0))


def _mod_by_size(a: Expr, n: Expr) -> Expr:
    """a % n where n > 0 has symbols in it."""
    q, r = _split_by_size(a, n)
    if q is not const(0):
        return mod(r, n)
    if floordiv(a, n) is const(0):
        return a
    last = n.hi - 1 if n.hi < INF else INF
    return _intern("mod", (a, n), lo=0, hi=max(min(last, a.hi) if a.lo >= 0 else last, 0))


@_known
def floordiv(a: Dim, b: Dim) -> Expr:
    """a // b, rounding down; b > 0."""
    a, b = wrap(a), wrap(b)
    if b.op != "const":
        return _floordiv_by_size(a, b)
    n = b.value
    if n <= 0:
        raise ValueError(f"floordiv by {n}: the divisor must be positive")
    if n == 1:
        return a
    q, r = _split(a, n)
    if r.lo >= 0 and r.hi < n:
        return q
    if q is not const(0):
        return add(q, floordiv(r, b))
    g = math.gcd(n, *linear_terms(a).values())
    if g > 1:
        return floordiv(_from_terms({f: c // g for f, c in linear_terms(a).items()}), n // g)
    if (steps := _whole_steps(a, n)) is not None:
        return floordiv(steps[1], n // steps[0])
    if a.op == "floordiv" and a.args[1].op == "const":
        return floordiv(a.args[0], a.args[1].value * n)
    if a.op == "mod" and a.args[1].op == "const" and a.args[1].value % n == 0:
        return mod(floordiv(a.args[0], b), a.args[1].value // n)
    return _intern("floordiv", (a, b), lo=a.lo // n if a.lo > -INF else -INF, hi=a.hi // n if a.hi < INF else INF)


@_known
def mod(a: Dim, b: Dim) -> Expr:
    """a % b, with the sign of b; b > 0."""
    a, b = wrap(a), wrap(b)
    if b.op != "const":
        return _mod_by_size(a, b)
    n = b.value
    if n <= 0:
        raise ValueError(f"mod by {n}: the divisor must be positive")
    if n == 1:
        return const(0)
    _, r = _split(a, n)
    if r.lo >= 0 and r.hi < n:
        return r
    if r is not a:
        return mod(r, b)
    g = math.gcd(n, *linear_terms(a).values())
    if g > 1:
        return mul(mod(_from_terms({f: c // g for f, c in linear_terms(a).items()}), n // g), g)
    if (steps := _whole_steps(a, n)) is not None:
        return add(mul(mod(steps[1], n // steps[0]), steps[0]), steps[2])
    if a.op == "mod" and a.args[1].op == "const" and a.args[1].value % n == 0:
        return mod(a.args[0], b)
    return _intern("mod", (a, b), lo=0, hi=n - 1)


def _extreme(op: str, a: Expr, b: Expr) -> Expr:
    if a.hi <= b.lo or a is b:
        return a if op == "min" else b
    if b.hi <= a.lo:
        return b if op == "min" else a
    pick = min if op == "min" else max
    return _intern(op, tuple(sorted((a, b), key=_order)), lo=pick(a.lo, b.lo), hi=pick(a.hi, b.hi))


def minimum(a: Dim, b: Dim) -> Expr:
    """The smaller of a and b."""
    return _extreme("min", wrap(a), wrap(b))


def maximum(a: Dim, b: Dim) -> Expr:
    """The larger of a and b."""
    return _extreme("max", wrap(a), wrap(b))


_FOLD: dict[str, Callable[[Dim, Dim], Expr]] = {
    "add": add,
    "mul": mul,
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}

_PLAIN: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


def substitute(e: Dim, replace: Mapping[Expr, Dim]) -> Expr:
    """e with symbols replaced, simplified again."""
    e = wrap(e)
    if e in replace:
        return wrap(replace[e])
    if not e.args:
        return e
    return combine(e.op, [substitute(a, replace) for a in e.args])


def combine(op: str, args: Sequence[Dim]) -> Expr:
    """`op` (add, mul, floordiv, mod, min, max) of at least two operands, simplified."""
    return wrap(functools.reduce(_FOLD[op], args))


def evaluate(e: Dim, values: Mapping[str, int]) -> int:
    """The integer that e has when each symbol has the value given by its name."""
    e = wrap(e)
    if e.op == "const":
        return e.value
    if e.op == "sym":
        return values[e.name]
    return functools.reduce(_PLAIN[e.op], [evaluate(a, values) for a in e.args])


def symbols(e: Dim) -> frozenset[Expr]:
    """The symbols in e."""
    return _symbols(e) if isinstance(e, Expr) else frozenset()


@_remember
def _symbols(e: Expr) -> frozenset[Expr]:
    return frozenset((e,)) if e.op == "sym" else frozenset().union(*map(_symbols, e.args))


def coefficient(e: Dim, symbol: Expr) -> int | None:
    """k where e = k * symbol + (terms without symbol); None where symbol stands inside a product, floordiv, mod, ..."""
    k = 0
    for factor, c in linear_terms(wrap(e)).items():
        if factor is symbol:
            k = c
        elif symbol in symbols(factor):
            return None
    return k


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of sizes; 1 for none."""
    out: Dim = 1
    for d in dims:
        out = out * d
    return unwrap(out)


def linear(index: tuple[Dim, ...], strides: tuple[Dim, ...], offset: Dim = 0) -> Expr:
    """sum(index * stride) + offset."""
    out = wrap(offset)
    for i, s in zip(index, strides, strict=True):
        out = add(out, mul(i, s))
    return out


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides of a shape, in elements (a size of 0 counts as 1, as in PyTorch)."""
    out: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        out.append(step)
        step = unwrap(step * (max(d, 1) if isinstance(d, int) else d))
    return tuple(reversed(out))


def delinearize(flat: Dim, shape: tuple[Dim, ...]) -> tuple[Expr, ...]:
    """The index tuple of the row-major position `flat`, which lies inside `shape`."""
    out: list[Expr] = []
    rest = wrap(flat)
    outermost = next((k for k, d in enumerate(shape) if unwrap(d) not in (0, 1)), -1)
    for k in reversed(range(len(shape))):
        if unwrap(shape[k]) in (0, 1):  # of size 0, no element is ever indexed
            out.append(const(0))
        elif k == outermost:
            out.append(rest)
        else:
            out.append(mod(rest, shape[k]))
            rest = floordiv(rest, shape[k])
    return tuple(reversed(out))


def at_sizes(size: Dim, sizes: Mapping[str, int]) -> int:
    """`size` as a number; a symbol that `sizes` does not give counts as its least, and as 1 at least."""
    if isinstance(size, int):
        return size
    return evaluate(size, {s.name: sizes.get(s.name, max(s.lo, 1)) for s in symbols(size)})


def text(e: Dim, spell: Callable[[str], str] = lambda name: name, div: str = "//", parent: int = 0) -> str:
    """e in infix form; `spell` renames symbols, `div` is the backend's floor division of non-negative integers."""
    e = wrap(e)
    if e.op == "const":
        return str(e.value) if e.value >= 0 or parent == 0 else f"({e.value})"
    if e.op == "sym":
        return spell(e.name)
    if e.op in ("min", "max"):
        return f"{e.op}({', '.join(text(a, spell, div) for a in e.args)})"
    level = {"add": 1, "mul": 2, "floordiv": 3, "mod": 3}[e.op]
    joint = {"add": " + ", "mul": " * ", "floordiv": f" {div} ", "mod": " % "}[e.op]
    # The right operand of a division or mod needs brackets at its own level; the left one below it.
    inner = [level + (i > 0) - (i == 0) if level == 3 else level for i in range(len(e.args))]
    parts = [text(a, spell, div, outer) for a, outer in zip(e.args, inner, strict=True)]
    if e.op == "add" and e.args[-1].op == "const" and e.args[-1].value < 0:
        parts[-2:] = [f"{parts[-2]} - {-e.args[-1].value}"]
    body = joint.join(parts)
    return f"({body})" if level < parent or (level == 3 and parent == 2) else body
