"""What kernels in parts read first. In: regions in parts. Out: loads before the wait, or before the parts at least."""

from __future__ import annotations

from dataclasses import replace

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.node import Node
from interfuse.lower.early import early
from interfuse.lower.families import lower
from interfuse.lower.kernel import Kernel
from interfuse.lower.target import GPU
from tests import parts

WAIT, LET = "gdc_wait()  # for what the kernel before this one writes", "gdc_launch_dependents()"


def followers(x: Node, y: Node) -> list[Kernel]:
    """The kernels of y, computed from x in parts, that follow others."""
    first, *works = parts.works(([x], [y]), GPU)
    assert not first.awaited and all(w.awaited for w in works)
    return [replace(early(*lower("part", w, GPU), w), follows=True, leads=True) for w in works]


def order(kernel: Kernel) -> list[str]:
    """What the kernel's text loads and waits for, in order."""
    lines = [line.strip() for line in emit(kernel).text.splitlines()]
    assert lines.count(WAIT) == lines.count(LET) == 1 and lines.index(WAIT) < lines.index(LET)
    return [
        "wait" if s == WAIT else s.split("tl.load(")[1].split("_ptr")[0] for s in lines if s == WAIT or "tl.load(" in s
    ]


def share_of_all(rows: int) -> tuple[Node, Node]:
    x = b.placeholder("x", F32, (rows, 4096))
    return x, b.apply("div", x, b.spread_over(b.reduce("sum", x, (0, 1)), x, (0, 1)))


def test_programs_that_find_room_read_before_they_wait() -> None:
    (kernel,) = followers(*share_of_all(256))
    (part,) = kernel.awaits
    assert order(kernel) == ["x", "wait", part]


def test_others_wait_first_and_join_parts_last() -> None:
    (kernel,) = followers(*share_of_all(4096))
    own, part = order(kernel)[1:]
    assert not kernel.awaits and order(kernel)[0] == "wait" and own == "x" and "parts" in part


def test_the_first_kernel_stays_as_it_is() -> None:
    x, y = share_of_all(256)
    work, _ = parts.works(([x], [y]), GPU)
    kernel, reads = lower("part", work, GPU)
    assert early(kernel, reads, work) is kernel
