"""Views of buffers at run time. In: nodes and layouts of tensors at hand. Out: tensors that show them as other nodes.

A movement (reshape, permute, expand, slice) of a tensor is one strided view where the layout allows it, computed once
when the program is built; where it does not, or where the tensor lies otherwise than captured, torch's own operators
move it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards

from interfuse.ir.index import Dim, Expr, evaluate, text
from interfuse.ir.layout import Layout, view_of
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES

Sizes = Mapping[str, int]
Step = Callable[[list[Any]], None]
"""One step of a program: reads and writes slots. Slot 0 holds the values of the size symbols."""

Strides = tuple[int, ...]

shown = guards._reinterpret_tensor  # type: ignore[attr-defined]
"""(tensor, shape, strides, offset) -> a view that begins so many elements further on: half of as_strided's time."""


def static(dims: Sequence[Dim]) -> tuple[int, ...] | None:
    """The dims as plain integers, or None where one has a symbol in it."""
    return tuple(dims) if all(isinstance(d, int) for d in dims) else None  # type: ignore[arg-type]


def concrete(dims: Sequence[Dim], sizes: Sizes) -> tuple[int, ...]:
    """The dims with the size symbols' values put in."""
    return tuple(evaluate(d, sizes) if isinstance(d, Expr) else d for d in dims)


@functools.lru_cache(maxsize=4096)
def sized(dims: tuple[Dim, ...]) -> Callable[[Sizes], Strides]:
    """`concrete` for these dims as one Python function, for what is worked out at each call."""
    numbers = "".join(f"{text(d, lambda name: f'sizes[{name!r}]')}, " for d in dims)
    function: Callable[[Sizes], Strides] = eval(f"lambda sizes: ({numbers})")
    return function


def chain_to(node: Node, held: Collection[Node]) -> tuple[Node, tuple[Node, ...]] | None:
    """The held node that `node` is a movement of, with the movements from it to `node`; None where there is none."""
    chain: list[Node] = []
    while node not in held:
        if node.op not in MOVES:
            return None
        chain.append(node)
        node = node.inputs[0]
    return node, tuple(reversed(chain))


def layout_through(base: Layout, chain: Sequence[Node]) -> Layout | None:
    """The layout in which the chain's end shows a buffer laid out as `base`; None where only a copy can."""
    layout: Layout | None = base
    for node in chain:
        if layout is None:
            return None
        layout = view_of(node, layout)
    return layout


def moved(tensor: torch.Tensor, chain: Sequence[Node], sizes: Sizes) -> torch.Tensor:
    """The tensor moved by torch's own operators: a view where they can make one, else a copy."""
    for node in chain:
        shape = concrete(node.shape, sizes)
        if node.op == "reshape":
            tensor = tensor.reshape(shape)
        elif node.op == "permute":
            tensor = tensor.permute(node.attr("order"))
        elif node.op == "expand":
            tensor = tensor.expand(shape)
        else:
            starts, steps = concrete(node.attr("starts"), sizes), node.attr("steps")
            for axis, (start, step, size) in enumerate(zip(starts, steps, shape, strict=True)):
                if step < 0:
                    tensor, start, step = tensor.flip(axis), tensor.shape[axis] - 1 - start, -step
                stop = start + (size - 1) * step + 1 if size else start
                if (start, stop, step) != (0, tensor.shape[axis], 1):
                    tensor = torch.ops.aten.slice.Tensor(tensor, axis, start, stop, step)
    return tensor


def view_step(source: int, target: int, base: Layout | None, chain: tuple[Node, ...]) -> Step:
    """A step that puts the movement `chain` of slot `source` into slot `target`.

    `base` is the layout that the source is expected to have. One strided view where everything is known now and the
    tensor lies as expected, torch's own movements else.
    """
    layout = None if base is None else layout_through(Layout(base.strides), chain)
    expected = None if base is None else static(base.strides)
    shape = static(chain[-1].shape)
    strides = None if layout is None else static(layout.strides)
    if layout is None or expected is None or shape is None or strides is None or not isinstance(layout.offset, int):

        def move(slots: list[Any]) -> None:
            slots[target] = moved(slots[source], chain, slots[0])

        return move
    offset = layout.offset

    def view(slots: list[Any]) -> None:
        tensor = slots[source]
        if tensor.stride() == expected:
            slots[target] = shown(tensor, shape, strides, offset)
        else:
            slots[target] = moved(tensor, chain, slots[0])

    return view


def same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """True where strides a and b put every element of `shape` at the same place: sizes of 1 may have any stride."""
    return 0 in shape or all(d == 1 or s == t for d, s, t in zip(shape, a, b, strict=True))


def copied(tensor: torch.Tensor, strides: Strides) -> torch.Tensor:
    """A copy with these strides. Dimensions of stride 0 hold one element."""
    kept = tensor
    repeated = [k for k, s in enumerate(strides) if s == 0]
    for axis in repeated:
        kept = kept.narrow(axis, 0, min(1, kept.shape[axis]))
    out = torch.empty_strided(kept.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(kept)
    return out.expand(tensor.shape) if repeated else out


def relaid(tensor: torch.Tensor, strides: Strides) -> torch.Tensor:
    """The tensor with these strides: itself, a view where only sizes of 1 differ, else a copy."""
    if tensor.stride() == strides:
        return tensor
    if same_layout(tensor.shape, tensor.stride(), strides):
        return tensor.as_strided(tensor.shape, strides)
    return copied(tensor, strides)
