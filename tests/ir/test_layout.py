"""Views against PyTorch's. In: random shapes, strides and movements. Out: the strides and offset torch gives, or None
where it raises.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.index import sym
from interfuse.ir.layout import Layout, contiguous, reach, view_of

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@st.composite
def _strided(draw: st.DrawFn) -> torch.Tensor:
    """A tensor that came about through slicing, permuting and expanding: any layout that a view can have."""
    x = torch.arange(math.prod(sizes := draw(SIZES)) or 1).view(sizes)
    for d in range(x.ndim):
        start = draw(st.integers(0, max(x.shape[d] - 1, 0)))
        x = x[(slice(None),) * d + (slice(start, None, draw(st.integers(1, 2))),)]
    x = x.permute(draw(st.permutations(range(x.ndim))))
    if draw(st.booleans()):
        x = x.unsqueeze(0).expand(draw(st.integers(1, 3)), *x.shape)
    return x


def _input(x: torch.Tensor):
    return b.placeholder("x", F32, tuple(x.shape)), Layout(tuple(x.stride()), x.storage_offset())


def _same(layout: Layout, view: torch.Tensor) -> None:
    """The same addresses: strides of dimensions that have one element do not matter, nor any where there are none."""
    assert layout.offset == view.storage_offset()
    if view.numel():
        assert [s for s, d in zip(layout.strides, view.shape, strict=True) if d > 1] == [
            s for s, d in zip(view.stride(), view.shape, strict=True) if d > 1
        ]


@settings(max_examples=200, deadline=None)
@given(_strided(), st.data())
def test_permute_expand_and_slice_are_views(x, data):
    node, layout = _input(x)
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    moved = b.permute(node, order)
    if moved is not node:
        _same(view_of(moved, layout), x.permute(order))
    to = tuple(data.draw(st.integers(1, 4)) if d == 1 else d for d in x.shape)
    grown = b.expand(node, to)
    if grown is not node:
        _same(view_of(grown, layout), x.expand(to))
    starts = tuple(data.draw(st.integers(0, d - 1)) for d in x.shape)
    steps = tuple(data.draw(st.integers(1, 3)) for _ in x.shape)
    part = x[tuple(slice(a, None, s) for a, s in zip(starts, steps, strict=True))]
    cut = b.take_slice(node, starts, tuple(part.shape), steps)
    if cut is not node:
        _same(view_of(cut, layout), part)


def _factors(draw: st.DrawFn, n: int) -> list[int]:
    """Sizes whose product is n, with ones among them."""
    out = []
    while n > 1:
        d = draw(st.sampled_from([k for k in range(2, n + 1) if n % k == 0]))
        out.append(d)
        n //= d
    for _ in range(draw(st.integers(0, 2))):
        out.insert(draw(st.integers(0, len(out))), 1)
    return out


@settings(max_examples=400, deadline=None)
@given(_strided(), st.data())
def test_reshape_is_a_view_exactly_where_torch_makes_one(x, data):
    to = tuple(_factors(data.draw, x.numel()))
    node, layout = _input(x)
    if to == node.shape:
        return
    got = view_of(b.reshape(node, to), layout)
    try:
        wanted = x.view(to)
    except RuntimeError:
        assert got is None
    else:
        assert got is not None
        _same(got, wanted)


def test_reshape_of_nothing_is_a_view():
    node = b.reshape(b.placeholder("x", F32, (0, 3)), (3, 0, 2))
    assert view_of(node, contiguous((0, 3))) is not None


def test_symbolic_reshape_joins_and_splits_whole_dimensions_only():
    s = sym("s", 2, 99)
    x = b.placeholder("x", F32, (s, 4, 6))
    flat = b.reshape(x, (s, 24))
    assert view_of(flat, contiguous(x.shape)) == Layout((24, 1))
    assert view_of(b.reshape(flat, (s, 6, 4)), contiguous(flat.shape)) == Layout((24, 4, 1))
    assert view_of(b.reshape(x, (s * 4, 6)), contiguous(x.shape)) == Layout((6, 1))
    assert view_of(b.reshape(flat, (s * 24,)), contiguous(flat.shape)) == Layout((1,))
    assert view_of(b.reshape(b.reshape(x, (s * 24,)), (s * 4, 6)), Layout((1,))) == Layout((6, 1))
    assert view_of(b.reshape(b.reshape(x, (s * 24,)), (24, s)), Layout((1,))) == Layout((s, 1))
    assert view_of(b.reshape(b.reshape(x, (s * 24,)), (6, s * 4)), Layout((1,))) == Layout((s * 4, 1))
    assert view_of(flat, Layout((48, 12, 1))) is None
    assert view_of(b.reshape(x, (4, s, 6)), Layout((96, 12, 1))) is None


def test_contiguity_ignores_dimensions_of_one():
    assert Layout((99, 1)).is_contiguous((1, 5))
    assert not Layout((1, 5)).is_contiguous((5, 2))
    assert contiguous((2, 3, 4)) == Layout((12, 4, 1))
    with pytest.raises(ValueError, match="zip"):
        Layout((1,)).is_contiguous((1, 5))


def test_how_far_a_tensor_reaches() -> None:
    assert reach((4, 5), (5, 1), 4) == 80 and reach((2, 2), (1, 8), 2) == 20
    assert reach((), (), 8) == 8 and reach((0, 3), (3, 1), 4) == 0
