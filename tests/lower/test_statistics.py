"""Statistics spelled for one pass or several. In: regions. Out: which reductions kernels make of them."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.evaluate import evaluate
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node, topological
from interfuse.lower.families import lower
from interfuse.lower.kernel import Load, Loop, Reduce, walk
from interfuse.lower.statistics import expand_statistics, join_statistics
from interfuse.lower.work import Work
from tests import online, targets

X = b.placeholder("x", F32, (8, 8))
STREAMED = {name: target for name, target in targets.ALL.items() if "streamed" in name}


def _ops(nodes: list[Node]) -> set[str]:
    return {n.op for n in topological(nodes)}


def _across(op: str) -> Node:
    """The reduction of each row of a square, spread over the columns instead."""
    return b.expand(b.reshape(b.reduce(op, X, (1,)), (1, 8)), (8, 8))


@pytest.mark.parametrize("region", online.REGIONS)
@pytest.mark.parametrize("spell", [expand_statistics, join_statistics])
def test_both_spellings_mean_the_same(region: str, spell) -> None:  # type: ignore[no-untyped-def]
    inputs, outputs = online.REGIONS[region](F32, (9, 8), 1)
    array = online.DATA["special"]((9, 8), 1).astype(np.float32)
    spelled = spell(tuple(outputs), frozenset(inputs))
    assert not _ops(list(spelled)) & {"variance"}
    for node, other in zip(outputs, spelled, strict=True):
        a, c = (evaluate([n], {inputs[0]: array}, wide=True)[0] for n in (node, other))
        np.testing.assert_allclose(c, a, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("target", STREAMED.values(), ids=STREAMED)
@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("region", online.REGIONS)
def test_what_is_streamed_is_reduced_in_one_pass(region: str, axis: int, target) -> None:  # type: ignore[no-untyped-def]
    inputs, outputs = online.REGIONS[region](F32, (40, 40), axis)
    layouts = {n: contiguous(n.shape) for n in (*inputs, *outputs)}
    kernel, _ = lower("kernel", Work(tuple(outputs), frozenset(inputs), layouts), target)
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    assert [sum(isinstance(s, Load) for s in loop.body) for loop in loops] == [1] * (1 + (region != "logsumexp"))
    assert not any(isinstance(s, Reduce) for s in walk(loops[1:]))


def test_only_a_maximum_of_the_same_elements_joins() -> None:
    def total(shift: Node) -> set[str]:
        e = b.apply("exp", b.apply("sub", X, shift))
        return _ops(list(join_statistics((b.reduce("sum", e, (1,)),), frozenset((X,)))))

    assert "expsum" in total(b.expand(b.reduce("max", X, (1,), keepdims=True), (8, 8)))
    assert "expsum" not in total(_across("max"))
    assert "expsum" not in total(b.expand(b.reduce("min", X, (1,), keepdims=True), (8, 8)))
    assert "expsum" not in total(b.expand(b.reduce("max", X, (0,), keepdims=True), (8, 8)))


def test_what_lies_in_a_buffer_is_read() -> None:
    top = b.reduce("max", X, (1,))
    e = b.apply("exp", b.apply("sub", X, b.expand(b.reshape(top, (8, 1)), (8, 8))))
    for held in (top, e):
        inputs = frozenset((X, held))
        (joined,) = join_statistics((b.reduce("sum", e, (1,)),), inputs)
        assert "expsum" not in {n.op for n in topological([joined]) if n not in inputs}


def test_distances_from_the_means_of_other_rows_are_no_centring() -> None:
    apart = b.apply("sub", X, _across("mean"))
    spread = b.reduce("variance", X, (1,), correction=1)
    x = np.arange(64, dtype=np.float32).reshape(8, 8) ** 2
    for spelled in (expand_statistics((apart, spread), frozenset((X,))), join_statistics((apart,), frozenset((X,)))):
        np.testing.assert_allclose(evaluate(spelled[:1], {X: x})[0], x - x.mean(1)[None, :])
