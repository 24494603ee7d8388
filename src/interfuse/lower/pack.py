"""Like kernels as one. In: kernels that differ in sizes alone. Out: one packed kernel, and each member's sizes.

Kernels are alike where everything but the numbers in extents and indices agrees. Walked side by side, a number that all
members share stays a number; one that differs becomes a size symbol, and each member brings its value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import Dim, Expr, combine, const, contiguous_strides, product, sym, symbols, unwrap, wrap
from interfuse.lower.canonical import canonical
from interfuse.lower.kernel import Axis, Bound, Kernel, Let, Load, Loop, Param, Pick, Role, Stmt, Store, bounds_of, walk
from interfuse.lower.launch import order_of
from interfuse.lower.target import GPU

ALIGNED = 16
"""Sizes that are multiples of this in all members are written so: a GPU compiler then moves elements side by side."""

Sizes = tuple[Dim, ...]


def likeness(kernel: Kernel, unit: int = 1) -> Hashable:
    """A key that kernels share which one packed kernel can stand for; with `unit`, only if as many sizes divide by it.

    Blocks count, since they decide the order of sums and the size of a tile, but for a single block of programs: there
    the widest serves all.
    """
    kernel = _element_wise(kernel)
    axes = {a.name for a in kernel.axes} | {p.symbol.name for p in kernel.picks}
    plain = canonical(kernel)
    alone = sum(a.block > 1 for a in kernel.axes) == 1
    steps = tuple((a.name, a.role, 0 if alone and a.role is Role.GRID else a.block) for a in kernel.axes)
    even = tuple(unwrap(a.extent) % unit == 0 for a in kernel.axes) if unit > 1 else ()  # type: ignore[operator]
    forms = tuple(_form(e, axes) for e in _indices(plain))
    body = _mapped(plain.body, lambda e: const(0))
    params = tuple((p.dtype, p.mode) for p in plain.params)
    return (kernel.family, kernel.reduction_order, steps, even, params, forms, repr(body))


def pack(kernels: Sequence[Kernel], name: str, doc: tuple[str, ...] = (), unit: int = 1) -> tuple[Kernel, list[Sizes]]:
    """The packed kernel for like kernels, and for each of them the values of its symbols, in order.

    A value may be an expression over the graph's own size symbols. UnsupportedError where the kernels are not alike.
    """
    if any(k.beyond is not None for k in kernels):
        raise UnsupportedError("kernels that hold some lengths only cannot be packed")
    if len({likeness(k) for k in kernels}) > 1:
        raise UnsupportedError("kernels that differ in more than their sizes cannot be packed")
    kernels = [*map(_element_wise, kernels)]
    general, first = _General(len(kernels), unit), kernels[0]
    axes = []
    for same in zip(*(k.axes for k in kernels), strict=True):
        block = max(a.block for a in same)
        axes.append(replace(same[0], extent=general.size(tuple(a.extent for a in same)), block=block))
    general.axes = {a.name: a.symbol for a in axes} | _places(kernels)
    indices = [_indices(k) for k in kernels]
    found = iter([general.index(position) for position in zip(*indices, strict=True)])
    body = _mapped(first.body, lambda e: next(found), general.axes)
    params = tuple(_param(same) for same in zip(*(k.params for k in kernels), strict=True))
    used = {s.name for e in _everywhere(replace(first, axes=tuple(axes), body=body)) for s in symbols(e)}
    own = {s.name: s for k in kernels for e in _everywhere(k) for s in symbols(e) if s.name in used - set(general.axes)}
    columns = tuple(general.columns.items())
    sizes = [(*(values[m] for values, _ in columns), *own.values()) for m in range(len(kernels))]
    packed = replace(
        first,
        name=name,
        params=params,
        axes=tuple(axes),
        body=body,
        doc=doc,
        symbols=(*(name for _, name in columns), *own),
        warps=max(k.warps for k in kernels),
        stages=max(k.stages for k in kernels),
        packed=True,
        level=_side_by_side(first) and len({_programs(k, axes) for k in kernels}) == 1,
    )
    return packed, sizes


def _side_by_side(member: Kernel) -> bool:
    """True where a member writes pieces between which others write theirs."""
    return any(p.mode == "out" and p.strides != contiguous_strides(p.shape) for p in member.params)


def _programs(member: Kernel, axes: Sequence[Axis]) -> Dim:
    """How many programs a member has where `axes` say what each takes."""
    both = zip(member.axes, axes, strict=True)
    return product(tuple((wrap(a.extent) + (by.block - 1)) // by.block for a, by in both if a.role is Role.GRID))


def _element_wise(kernel: Kernel) -> Kernel:
    """The kernel with rows read element by element: members lie anywhere, and what lies around one may be nobody's."""
    if all(a.vector == 1 for a in kernel.axes):
        return kernel
    axes = tuple(replace(a, vector=1, origin=0) for a in kernel.axes)
    order = kernel.reduction_order and order_of(kernel.family, axes, GPU, kernel.warps)
    return replace(kernel, axes=axes, reduction_order=order)


@dataclass
class _General:
    """What differs between members: a symbol for each tuple of values. `axes` are the packed kernel's own indices."""

    count: int
    unit: int
    columns: dict[Sizes, str] = field(default_factory=dict)
    axes: dict[str, Expr] = field(default_factory=dict)

    def size(self, values: Sizes) -> Dim:
        """A size that each member has its own value of."""
        values = tuple(unwrap(v) for v in values)
        if len(set(values)) == 1:
            return values[0]
        unit = self.unit if all(isinstance(v, int) and v % self.unit == 0 for v in values) else 1
        parts = tuple(v // unit if isinstance(v, int) else v for v in values)
        name = self.columns.setdefault(parts, f"n{len(self.columns)}")
        ends = [wrap(v) for v in parts]
        return unwrap(sym(name, min(e.lo for e in ends), max(e.hi for e in ends)) * unit)

    def index(self, parts: Sequence[Expr]) -> Expr:
        """An index of the packed kernel that is each member's own when its sizes are put in."""
        first = parts[0]
        if not any(s.name in self.axes for e in parts for s in symbols(e)):
            return wrap(self.size(tuple(parts)))
        if all(e.op == "sym" and e.name == first.name for e in parts):
            return self.axes[first.name]
        if any(e.op != first.op or len(e.args) != len(first.args) for e in parts):
            raise UnsupportedError(f"indices of different forms cannot be packed: {first} and others")
        return combine(first.op, [self.index(same) for same in zip(*(e.args for e in parts), strict=True)])


def _form(e: Expr, axes: set[str]) -> Hashable:
    """What must agree of an index: operators and axes; whatever is a size is one thing."""
    if not any(s.name in axes for s in symbols(e)):
        return "size"
    return e.name if e.op == "sym" else (e.op, *(_form(a, axes) for a in e.args))


def _param(same: tuple[Param, ...]) -> Param:
    """One parameter for all members: shown with their shape where they share it; scratch as wide as the widest."""
    first = same[0]
    if all(p.shape == first.shape and p.strides == first.strides for p in same):
        return first
    if first.mode == "scratch":
        return replace(first, shape=tuple(max(d) for d in zip(*(p.shape for p in same), strict=True)))  # type: ignore[type-var]
    return replace(first, shape=(sym("any", 1),), strides=(1,))


def _places(kernels: Sequence[Kernel]) -> dict[str, Expr]:
    """The symbols that stand for what values tell, by name, wide enough for all kernels."""
    ends: dict[str, int] = {}
    for p in (p for k in kernels for p in k.picks):
        ends[p.symbol.name] = max(ends.get(p.symbol.name, 0), p.symbol.hi)
    return {name: sym(name, 0, hi) for name, hi in ends.items()}


def _mapped(
    body: tuple[Stmt, ...], new: Callable[[Expr], Expr], places: Mapping[str, Expr] | None = None
) -> tuple[Stmt, ...]:
    """The statements with every index, every bound and every extent that is picked from replaced, in order. `places`
    gives the symbols of picks.
    """

    def end(of: Dim | None) -> Dim | None:
        return None if of is None else unwrap(new(wrap(of)))

    def tested(s: Load | Let) -> tuple[Bound, ...]:
        return tuple(Bound(new(b.expr), end(b.lo), end(b.hi)) for b in bounds_of(s))

    def pick(p: Pick) -> Pick:
        symbol = (places or {}).get(p.symbol.name, p.symbol)
        return replace(p, symbol=symbol, extent=unwrap(new(wrap(p.extent))))

    def statement(s: Stmt) -> Stmt:
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(statement, s.body)))
        if isinstance(s, Load):
            return replace(s, index=new(s.index), within=tested(s), picks=tuple(map(pick, s.picks)))
        if isinstance(s, Store):
            return replace(s, index=new(s.index))
        if isinstance(s, Let) and s.op == "within":
            return replace(s, attrs=(("bounds", tested(s)),))
        if isinstance(s, Let) and s.op == "index":
            return replace(s, attrs=(("expr", new(wrap(dict(s.attrs)["expr"]))),))
        return s

    return tuple(map(statement, body))


def _exprs(body: tuple[Stmt, ...]) -> list[Expr]:
    """Every index in order."""
    found: list[Expr] = []

    def note(e: Expr) -> Expr:
        found.append(e)
        return e

    _mapped(body, note)
    return found


def _indices(kernel: Kernel) -> list[Expr]:
    return _exprs(kernel.body)


def _everywhere(kernel: Kernel) -> list[Expr]:
    ends = [e for s in walk(kernel.body) for b in bounds_of(s) for e in b.ends]
    return [*_indices(kernel), *ends, *(wrap(a.extent) for a in kernel.axes)]
