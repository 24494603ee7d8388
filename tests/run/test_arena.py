"""Blocks of an arena. In: values with lifetimes. Out: nothing that lives at once shares a byte, and little is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interfuse.ir.index import sym
from interfuse.run.arena import ALIGN, Arena, Value, plan

values = st.builds(
    lambda size, born, length: Value(size, born, born + length),
    st.integers(0, 300),
    st.integers(0, 12),
    st.integers(0, 6),
)
results = st.builds(Value, st.integers(0, 300), st.integers(0, 18))


def meet(a: Value, b: Value) -> bool:
    return a.born <= b.dies and b.born <= a.dies


@given(st.lists(values, max_size=12), st.lists(results, max_size=3))
def test_values_that_live_at_once_share_no_block_and_each_block_holds_its_values(
    inside: list[Value], kept: list[Value]
) -> None:
    found = plan(inside, kept, {})
    blocks = [*(r.bytes for r in kept), *found.own]
    for k, (value, block) in enumerate(zip(inside, found.block_of, strict=True)):
        assert blocks[block] >= value.bytes
        assert block >= len(kept) or not meet(value, kept[block])
        for other, its in zip(inside[:k], found.block_of[:k], strict=True):
            assert block != its or not meet(value, other)
    starts, total = found.offsets(found.own)
    ends = [start + size for start, size in zip(starts, found.own, strict=True)]
    assert all(start % ALIGN == 0 and start >= end for start, end in zip(starts, [0, *ends], strict=False))
    assert total == (ends[-1] if ends else 0)
    assert sum(found.own) <= sum(v.bytes for v in inside)


def test_a_chain_needs_one_block_beside_its_result() -> None:
    for length in (2, 3, 4, 9, 10):
        chain = [Value(256, k, k + 1) for k in range(length - 1)]
        found = plan(chain, [Value(256, length - 1)], {})
        assert found.own == (256,), length
        assert all(a != b for a, b in zip(found.block_of, found.block_of[1:], strict=False))


def test_the_smallest_block_that_fits_is_taken() -> None:
    inside = [Value(100, 0, 1), Value(40, 0, 1), Value(30, 2, 3), Value(90, 2, 3)]
    assert plan(inside, [], {}) == Arena((0, 1, 1, 0), (100, 40))


def test_sizes_that_change_share_a_block_where_they_are_one_expression() -> None:
    s, t = sym("s", 0, 1 << 20), sym("t", 0, 1 << 20)
    inside = [Value(s * 4, 0, 1), Value(s * 4, 2, 3), Value(t * 4, 4, 5), Value(64, 6, 7)]
    found = plan(inside, [], {"s": 100, "t": 10})
    assert found == Arena((0, 0, 2, 1), (s * 4, 64, t * 4))
