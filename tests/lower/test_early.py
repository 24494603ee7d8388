"""What kernels in parts read first. In: regions in parts. Out: loads before the wait, or before the parts at least."""

from __future__ import annotations

from dataclasses import replace

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from interfuse.ir.index import symbols, wrap
from interfuse.ir.node import Node
from interfuse.lower.early import AT_ONCE, early
from interfuse.lower.families import lower
from interfuse.lower.kernel import PART, Kernel, Loop, Reduce, Role, Scope, walk
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


def test_columns_are_scanned_on_top_of_the_parts_before_theirs_alone() -> None:
    x = b.placeholder("x", F16, (2, 2048, 256))
    (kernel,) = followers(x, b.cast(b.scan("cumsum", b.cast(x, F32), 1), F16))
    (loop,) = (s for s in kernel.body if isinstance(s, Loop) and s.axis == PART)
    part = kernel.axis(PART)
    assert (part.role, part.block) == (Role.SERIAL, AT_ONCE) and wrap(part.extent).hi > AT_ONCE
    assert loop.until is not None and [s.name for s in symbols(wrap(loop.until))] == ["outer"]
    assert [s.scope for s in walk((loop,)) if isinstance(s, Reduce)] == [Scope.CARRY]
    (back,) = followers(x, b.cast(b.scan("cumsum", b.cast(x, F32), 1, True), F16))
    assert back.axis(PART).role is Role.TILE, "those after it begin anywhere"
