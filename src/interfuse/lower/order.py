"""Domains in the order of memory. In: a domain and the accesses of a region over it. Out: the domain walked as its
buffers lie.

Channels-last images and transposed operands are walked in the order of their nodes' dimensions otherwise, which is not
the order of memory. Where every access of the whole domain lies in one other order, the domain's digits, divided as the
accesses divide them, are put into that order: a column stays a column, but what lies behind the columns may change, and
with it the family.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from interfuse.ir.index import Dim, Expr, const, evaluate, product, symbols
from interfuse.lower.domain import Digit, Digits, Domain, by_step, domain_of, merged
from interfuse.lower.kernel import Axis, Role


@dataclass(frozen=True)
class _Atom:
    """A part of a digit: indices `times` apart along an axis."""

    axis: str
    digit: Digit
    size: int
    times: int


def places(domain: Domain) -> list[Expr]:
    """The indices along rows, columns and what lies after them, where there is more than one; 0 for the one row of
    element-wise work, which has no axis.
    """
    names = ("row", "col") if domain.inner == 1 else ("outer", "row", "col")
    found = [position(n, d) for n, d in zip(names, (domain.rows, domain.longest, domain.inner), strict=False)]
    return found if domain.reduces or domain.rows != 1 else [const(0), *found[1:]]


def position(name: str, extent: Dim) -> Expr:
    """The index along the axis `name` of so many elements."""
    return Axis(name, extent, Role.GRID).symbol


def in_memory_order(domain: Domain, indices: Iterable[Expr], axes: dict[str, Expr]) -> Domain:
    """The domain with its digits in the order of memory; the domain itself where accesses lie in several orders, or
    already so.

    `indices` are those of accesses along all axes, in elements; `axes` the symbols of "row", "col" and
    "inner".
    """
    digits = memory_digits(domain, indices, axes)
    if not digits:
        return domain
    last = max(k for k, d in enumerate(digits) if d.kind == "col")
    placed = [d if d.kind == "col" else d._replace(kind="row" if k < last else "inner") for k, d in enumerate(digits)]
    return domain_of(tuple(placed), domain.backwards)


def memory_digits(domain: Domain, indices: Iterable[Expr], axes: dict[str, Expr]) -> Digits:
    """The digits of a domain in the order of memory; none where `in_memory_order` leaves the domain as it is."""
    found = list(dict.fromkeys(indices))
    atoms = _atoms(domain, found, axes) if found else None
    if atoms is None:
        return ()
    orders = {_order(atoms, index, axes) for index in found} - {()}
    order = orders.pop() if len(orders) == 1 else None
    if order is None or order == tuple(range(len(atoms))):
        return ()
    return tuple(atoms[k].digit for k in order)


def map_domains(shape: tuple[Dim, ...], digits: Digits) -> list[Domain]:
    """The ways to split element-wise work into rows and columns, the most columns first: the dimensions of its shape,
    or its digits where there are some.
    """
    if not digits:
        return [Domain(product(shape[:k]), product(shape[k:]), False) for k in range(len(shape))]
    found = []
    for k in range(len(digits)):
        parts = merged(tuple(d._replace(kind="row" if j < k else "col") for j, d in enumerate(digits)))
        rows, cols = (product(tuple(d.size for d in parts if d.kind == kind)) for kind in ("row", "col"))
        found.append(Domain(rows, cols, False, parts=parts))
    return found


def _atoms(domain: Domain, indices: list[Expr], axes: dict[str, Expr]) -> list[_Atom] | None:
    """The digits of a domain divided where an access divides an axis, in their order; None where sizes or divisors do
    not allow it.
    """
    cuts: dict[Expr, set[int]] = {symbol: {1} for symbol in axes.values()}
    if not all(_note(index, cuts) for index in indices):
        return None
    found: list[_Atom] = []
    for kind, symbol in axes.items():
        times = 1
        for digit in reversed([d for d in domain.digits if d.kind == kind]):
            if not isinstance(digit.size, int) or not isinstance(digit.step, int):
                return None
            inside = sorted(c // times for c in cuts[symbol] if times < c < times * digit.size and c % times == 0)
            ends = [1, *inside, digit.size]
            if any(high % low for low, high in itertools.pairwise(ends)):
                return None
            for low, high in itertools.pairwise(ends):
                if high > low:
                    size = high // low
                    found.append(_Atom(kind, Digit(kind, size, digit.step * low), size, times * low))
            times *= digit.size
    return [found[k] for k in by_step([a.digit for a in found])]


def _note(e: Expr, cuts: dict[Expr, set[int]]) -> bool:
    """Note where axes are divided in an index; False where something else is divided than an axis."""
    if e.op in ("floordiv", "mod"):
        base = _base(e.args[0], cuts)
        if base is None or e.args[1].op != "const":
            return False
        symbol, times = base
        cuts[symbol] |= {times, times * e.args[1].value}
        return True
    return e.op not in ("min", "max") and all(_note(a, cuts) for a in e.args)


def _base(e: Expr, cuts: dict[Expr, set[int]]) -> tuple[Expr, int] | None:
    """(axis, times): e counts every `times`-th index of an axis, all of them or the first few."""
    if e in cuts:
        return e, 1
    if e.op in ("floordiv", "mod") and e.args[1].op == "const":
        base = _base(e.args[0], cuts)
        if base is not None:
            cuts[base[0]] |= {base[1], base[1] * e.args[1].value}
            return base[0], base[1] * (e.args[1].value if e.op == "floordiv" else 1)
    return None


def _order(atoms: list[_Atom], index: Expr, axes: dict[str, Expr]) -> tuple[int, ...] | None:
    """The atoms, by number, in the order in which an access reaches them; none where it reaches the same along one of
    them, None where it has no stride.
    """
    zero = {symbol.name: 0 for symbol in (*axes.values(), *symbols(index))}
    start = evaluate(index, zero)
    strides: list[int] = []
    for atom in atoms:
        name, size = axes[atom.axis].name, atom.size
        stride = evaluate(index, zero | {name: atom.times}) - start
        if evaluate(index, zero | {name: atom.times * (size - 1)}) - start != stride * (size - 1):
            return None
        strides.append(stride)
    return () if 0 in strides else tuple(sorted(range(len(atoms)), key=lambda k: -strides[k]))
