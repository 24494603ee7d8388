"""Packed kernels: for each member what its own kernel does, whatever the sizes; what is not alike is not packed."""

from __future__ import annotations

import numpy as np
import pytest

from interfuse.base.errors import UnsupportedError
from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from interfuse.ir.index import sym
from interfuse.lower.kernel import Role
from interfuse.lower.pack import likeness, pack
from interfuse.lower.printer import show
from interfuse.lower.target import CPU, GPU
from tests import null_device, packs, targets

TARGETS = pytest.mark.parametrize("target", targets.ALL.values(), ids=targets.ALL)


@TARGETS
@pytest.mark.parametrize("name", packs.CASES)
def test_each_member_computes_what_its_own_kernel_does(name: str, target) -> None:  # type: ignore[no-untyped-def]
    made = packs.packs(name, target)
    assert made or target.backend == "triton"
    for packed in made:
        for k, alone in enumerate(packed.alone):
            arrays = packed.arrays(k)
            flat = [arrays[n].ravel() for n in packed.orders[k]]
            counts = [int(np.prod(n.shape)) for n in packed.regions[k][1]]
            sizes = dict(zip(packed.kernel.symbols, packed.sizes[k], strict=True))
            with np.errstate(all="ignore"):
                ours = null_device.run(packed.kernel, flat, counts, sizes)
                own = null_device.run(alone, flat, counts)
            for mine, other in zip(ours, own, strict=True):
                assert np.array_equal(mine, other), show(packed.kernel)


def test_on_a_cpu_all_sizes_of_a_case_make_one_pack() -> None:
    for name in ("step", "narrow", "norm", "softmax"):
        (packed,) = packs.packs(name, CPU, shapes=((3, 5), (64, 32), (40, 1000), (16, 16)))
        assert len(packed.regions) == 4 and packed.kernel.packed


def test_sizes_that_all_members_share_stay_numbers() -> None:
    (packed,) = packs.packs("norm", CPU, shapes=((8, 64), (24, 64)))
    assert packed.kernel.symbols == ("n0",) and packed.sizes == [(8,), (24,)]
    assert packed.kernel.axis("col").extent == 64
    (same,) = packs.packs("norm", CPU, shapes=((8, 64), (8, 64)))
    assert same.kernel.symbols == () and same.sizes == [(), ()]


def test_more_members_of_other_sizes_give_the_same_kernel() -> None:
    (few,) = packs.packs("step", CPU, shapes=((3, 5), (64, 32)))
    (many,) = packs.packs("step", CPU, shapes=((3, 5), (64, 32), (40, 1000), (5, 5)))
    assert show(few.kernel) == show(many.kernel)


def test_sizes_that_divide_by_a_unit_say_so() -> None:
    (packed,) = packs.packs("narrow", GPU, unit=16, shapes=((64, 32), (3, 5), (16, 16)))
    assert str(packed.kernel.axis("col").extent) == "n0 * 16" and packed.sizes == [(128,), (16,)]
    (odd,) = packs.packs("narrow", GPU, unit=16, shapes=((3, 5), (3, 3)))
    assert str(odd.kernel.axis("col").extent) == "n0"


def test_the_widest_block_of_programs_serves_all() -> None:
    (packed,) = packs.packs("narrow", GPU, shapes=((2, 5), (1024, 1024)))
    assert packed.kernel.axis("col").block == GPU.tile_elements
    assert packed.kernel.warps == max(k.warps for k in packed.alone)


def test_members_with_buffers_of_their_own_are_looked_up() -> None:
    (packed,) = packs.packs("narrow", GPU, shapes=((64, 64), (32, 128)))
    assert not packed.kernel.level and "middle" in emit(packed.kernel).text


def test_tiles_of_different_widths_are_unlike() -> None:
    wide, short = (packs.lowered(packs.CASES["softmax"](8, cols), GPU)[0] for cols in (1000, 30))
    assert wide.axis("col").role is Role.TILE and likeness(wide) != likeness(short)


def test_what_differs_in_more_than_sizes_is_unlike() -> None:
    x, half = b.placeholder("x", F32, (4, 8)), b.placeholder("x", F16, (4, 8))
    like = [packs.lowered(([x], [b.apply("mul", x, packs._like(factor, x))]), CPU)[0] for factor in (0.5, 0.25, 1.0)]
    others = [
        packs.lowered(([x], [b.apply("tanh", x)]), CPU)[0],
        packs.lowered(([half], [b.cast(half, F32)]), CPU)[0],
        packs.lowered(([x], [b.cast(x, F16)]), CPU)[0],
        packs.lowered(([x], [b.apply("tanh", b.permute(x, (1, 0)))]), CPU)[0],
    ]
    keys = [likeness(k) for k in (*like, *others)]
    assert len(set(keys)) == len(keys)
    with pytest.raises(UnsupportedError, match="more than their sizes"):
        pack(others[:2], "both")


def test_sizes_that_change_between_calls_stay_symbols_of_the_graph() -> None:
    batch = sym("s0")
    kernels = [packs.lowered(packs.CASES["bias_relu"](batch, cols), CPU)[0] for cols in (24, 40)]  # type: ignore[arg-type]
    kernel, sizes = pack(kernels, "pack")
    assert set(kernel.symbols) == {"n0", "s0"}
    named = [dict(zip(kernel.symbols, row, strict=True)) for row in sizes]
    assert named == [{"n0": 24, "s0": batch}, {"n0": 40, "s0": batch}]
    rows = [packs.lowered(packs.CASES["narrow"](n, 8), CPU)[0] for n in (batch, 3, batch + 1)]  # type: ignore[arg-type]
    _, sizes = pack(rows, "pack")
    assert sizes == [(batch * 8,), (24,), (batch * 8 + 8,)]
