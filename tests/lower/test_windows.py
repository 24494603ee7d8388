"""Windows of buffers. In: what regions read. Out: where their kernels begin to read, and where slices lie."""

from __future__ import annotations

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32
from interfuse.ir.index import sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node, topological
from interfuse.lower.windows import places, windows

X = b.placeholder("x", F32, (6, 4, 33))
H = b.placeholder("h", F32, (4, 33))
LAYOUTS = {X: contiguous(X.shape), H: contiguous(H.shape)}


def _at(x: Node, t: int, axis: int = 0) -> Node:
    starts = tuple(t if k == axis else 0 for k in range(3))
    part = b.take_slice(x, starts, tuple(1 if k == axis else d for k, d in enumerate(x.shape)))
    return b.reshape(part, tuple(d for k, d in enumerate(x.shape) if k != axis))


def _first(*roots: Node, vector: int = 1, layouts: dict[Node, Layout] | None = None) -> object:
    """How many elements of X lie before the address that a kernel for the roots is given; None without a window."""
    known = layouts or LAYOUTS
    found = windows(roots, frozenset(known), known, (), vector)
    assert found.keys() <= {X}
    return -found[X].offset if X in found else None  # type: ignore[operator]


def test_a_step_begins_where_it_reads() -> None:
    assert [_first(b.apply("add", _at(X, t), H)) for t in (0, 1, 5)] == [None, 132, 660]
    assert _first(b.apply("add", _at(X, 2, axis=1), b.reshape(_at(X, 3, axis=1), (6, 33)))) == 66
    turned = b.permute(X, (1, 0, 2))
    assert _first(b.apply("exp", _at(turned, 3, axis=1))) == 3 * 132
    assert _first(b.apply("exp", _at(b.apply("exp", X), 3))) == 3 * 132, "whatever is computed of it on the way"


def test_aligned_addresses_stay_so() -> None:
    out = b.apply("exp", _at(X, 3, axis=1))
    assert _first(out) == 99 and _first(out, vector=16) == 96
    assert _first(b.apply("exp", _at(X, 0, axis=1)), vector=16) is None


def test_several_slices_begin_with_the_first() -> None:
    assert _first(b.apply("add", _at(X, 4), _at(X, 2))) == 264
    x = b.placeholder("x", BF16, X.shape)
    both = b.apply("add", b.cast(_at(x, 4), F32), _at(b.cast(x, F32), 2))
    found = windows((both,), frozenset((x,)), {x: contiguous(x.shape)}, (), 1)
    assert found[x].offset == -264, "by way of a cast"
    flipped = b.take_slice(X, (5, 0, 0), (2, 4, 33), (-2, 1, 1))
    assert _first(b.apply("add", flipped, b.take_slice(X, (4, 0, 0), (2, 4, 33)))) == 3 * 132


@pytest.mark.parametrize(
    "roots",
    (
        (b.apply("add", _at(X, 2), b.reduce("sum", X, (0,))),),
        (b.apply("exp", _at(X, 2)), b.apply("neg", X)),
        (b.apply("exp", b.take_slice(X, (5, 0, 0), X.shape, (-1, 1, 1))),),
        (_at(b.scan("cumsum", X, 0), 3),),
        (b.apply("exp", X),),
    ),
    ids=("reduced", "whole", "flipped", "scanned", "plain"),
)
def test_what_is_read_from_its_start_stays(roots: tuple[Node, ...]) -> None:
    assert _first(*roots) is None


def test_what_is_written_over_stays() -> None:
    assert windows((b.apply("add", _at(X, 2), H),), frozenset((X, H)), LAYOUTS, (X,), 1) == {}


def test_sizes_that_change() -> None:
    s = sym("s", 0)
    x = b.placeholder("x", F32, (6, s, 64))
    layouts = {x: contiguous(x.shape)}
    out = b.apply("add", b.take_slice(x, (3, 0, 0), (1, s, 64)), b.take_slice(x, (2, 0, 0), (1, s, 64)))
    assert windows((out,), frozenset((x,)), layouts, (), 16)[x].offset == s * -128
    odd = b.placeholder("x", F32, (6, s, 33))
    out = b.apply("exp", b.take_slice(odd, (3, 0, 0), (1, s, 33)))
    assert windows((out,), frozenset((odd,)), {odd: contiguous(odd.shape)}, (), 16) == {}, "may not be aligned"


def test_places_say_where_slices_lie() -> None:
    def place(t: int) -> Layout:
        out = b.apply("exp", _at(b.cast(X, F32), t))
        mine = LAYOUTS | windows((out,), frozenset((X,)), LAYOUTS, (), 1)
        return places(topological((out,), (X,))[1:], mine)[out]

    assert place(1) == place(5) == Layout((33, 1))
    assert b.apply("add", X, X) not in places([b.apply("add", X, X)], LAYOUTS)
