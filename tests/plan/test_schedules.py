"""The space of schedules: what is predicted fastest stands first, the family's own choice is there, and ties are
settled alike in every process.
"""

from __future__ import annotations

import pytest

from interfuse.device.table import find
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work
from interfuse.plan.schedules import schedules
from tests.lower.test_families import Maker, _in, column_softmax, softmax, two_outputs

H200, DESK = find("NVIDIA H200"), find("CPU portable")


def _work(maker: Maker) -> Work:
    inputs, outputs = maker()
    return Work(tuple(outputs), frozenset(inputs), {n: contiguous(n.shape) for n in (*inputs, *outputs)})


@pytest.mark.parametrize("target", (CPU, GPU), ids=("cpu", "gpu"))
@pytest.mark.parametrize("maker", (two_outputs, column_softmax), ids=lambda m: m.__name__)
def test_ranked_by_prediction_then_by_distance(maker: Maker, target: Target) -> None:
    work, profile = _work(maker), H200 if target is GPU else DESK
    found = schedules(work, target, profile)
    own, _ = lower("kernel", work, target)
    assert [s.kernel for s in found if s.far == 0] == [own]
    assert len({s.kernel for s in found}) == len(found)
    order = [(s.estimate.seconds, s.far) for s in found]
    assert order == sorted(order)
    assert found == schedules(work, target, profile)
    for s in found:
        assert lower("kernel", work, target, schedule=s.schedule)[0] == s.kernel


def test_long_rows_may_be_held_and_short_ones_are_not_streamed() -> None:
    def forms(cols: int) -> set[str]:
        x = _in("x", 4, cols)
        work = Work((softmax(x),), frozenset((x,)), {n: contiguous((4, cols)) for n in (x, softmax(x))})
        return {s.kernel.family for s in schedules(work, GPU, H200)}

    assert forms(64) == {"row, resident"}
    assert forms(1 << 15) == {"row, resident", "row, streamed"}
    assert forms(1 << 18) == {"row, streamed"}
