"""Checks shared by constructors and the verifier. In: a condition and a sentence, or types and values. Out: nothing, or
GraphError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interfuse.base.errors import GraphError
from interfuse.ir.dtypes import BOOL, F32, I32, I64, OPAQUE, DType
from interfuse.ir.index import Dim, unwrap, wrap
from interfuse.ir.ops import BITWISE, FLOAT_ONLY, INDIRECT, MOVEMENT, NUMBERS_ONLY, SHIFTS, SOURCE, TABLE, Op


def require(condition: bool, sentence: str) -> None:
    """Raise GraphError with `sentence` unless `condition` holds."""
    if not condition:
        raise GraphError(sentence.rstrip(".") + ".")


def row_of(op: str, *bands: str) -> Op:
    """The table's row of `op`; GraphError where there is none, or none in `bands` when these are given."""
    row = TABLE.get(op)
    if row is None or (bands and row.band not in bands):
        among = f" among {', '.join(bands)}" if bands else ""
        raise GraphError(f"there is no operator {op!r}{among}; see the table in ir/ops.py.")
    return row


def check_operands(op: str, types: tuple[DType, ...]) -> None:
    """GraphError unless `op` takes operands of these element types (their number is already right)."""
    row = TABLE[op]
    if row.band in (MOVEMENT, SOURCE):
        return
    if row.band == INDIRECT:
        require(types[1] in (I32, I64), f"{op} by {types[1]}: an index is i32 or i64")
        return
    typed = types[1:] if op == "where" else types
    require(bool(typed), f"{op} takes one operand at least")
    require(all(t is typed[0] for t in typed), f"{op} on types {list(types)}: cast first")
    require(op != "where" or types[0] is BOOL, "where's condition must be bool")
    t = typed[0]
    require(t not in OPAQUE, f"{op} on {t}: complex values only pass through library calls")
    require(
        not t.is_narrow or op in ("cast", "copy", "where", "concat", "pad", "linear", "matmul"),
        f"{op} on {t}: widen to f32 first",
    )
    require(op not in FLOAT_ONLY or t.is_float, f"{op} on {t}: it takes floats")
    require(op not in NUMBERS_ONLY or t is not BOOL, f"{op} on bool: cast first")
    require(op not in BITWISE or not t.is_float, f"{op} on {t}: it takes bool or integers")
    require(op not in SHIFTS or t.kind in ("int", "uint"), f"{op} on {t}: it takes integers")
    require(op != "round" or t is F32, f"round from {t}: it takes f32")


def check_value(value: Any, dtype: DType) -> None:
    """GraphError unless the plain `value` is a constant that `dtype` can hold: bool, int or float as the type is."""
    kind = {"bool": bool, "int": int, "uint": int, "float": float}.get(dtype.kind)
    require(kind is not None and type(value) is kind, f"{value!r} is no constant of {dtype}")
    if kind is int:
        info = np.iinfo(dtype.numpy)
        require(info.min <= value <= info.max, f"{value} lies outside {dtype}")


def picks_from(source: tuple[Dim, ...], index: tuple[Dim, ...], axis: Any) -> bool:
    """True where an index of this shape names elements of a source along `axis`: the other sizes are the source's."""
    along = isinstance(axis, int) and 0 <= axis < len(source) == len(index)
    return along and all(a == b for k, (a, b) in enumerate(zip(source, index, strict=True)) if k != axis)


def slice_fits(size: Dim, start: Dim, step: int, count: Dim) -> bool:
    """False where a slice certainly leaves its dimension, whatever the size symbols are; True else. All in elements."""
    first, last = wrap(start), wrap(start) + (wrap(count) - 1) * step
    low, high = (first, last) if step > 0 else (last, first)
    return step != 0 and (wrap(count).hi <= 0 or (low.hi >= 0 and (high - size).lo < 0))


def check_concat(axis: Any, parts: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The shape of parts of these shapes joined along `axis`; GraphError where they do not fit together."""
    first = parts[0]
    require(isinstance(axis, int) and 0 <= axis < len(first), f"concat along {axis} of {first}")
    for shape in parts:
        beside = len(shape) == len(first) and all(
            k == axis or a == b for k, (a, b) in enumerate(zip(shape, first, strict=True))
        )
        require(beside, f"concat of {first} and {shape} along {axis}")
    total = unwrap(sum((wrap(shape[axis]) for shape in parts), wrap(0)))
    return (*first[:axis], total, *first[axis + 1 :])


def check_pad(shape: tuple[Dim, ...], lo: Any, hi: Any) -> tuple[Dim, ...]:
    """The shape that padding of `lo` and `hi` elements gives; GraphError where their numbers do not fit or are
    negative.
    """
    fits = isinstance(lo, tuple) and isinstance(hi, tuple) and len(lo) == len(hi) == len(shape)
    require(fits, f"pad of {shape} by {lo} and {hi}")
    require(all(wrap(p).lo >= 0 for p in (*lo, *hi)), f"pad by {lo} and {hi}: slice first where it is negative")
    return tuple(unwrap(wrap(a) + d + b) for a, d, b in zip(lo, shape, hi, strict=True))
