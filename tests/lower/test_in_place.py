"""What may be written over: an element is read by the program that writes it, and before; anything else is refused."""

from __future__ import annotations

import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.lower.families import lower
from interfuse.lower.in_place import check_in_place
from interfuse.lower.target import CPU, GPU, Target
from interfuse.lower.work import Work

X, Y = b.placeholder("x", F32, (8, 8)), b.placeholder("y", F32, (8, 8))
SCALE = b.expand(b.reduce("max", X, (1,), keepdims=True), X.shape)
SPREAD = b.expand(b.reduce("max", X, (0,), keepdims=True), X.shape)


def check(out: Node, target: Target, source: Node = X, strides: tuple[int, ...] | None = None) -> None:
    layouts = {X: contiguous(X.shape), Y: contiguous(Y.shape), out: Layout(strides or (8, 1))}
    kernel, reads = lower("k", Work((out,), frozenset((X, Y)), layouts), target)
    names = dict(zip(reads, (p.name for p in kernel.params), strict=False))
    check_in_place(kernel, names.get(source), "out")


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "out",
    [
        b.apply("add", X, Y),
        b.apply("add", b.apply("mul", X, X), X),
        b.apply("mul", Y, Y),
        b.apply("sub", X, SCALE),
        b.apply("sub", Y, SPREAD),
    ],
)
def test_elements_that_only_their_own_program_reads(out: Node, target: Target) -> None:
    source = Y if X not in out.inputs and out.op != "mul" else X
    check(out, target, source)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "out",
    [
        b.apply("add", X, b.permute(X, (1, 0))),
        b.apply("tanh", b.permute(X, (1, 0))),
        b.apply("add", X, b.expand(b.take_slice(X, (0, 0), (8, 1)), X.shape)),
    ],
)
def test_elements_that_others_read_are_refused(out: Node, target: Target) -> None:
    with pytest.raises(UnsupportedError, match="still read"):
        check(out, target)


def test_places_that_elements_share_are_refused() -> None:
    for strides in ((0, 1), (1, 1), (4, 1)):
        with pytest.raises(UnsupportedError, match="share their place"):
            check(b.apply("neg", Y), CPU, Y, strides)
    check(b.apply("neg", Y), CPU, X, (1, 8))
    check(b.apply("neg", Y), CPU, X, (16, 2))
