"""A device of NumPy arrays for Kernel IR. In: a Kernel and its inputs as flat arrays. Out: its outputs as flat arrays.

Every axis is one array dimension, so all programs and lanes run at once; scratch rows get the grid's dimensions too.
Outputs start poisoned with NaN (or -77), so that an element that nobody writes shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from interfuse.ir import ops
from interfuse.ir.index import Expr, evaluate, wrap
from interfuse.ir.node import Node, make
from interfuse.ir.numpy_meaning import cast
from interfuse.lower.kernel import Bound, Kernel, Let, Load, Loop, Reduce, Scan, Stmt, Store, bounds_of

_REDUCE = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "mean": lambda x, axis, keepdims: _apart(x, axis)[0] + _apart(x, axis)[1].mean(axis, keepdims=True),
    "spread": lambda x, axis, keepdims: x.shape[axis] * _apart(x, axis)[1].var(axis, keepdims=True),
    "expsum": lambda x, axis, keepdims: _weights(x, axis).sum(axis, keepdims=True),
}


def _apart(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The first element (0 where it is not finite) and each one's distance from it: equal elements have none."""
    x = x.astype(np.float64)
    first = np.take(x, [0], axis)
    first = np.where(np.isfinite(first), first, 0)
    return first, x - first


def _weights(x: np.ndarray, axis: int) -> np.ndarray:
    return np.where(x == -np.inf, 0, np.exp(x - x.max(axis, keepdims=True)))


_SCAN = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def poisoned(size: int, dtype: np.dtype) -> np.ndarray:
    """A flat array of `size` elements that no kernel would write."""
    return np.full(size, np.nan if dtype.kind == "f" or dtype.kind == "V" else -77 if dtype.kind == "i" else 1).astype(
        dtype
    )


def run(
    kernel: Kernel, inputs: Sequence[np.ndarray], output_sizes: Sequence[int], sizes: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The flat outputs of `kernel`; `inputs` are the flat buffers of its "in" parameters in order.

    `sizes` gives the size symbols; only those that the kernel names are there for it.
    """
    rank = len(kernel.axes)
    grid: dict[str, np.ndarray] = {name: np.asarray((sizes or {})[name]) for name in kernel.symbols}
    dims = tuple(evaluate(a.extent, {n: int(v) for n, v in grid.items()}) for a in kernel.axes)
    for k, axis in enumerate(kernel.axes):
        grid[axis.name] = np.arange(dims[k]).reshape([-1 if j == k else 1 for j in range(rank)])
    buffers: dict[str, np.ndarray] = {}
    ins, outs = iter(inputs), iter(output_sizes)
    for p in kernel.params:
        if p.mode == "in":
            buffers[p.name] = next(ins)
        elif p.mode == "out":
            buffers[p.name] = poisoned(next(outs), p.dtype.numpy)
        else:
            buffers[p.name] = np.zeros(dims, p.dtype.numpy)
    scratch = {p.name for p in kernel.params if p.mode == "scratch"}
    _statements(kernel.body, kernel, buffers, scratch, grid, dims, {})
    return [buffers[p.name] for p in kernel.params if p.mode == "out"]


def _index(e: Expr, grid: Mapping[str, np.ndarray]) -> np.ndarray:
    if e.op == "const":
        return np.asarray(e.value)
    if e.op == "sym":
        return grid[e.name]
    parts = [_index(a, grid) for a in e.args]
    f = {
        "add": np.add,
        "mul": np.multiply,
        "floordiv": np.floor_divide,
        "mod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
    }[e.op]
    out = parts[0]
    for p in parts[1:]:
        out = f(out, p)
    return out


def _within(bounds: tuple[Bound, ...], grid: Mapping[str, np.ndarray]) -> np.ndarray:
    """Where all bounds hold."""
    inside = np.asarray(True)
    for b in bounds:
        at = _index(b.expr, grid)
        inside = inside & (b.lo is None or at >= _index(wrap(b.lo), grid))
        inside = inside & (b.hi is None or at < _index(wrap(b.hi), grid))
    return inside


def _loaded(
    s: Load, buffer: np.ndarray, grid: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> np.ndarray:
    """What a load gives: poison where its bounds do not hold, NaN or 0 where a pick lies outside."""
    places, picked = dict(grid), np.asarray(True)
    for p in s.picks:
        extent, place = _index(wrap(p.extent), grid), values[p.value.name].astype(np.int64)
        place = np.where(place < 0, place + extent, place) if p.wraps else place
        found = (place >= 0) & (place < extent)
        places[p.symbol.name], picked = np.where(found, place, 0), picked & found
    at, within = _index(s.index, places), np.asarray(_within(s.within, grid) if s.within else True)
    shape = np.broadcast_shapes(at.shape, picked.shape, within.shape)
    assert shape == np.broadcast_shapes(at.shape, picked.shape, (1,) * len(shape)), "a bound varies where no place does"
    at, picked, within = (np.broadcast_to(a, shape) for a in (at, picked, within))
    out = poisoned(at.size, buffer.dtype).reshape(shape)
    out[within & ~picked] = np.nan if buffer.dtype.kind in "fV" else 0
    assert (at[within & picked] >= 0).all(), f"{s.param} is read before its begin"
    out[within & picked] = buffer[at[within & picked]]
    return out


def _statements(
    body: tuple[Stmt, ...],
    kernel: Kernel,
    buffers: dict[str, np.ndarray],
    scratch: set[str],
    grid: dict[str, np.ndarray],
    dims: tuple[int, ...],
    values: dict[str, np.ndarray],
) -> None:
    for s in body:
        if isinstance(s, Loop):
            _statements(s.body, kernel, buffers, scratch, grid, dims, values)
        elif isinstance(s, Load):
            values[s.out.name] = buffers[s.param] if s.param in scratch else _loaded(s, buffers[s.param], grid, values)
        elif isinstance(s, Store):
            if s.param in scratch:
                shape = [d if a.name in s.arg.axes else 1 for a, d in zip(kernel.axes, dims, strict=True)]
                buffers[s.param] = np.broadcast_to(values[s.arg.name], shape)
                continue
            at = np.broadcast_to(
                _index(s.index, grid), np.broadcast_shapes(_index(s.index, grid).shape, values[s.arg.name].shape)
            )
            buffers[s.param][at] = np.broadcast_to(values[s.arg.name], at.shape).astype(
                kernel.param(s.param).dtype.numpy
            )
        elif isinstance(s, (Reduce, Scan)):
            k = [a.name for a in kernel.axes].index(s.axis)
            wide = np.broadcast_to(
                values[s.arg.name],
                tuple(
                    n if n != 1 else d if j == k else 1
                    for j, (d, n) in enumerate(
                        zip(dims, np.broadcast_shapes(values[s.arg.name].shape, (1,) * len(dims)), strict=True)
                    )
                ),
            )
            with np.errstate(all="ignore"):
                found = (
                    _SCAN[s.op].accumulate(wide, axis=k)
                    if isinstance(s, Scan)
                    else _of_parts(s, kernel, wide, k)
                    if kernel.axis(s.axis).among
                    else _REDUCE[s.op](wide, axis=k, keepdims=True)
                )
            values[s.out.name] = found.astype(s.out.dtype.numpy)
        else:
            values[s.out.name] = _let(s, values, grid)
        if not isinstance(s, (Loop, Store)):
            _check_axes(s.out.name, s.out.axes, values, kernel)


def _of_parts(s: Reduce, kernel: Kernel, wide: np.ndarray, k: int) -> np.ndarray:
    """What each part of an axis that is shared out gives, along the axis of the parts."""
    axis = kernel.axis(s.axis)
    place = [a.name for a in kernel.axes].index(axis.among)
    rows = wide.shape[k]
    parts = evaluate(kernel.axis(axis.among).extent, {})
    share = -(-rows // parts)
    found = []
    for p in range(parts):
        own = np.arange(min(p * share, rows), min((p + 1) * share, rows))
        own = np.arange(rows)[np.arange(rows) // axis.block % parts == p] if axis.in_turn else own
        taken = np.take(wide, own, axis=k)
        initial = {"max": -np.inf, "min": np.inf}.get(s.op, 0)
        found.append(_REDUCE[s.op](taken, axis=k, keepdims=True, initial=initial))
    return np.concatenate(found, axis=place)


def _check_axes(name: str, axes: tuple[str, ...], values: dict[str, np.ndarray], kernel: Kernel) -> None:
    """A value varies over no axis but those that it names."""
    shape = np.broadcast_shapes(values[name].shape, (1,) * len(kernel.axes))
    for axis, size in zip(kernel.axes, shape, strict=True):
        assert size == 1 or axis.name in axes, f"{name} varies over {axis.name}, which it does not say"


def _let(s: Let, values: Mapping[str, np.ndarray], grid: Mapping[str, np.ndarray]) -> np.ndarray:
    if s.op == "index":
        return np.asarray(_index(dict(s.attrs)["expr"], grid)).astype(s.out.dtype.numpy)
    if s.op == "within":
        return _within(bounds_of(s), grid)
    args = [values[a.name] for a in s.args]
    node: Node = make(s.op, (), s.out.dtype, (), **dict(s.attrs))
    if s.op == "cast":
        return cast(node, args, False)
    return np.asarray(ops.TABLE[s.op].meaning(node, args, False))
