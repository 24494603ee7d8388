"""Views of buffers. In: random movement chains and layouts. Out: what NumPy makes of them, as views where possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.index import maximum, minimum, sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.run.views import chain_to, concrete, copied, layout_through, moved, relaid, sized, view_step


@st.composite
def chains(draw: st.DrawFn) -> tuple[Node, tuple[Node, ...]]:
    """A [2, 3, 4] input and one to four movements of it."""
    node = start = b.placeholder("x", F32, (2, 3, 4))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["permute", "slice", "reshape", "expand"]))
        shape = node.shape
        if kind == "permute":
            node = b.permute(node, tuple(draw(st.permutations(range(len(shape))))))
        elif kind == "slice":
            starts = tuple(draw(st.integers(0, d - 1)) for d in shape)
            steps = tuple(draw(st.integers(1, 2)) for _ in shape)
            sizes = tuple(-((s - d) // k) for s, d, k in zip(starts, shape, steps, strict=True))
            node = b.take_slice(node, starts, sizes, steps)
        elif kind == "reshape":
            total = 1
            for d in shape:
                total *= d
            first = draw(st.sampled_from([k for k in range(1, total + 1) if total % k == 0]))
            node = b.reshape(node, (first, 1, total // first))
        else:
            node = b.expand(node, tuple(d if d != 1 else draw(st.integers(1, 3)) for d in shape))
    found = chain_to(node, {start})
    assert found is not None
    return start, found[1]


@given(chains(), st.sampled_from(["plain", "inside", "turned"]))
def test_views_are_what_the_nodes_mean(made: tuple[Node, tuple[Node, ...]], how: str) -> None:
    start, chain = made
    if not chain:
        return
    x = {
        "plain": torch.randn(2, 3, 4),
        "inside": torch.randn(3, 3, 4)[1:],
        "turned": torch.randn(4, 3, 2).permute(2, 1, 0),
    }[how]
    (want,) = evaluate([chain[-1]], {start: x.numpy()})
    assert torch.equal(moved(x, chain, {}), torch.from_numpy(want.copy()))
    for base in (contiguous(start.shape), Layout(x.stride()), None):
        slots: list[Any] = [{}, x, None]
        view_step(1, 2, base, chain)(slots)
        assert torch.equal(slots[2], torch.from_numpy(want.copy()))
    if layout_through(Layout(x.stride()), chain) is not None:
        assert slots[2].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_sizes_that_are_only_known_at_run_time() -> None:
    n = sym("s0", 1, 100)
    x = b.placeholder("x", F32, (n, 4))
    node = b.permute(b.reshape(x, (n, 2, 2)), (1, 0, 2))
    found = chain_to(node, {x})
    assert found is not None
    tensor = torch.randn(5, 4)
    slots: list[Any] = [{"s0": 5}, tensor, None]
    view_step(1, 2, contiguous(x.shape), found[1])(slots)
    assert torch.equal(slots[2], tensor.view(5, 2, 2).permute(1, 0, 2))


def test_chain_ends_where_nothing_is_held() -> None:
    x = b.placeholder("x", F32, (2, 3))
    assert chain_to(b.permute(b.apply("exp", x), (1, 0)), {x}) is None
    assert chain_to(x, {x}) == (x, ())


@pytest.mark.parametrize(("strides", "same"), [((4, 1), True), ((1, 3), False)])
def test_relaid_copies_only_what_lies_otherwise(strides: tuple[int, ...], same: bool) -> None:
    x = torch.randn(3, 4)
    got = relaid(x, strides)
    assert (got.data_ptr() == x.data_ptr()) == same
    assert got.stride() == strides
    assert torch.equal(got, x)


def test_strides_of_sizes_of_one_do_not_matter_and_repeats_stay_repeats() -> None:
    x = torch.randn(1, 4)
    assert relaid(x, (9, 1)).data_ptr() == x.data_ptr()
    assert relaid(x, (9, 1)).stride() == (9, 1)
    spread = torch.randn(1, 4).expand(3, 4)
    got = copied(spread, (0, 1))
    assert got.stride() == (0, 1)
    assert torch.equal(got, spread)
    assert got.data_ptr() != spread.data_ptr()


def test_dims_as_one_function() -> None:
    n, m = sym("n", 0), sym("m", 1)
    dims = (n * 4 + 1, 7, (n + 2) // m, m % 3 * -2, minimum(n, m), maximum(n, 2))
    for sizes in ({"n": 0, "m": 1}, {"n": 9, "m": 4}):
        assert sized(dims)(sizes) == concrete(dims, sizes)
    assert sized(())({}) == () and sized((n,))({"n": 3}) == (3,)
