"""Products of f32 on tensor cores. In: the axes and the sides of products. Out: what a program takes of each axis.

Tensor cores take f32 as two numbers, of which three products are added up, and each step's sum is added to what is
carried in f32: more than one row is sooner multiplied so than without them, with a smaller error. The first side goes
to them through registers, the second through shared memory, where it must lie along what both have in common.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from interfuse.ir.dtypes import F32
from interfuse.ir.node import Node
from interfuse.lower.axes import power
from interfuse.lower.kernel import Axis, Load, Loop, Role, Stmt, step_along
from interfuse.lower.target import Target
from interfuse.passes.few_rows import FEW, SMALL

SPLIT = F32
"""The type that tensor cores take as two numbers."""

Sizes = tuple[int, int, int, int]
"""Parts of what is in common, rows, features, and what they have in common in each part."""

TILES: tuple[tuple[int, int, int], ...] = ((128, 64, 8), (64, 64, 2), (64, 32, 0))
"""What a program takes of the first axis and of the second, and the programs that every unit must have; the first
fitting one is taken.
"""

THIN = (FEW, 32, 0)
"""The same of rows and features where there are few rows, or no unit has two programs of the others."""

DEEP = 32
"""What a program takes of the common axis at once. Tensor cores cut digits as they add up a step, so that every result
is smaller than it should be, by 0.9 units in 2^23 and by 1.5 with twice as long steps: means over many results, whose
other errors cancel, would be less exact than the library's.
"""


def can_split(linear: Node, target: Target) -> bool:
    """True for a product of f32 that tensor cores multiply."""
    sizes = sizes_of(linear)
    return sizes is not None and pays(sizes, target)


def sizes_of(linear: Node) -> Sizes | None:
    """The sizes of a product of f32; None for any other, and where they are not known."""
    sizes = tuple(d for d in (*linear.inputs[0].shape[:1], *linear.inputs[1].shape) if isinstance(d, int))
    return (1, *sizes) if linear.dtype is SPLIT and len(sizes) == 3 else None  # type: ignore[return-value]


def pays(sizes: Sizes, target: Target) -> bool:
    """True for sizes that are worth their tensor cores: less is added up as soon."""
    return target.splits and sizes[1] > 1 and math.prod(sizes) > SMALL


def in_vectors(side: Load, axes: Iterable[Axis]) -> bool:
    """True where two elements of a side at least can be read together: one by one they feed no tensor core."""
    steps = [step_along(side, a.symbol) for a in axes]
    return 1 in steps and all(s is not None and (s == 1 or s % 2 == 0) for s in steps)


def blocks(
    parts: int,
    row: Axis,
    feature: Axis,
    col: Axis,
    rows: Collection[Load],
    weights: Collection[Load],
    target: Target,
) -> tuple[tuple[Axis, ...], bool]:
    """The axes with what a program takes of each in one of `parts`, of several matrices as much as of one; and whether
    features come first.
    """
    lie = [all(step_along(s, col.symbol) == 1 for s in sides) for sides in (rows, weights)]
    turned = lie == [True, False]
    first, second = (feature, row) if turned else (row, feature)
    tall, wide, _ = THIN
    if _extent(row) > FEW and parts * _programs(row, tall) * _programs(feature, wide) > target.programs:
        tiles = TILES if target.dot > FEW else TILES[1:]  # threads of others have no registers for the tallest
        tiles = tiles if any(lie) else TILES[-1:]
        programs = [parts * _programs(first, t[0]) * _programs(second, t[1]) for t in tiles]
        tall, wide, _ = next(t for t, n in zip(tiles, programs, strict=True) if n >= t[2] * target.programs)
    else:
        turned = False
    wide = max(FEW, wide // power(len(weights)))
    many, features = (wide, tall) if turned else (tall, wide)
    many = min(many, max(FEW, power(_extent(row))))
    col = replace(col, role=Role.SERIAL, block=DEEP)
    return (replace(row, block=many), replace(feature, block=features), col), turned


def _extent(axis: Axis) -> int:
    return int(axis.extent)  # type: ignore[arg-type]


def _programs(axis: Axis, block: int) -> int:
    return -(-_extent(axis) // block)


def late(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements with the loop first: it needs none of those before it, nor have threads registers for them."""
    (loop,) = (s for s in body if isinstance(s, Loop))
    return (loop, *(s for s in body if s is not loop))


def is_split(body: Iterable[Stmt]) -> bool:
    """True where what is multiplied is f32."""
    loads = (s for loop in body if isinstance(loop, Loop) for s in loop.body if isinstance(s, Load))
    return any(s.out.dtype is SPLIT for s in loads)
