"""Accumulators of reductions and scans in C++. In: a Reduce or Scan, how it is walked. Out: its accumulator's type, and
what is added.

The accumulators themselves are in `prelude/reduce.h` and `prelude/scan.h`. A place (argmax, argmin) is held in an
integer as wide as the elements, so that one mask chooses both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interfuse.base.errors import UnsupportedError
from interfuse.emit.cpp_types import converted, held, highest, literal, lowest, splat
from interfuse.ir.dtypes import BOOL, F32, F64, I32, I64, DType, compute_type
from interfuse.ir.index import Dim, wrap
from interfuse.lower.kernel import MOMENTS, PLACES, Reduce, Scan, Value

CARRY_ROUNDS = 16
"""Additions to one float accumulator before it is carried into double; the prelude's loops use the same number."""

_REDUCERS = {"sum": "Sum", "prod": "Product", "any": "Any", "all": "All"}


@dataclass(frozen=True)
class Accumulator:
    """A C++ type, the bracketed argument of its constructor ("" for none), and whether it carries into double."""

    kind: str
    start: str = ""
    carries: bool = False


def parts_name(r: Reduce | Scan) -> str:
    """What the accumulator of `r` is called."""
    return f"{r.out.name} parts"


def sharing(reduces: Sequence[Reduce]) -> dict[Reduce, Reduce]:
    """Each reduction of one loop and the first of those that share its accumulator."""
    firsts: dict[Value, Reduce] = {}
    return {r: firsts.setdefault(r.arg if r.op in MOMENTS else r.out, r) for r in reduces}


def result_of(r: Reduce, parts: str, over_lanes: bool) -> str:
    """The result of `r` from its accumulator, joined across lanes where `over_lanes`."""
    if r.op in MOMENTS:
        return f"{parts}.{r.op}()"
    return f"{parts}.{'over_lanes' if over_lanes else 'value'}()"


def accumulator(r: Reduce, extent: Dim, vector: bool, lanes: int = 0, side: int = 1) -> Accumulator:
    """The accumulator of `r` over `extent` elements; `vector` where it has a part a lane, along whose `lanes` it runs
    where they are not 0.

    Where `side` vectors lie side by side, what needs several registers a part has one part only, and moments take
    pieces of elements.
    """
    if r.op in MOMENTS or r.op == "expsum":
        return _composite(r, vector, lanes > 0, side)
    if r.op in PLACES:
        kind, places = _place_types(r.arg.dtype)
        if places is I32 and wrap(extent).hi >= 1 << 31:
            raise UnsupportedError(f"{r.op} over {extent} elements: their places pass 32 bits.")
        kinds = f"{held(kind, vector)}, {held(places, vector)}, {'true' if r.op == 'argmax' else 'false'}"
        return Accumulator(f"Place<{kinds}>", _bracketed((lowest if r.op == "argmax" else highest)(kind)))
    if r.op not in _REDUCERS and r.op not in ("max", "min"):
        raise UnsupportedError(f"C++ kernels have no {r.op}.")
    kind_text = held(BOOL if r.op in ("any", "all") else r.arg.dtype, vector)
    short = isinstance(extent, int) and extent <= CARRY_ROUNDS * 4 * (lanes or 1)
    if r.op == "sum" and compute_type(r.arg.dtype) is F32 and not short:
        return Accumulator(f"LongSum<{kind_text}, {'f64v' if vector else 'double'}>", carries=True)
    if r.op in ("max", "min") and r.arg.dtype is not BOOL:
        start = (lowest if r.op == "max" else highest)(compute_type(r.arg.dtype))
        return Accumulator(f"Extreme<{kind_text}, {'true' if r.op == 'max' else 'false'}>", _bracketed(start))
    reducer = {"max": "Any", "min": "All"}.get(r.op) or _REDUCERS[r.op]
    return Accumulator(f"{reducer}<{kind_text}>")


def columns_of(r: Reduce, count: int) -> Accumulator:
    """What holds the results of `r` for `count` columns, which are whole vectors."""
    kind = held(r.arg.dtype, False)
    if r.op == "sum" and r.arg.dtype.is_float:
        return Accumulator(f"ColumnSums<{kind}, {count}>")
    if r.op in ("max", "min"):
        start = (lowest if r.op == "max" else highest)(compute_type(r.arg.dtype))
        return Accumulator(
            f"ColumnExtremes<{kind}, {count}, {'true' if r.op == 'max' else 'false'}>", _bracketed(start)
        )
    raise UnsupportedError(f"C++ kernels have no {r.op} of columns beside reductions of rows.")


def _composite(r: Reduce, vector: bool, lane: bool, side: int) -> Accumulator:
    """The accumulator of a reduction that carries more than one number; `lane` where it runs along the lanes."""
    kind, wide = held(r.arg.dtype, vector), "f64v" if vector else "double"
    if r.op in MOMENTS and lane:
        return Accumulator(f"Moments<{kind}>", carries=True)
    if r.op in MOMENTS:
        return Accumulator(f"{'Lane' if side > 1 else 'Own'}Moments<{kind}, {wide}>", carries=True)
    least = literal(float(np.finfo(r.arg.dtype.numpy).min), r.arg.dtype)
    return Accumulator(f"ExpSum<{kind}, {wide}, {1 if side > 1 else 4}>", _bracketed(least), carries=True)


_SCANNERS = {"cumsum": "Plus", "cumprod": "Times", "cummax": "Larger", "cummin": "Smaller"}


def scanner(s: Scan, vector: bool, lane: bool) -> Accumulator:
    """The accumulator of the scan `s`; `vector` where its parts are vectors, `lane` where it runs along their lanes."""
    kind = scan_type(s)
    wide = F64 if kind is F32 and s.op in ("cumsum", "cumprod") else kind
    types = f"{held(kind, vector)}, {held(wide, vector and not lane)}, {_SCANNERS[s.op]}"
    start = {"cumsum": "0", "cumprod": "1", "cummax": lowest(kind), "cummin": highest(kind)}[s.op]
    return Accumulator(f"Running{'Lanes' if lane else ''}<{types}>", _bracketed(start))


def scan_type(s: Scan) -> DType:
    """The type that a scan is computed in. Products are of doubles: within a vector floats may pass their range where
    the running product does not.
    """
    if s.arg.dtype is BOOL:
        raise UnsupportedError(f"C++ kernels have no {s.op} of truth values.")
    kind = compute_type(s.arg.dtype)
    return F64 if s.op == "cumprod" and kind is F32 else kind


def part_of(r: Reduce, arg: str, vector: bool, lane: bool, index: str) -> str:
    """What a step adds: the value `arg` (a `vector` or not), and its place, at `index` of an axis that is the lanes'
    own or not.
    """
    if r.op in PLACES:
        kind, places = _place_types(r.arg.dtype)
        arg = converted(arg, r.arg.dtype, kind, vector)
        at = f"({held(places, False)}){index}"
        if lane:
            at = f"{splat(at, places)} + {'LANE' if places is I32 else 'to<i64v>(LANE)'}"
        elif vector:
            at = splat(at, places)
        return f"{splat(arg, kind) if lane and not vector else arg}, {at}"
    dtype = BOOL if r.op in ("any", "all") else r.arg.dtype
    arg = converted(arg, r.arg.dtype, dtype, vector)
    return splat(arg, dtype) if lane and not vector else arg


def _place_types(dtype: DType) -> tuple[DType, DType]:
    """The types in which elements of `dtype` and their places are held, of one size."""
    if dtype is BOOL:
        raise UnsupportedError("C++ kernels have no place of the largest truth value.")
    kind = I32 if dtype.kind in ("int", "uint") and dtype.bytes < 4 else compute_type(dtype)
    return kind, I64 if kind.bytes == 8 else I32


def _bracketed(start: str) -> str:
    return start if start.startswith("(-") else f"({start})"
