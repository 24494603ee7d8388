"""Interning. In: nodes made twice. Out: one object where equal, and two where anything that means something differs."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32, I64
from interfuse.ir.index import const, sym
from interfuse.ir.node import Node, make, topological

X = b.placeholder("x", F32, (4,))


def test_equal_means_the_same_object():
    assert b.apply("exp", X, source="a.py:1", hint="a") is b.apply("exp", X, source="b.py:2", hint="b")


def test_equal_means_the_same_object_in_every_thread():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gate = threading.Barrier(4)

    def made(_: int) -> list[Node]:
        gate.wait()
        return [b.constant(k + 0.25, F32) for k in range(20_000)]

    try:
        with ThreadPoolExecutor(4) as pool:
            first, *others = pool.map(made, range(4))
    finally:
        sys.setswitchinterval(before)
    assert all(a is c for other in others for a, c in zip(first, other, strict=True))


def test_constants_that_compare_equal_stay_apart():
    zeros = {b.constant(0.0, F32), b.constant(-0.0, F32), b.constant(0, I64), b.constant(False, F32)}
    assert len(zeros) == 3


def test_tokens_keep_equal_work_apart():
    assert make("library", (X,), F32, (4,), token=1) is not make("library", (X,), F32, (4,), token=2)


def test_symbols_of_one_name_and_other_bounds_stay_apart():
    y = b.placeholder("y", F32, (9,))
    few, many = (b.take_slice(y, (sym("s", 0, hi),), (1,)) for hi in (3, 8))
    assert few is not many


def test_a_constant_size_is_a_plain_number():
    assert b.placeholder("y", F32, (const(4),)) is b.placeholder("y", F32, (4,))
    y = b.placeholder("y", F32, (4,))
    assert b.take_slice(y, (const(1),), (2,)) is b.take_slice(y, (1,), (2,))


def test_topological_puts_inputs_first_and_stops_at_leaves():
    y = b.apply("exp", X)
    z = b.apply("add", y, X)
    assert topological([z, y]) == [X, y, z] or topological([z, y]) == [y, X, z]
    assert topological([z], {y}) == [y, X, z]
    assert topological([y], {y}) == [y]


def test_depth_is_no_limit():
    node = X
    for _ in range(20_000):
        node = b.apply("neg", node)
    assert len(topological([node])) == 20_001


def test_dropped_nodes_are_freed():
    node = b.apply("add", X, b.broadcast(b.constant(0.123, F32), (4,)))
    seen = weakref.ref(node)
    del node
    gc.collect()
    assert seen() is None
