"""Conditions on sizes. In: kernels over sizes that change. Out: vectors where the sizes allow, 64 bits where needed."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from interfuse.emit import cpp
from interfuse.emit.tidy import tidy
from interfuse.emit.triton import emit
from interfuse.emit.triton_body import Body
from interfuse.emit.triton_index import INT32, index_text
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from interfuse.ir.index import evaluate
from interfuse.ir.node import Node
from interfuse.lower.target import CPU, GPU
from tests import packs, symbolic
from tests.symbolic import BATCH, LENGTH


def halves(*shape: object) -> Node:
    return b.placeholder(f"x{len(shape)}", F16, shape)  # type: ignore[arg-type]


def added(x: Node, y: Node) -> symbolic.Region:
    wide = b.apply("add", b.cast(x, F32), b.cast(b.broadcast(y, x.shape), F32))
    return [x, y], [b.cast(wide, F16)]


REGIONS = {
    "scores": (added(halves(BATCH, 8, LENGTH, LENGTH), halves(LENGTH, LENGTH)), ("s1",)),
    "rows of a length": (added(halves(BATCH, 8, LENGTH), halves(8, 1)), ("s1",)),
    "one batch": (added(halves(BATCH), halves(1)), ()),
    "hidden states": (added(halves(BATCH, LENGTH, 64), halves(64)), ()),
    "odd width": (added(halves(BATCH, LENGTH, 6), halves(LENGTH, 6)), ("s1",)),
    "odd rows": (added(halves(BATCH, 5), halves(5)), ()),
}


@pytest.mark.parametrize("name", list(REGIONS))
def test_the_sizes_that_vectors_hang_on(name: str) -> None:
    region, wanted = REGIONS[name]
    kernel, _ = symbolic.lowered(region, GPU)
    source = emit(kernel)
    assert source.even == wanted
    assert (source.uneven is None) == (not wanted) == ("EVEN" not in source.text)
    if source.uneven is not None:
        assert dict(source.constants)["EVEN"] == 1 and dict(source.uneven.constants)["EVEN"] == 0
        assert source.uneven.text == source.text


def test_rows_of_a_fixed_width_need_no_second_form() -> None:
    for name in ("norm_rows", "masked_softmax", "half_rows"):
        kernel, _ = symbolic.lowered(symbolic.CASES[name](), GPU)
        assert emit(kernel).even == (), name


def test_packs_have_one_form() -> None:
    (packed,) = packs.packs("step", GPU, 16, ((64, 4096), (128, 4096)))
    assert emit(packed.kernel).even == ()


class Typed:
    """An integer in 32 or 64 bits, as Triton computes: a result has the bits of its wider operand, and must fit."""

    def __init__(self, value: int, bits: int = 0) -> None:
        self.value, self.bits = value, bits or (32 if -INT32 <= value <= INT32 else 64)
        assert self.bits == 64 or abs(value) <= INT32, f"{value} in 32 bits"

    def _with(self, other: Typed, value: int) -> Typed:
        return Typed(value, max(self.bits, other.bits))

    def __add__(self, other: Typed) -> Typed:
        return self._with(other, self.value + other.value)

    def __sub__(self, other: Typed) -> Typed:
        return self._with(other, self.value - other.value)

    def __mul__(self, other: Typed) -> Typed:
        return self._with(other, self.value * other.value)

    def __neg__(self) -> Typed:
        return self._with(self, -self.value)

    def __floordiv__(self, other: Typed) -> Typed:
        return self._with(other, self.value // other.value)

    def __mod__(self, other: Typed) -> Typed:
        return self._with(other, self.value % other.value)


TL = SimpleNamespace(
    minimum=lambda a, c: min(a, c, key=lambda t: t.value), maximum=lambda a, c: max(a, c, key=lambda t: t.value)
)
HUGE = ({"s0": 70_000, "s1": 70_000}, {"s0": 3_000_000_000, "s1": 1}, {"s0": 1, "s1": 3_000_000_000})


@pytest.mark.parametrize("name", list(symbolic.CASES))
def test_no_index_passes_the_bits_that_it_is_computed_in(name: str) -> None:
    kernel, _ = symbolic.lowered(symbolic.CASES[name](), GPU)
    body = Body(tidy(kernel))
    for sizes in HUGE:
        values = {n: Typed(v, 64 if n in body.wide else 0) for n, v in sizes.items()}
        for axis in body.kernel.axes:
            last = evaluate(axis.extent, sizes) - 1
            values[axis.name] = Typed(last, 64 if axis.name in body.wide else 32)
        for e in body.exprs:
            text = re.sub(r"(?<![\w.])(\d+)", r"T(\1)", index_text(e, str))
            eval(text, {**values, "T": Typed, "tl": TL})


@pytest.mark.parametrize("name", list(symbolic.CASES))
def test_indices_of_cpu_kernels_are_longs(name: str) -> None:
    kernel, _ = symbolic.lowered(symbolic.CASES[name](), CPU)
    code = cpp.emit(kernel, "portable").partition('extern "C"')[2]
    # Only the counter of the vectors of a strip is an int: there are a handful of them.
    assert "long" in code and not re.search(r"(?<!for \()\b(int|unsigned|short|auto) \w+ = ", code)
