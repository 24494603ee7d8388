"""One kernel launch as a step of a program. In: a kernel, its launcher, slots. Out: a closure over slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from interfuse.base.errors import LaunchError
from interfuse.ir.index import Dim, maximum, unwrap, wrap
from interfuse.ir.index import symbols as symbols_of
from interfuse.ir.layout import extent
from interfuse.lower.kernel import Kernel
from interfuse.run import cpu
from interfuse.run.allocate import allocator
from interfuse.run.apart import checker
from interfuse.run.views import Sizes, Step, Strides, relaid, shown, sized, static

Launcher = Callable[[Sequence[torch.Tensor], Sequence[int]], Any]
"""Runs a built kernel on the tensors behind its parameters (scratch left out) and its symbols' values, in order."""


@dataclass(frozen=True)
class Operand:
    """What a kernel reads: its slot, and the strides and type that the kernel was built for. The kernel is given the
    address `start` elements behind the tensor's first one; the tensor ends `length` elements from there.
    """

    slot: int
    strides: tuple[Dim, ...]
    dtype: torch.dtype
    start: Dim = 0
    length: Dim = 0


@dataclass(frozen=True)
class Pages:
    """What comes from the pool, which keeps at most `pool_bytes` (run/pool.py): outputs of the graph, and `slots`."""

    pool_bytes: int = 0
    slots: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Result:
    """What a kernel writes: its slot, how it lies there, and whether outputs of the graph are or show it."""

    slot: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: torch.dtype
    device: torch.device
    is_output: bool = False

    @property
    def bytes(self) -> Dim:
        """Bytes from its first element to the end of its last one."""
        return extent(self.shape, self.strides, self.dtype.itemsize)

    def maker(self, pages: Pages) -> Callable[[Sizes], torch.Tensor]:
        """The function that gives it memory."""
        pool_bytes = pages.pool_bytes if self.is_output or self.slot in pages.slots else 0
        return allocator(self.shape, self.strides, self.dtype, self.device, pool_bytes)


@dataclass(frozen=True)
class Launch:
    """A kernel with its launcher, operands and results in the order of its parameters."""

    kernel: Kernel
    launcher: Launcher
    reads: tuple[Operand, ...]
    outs: tuple[Result, ...]

    @property
    def is_empty(self) -> bool:
        """True where no result ever has an element."""
        results = [p for p in self.kernel.params if p.mode == "out"]
        return bool(results) and all(0 in p.shape for p in results)

    def step(self, pages: Pages) -> Step:
        """Allocate the results and launch; where no result has an element, nothing is launched."""
        fresh = tuple((r.slot, r.maker(pages)) for r in self.outs)
        if self.is_empty:

            def allocate(slots: list[Any]) -> None:
                for i, make in fresh:
                    slots[i] = make(slots[0])

            return allocate
        if isinstance(self.launcher, cpu.Launcher):
            return on_addresses(self.reads, fresh, self.kernel.symbols, self.launcher.at)
        return on_tensors(self.reads, fresh, self.kernel.symbols, self.launcher)


@dataclass(frozen=True)
class Over:
    """What a kernel writes over the tensor in slot `slot`; slot `result` then holds the value."""

    slot: int
    result: int
    strides: tuple[Dim, ...]
    dtype: torch.dtype


Part = Union[Operand, Result, Over]
"""What stands behind one parameter."""


@dataclass(frozen=True)
class PartsLaunch:
    """A kernel with its launcher and what stands behind its parameters in order, for a packed one member by member.

    `sizes` are the values of its symbols, `lengths` the bytes that the parts reach over, likewise.
    """

    launcher: Launcher
    parts: tuple[Part, ...]
    sizes: tuple[Dim, ...]
    lengths: tuple[Dim, ...]

    @property
    def outs(self) -> tuple[Result, ...]:
        """The results that get memory of their own, each once: many members may write parts of one."""
        return tuple(dict.fromkeys(p for p in self.parts if isinstance(p, Result)))

    def step(self, pages: Pages) -> Step:
        """Allocate the results and launch once. What is read several times is looked at once."""
        parts = dict.fromkeys(self.parts)
        reads, over = [p for p in parts if isinstance(p, Operand)], [p for p in parts if isinstance(p, Over)]
        place: dict[Part, int] = {part: k for k, part in enumerate((*reads, *self.outs, *over))}  # type: ignore[misc]
        order = [place[part] for part in self.parts]
        symbols = sorted({s.name for d in (*self.sizes, *self.lengths) for s in symbols_of(d)})
        known, sizes_at = static(self.sizes), sized(self.sizes)
        launcher = self.launcher
        by_address = isinstance(launcher, (cpu.Launcher, cpu.PackLauncher))
        launch: Callable[[Sequence[Any], Sequence[int]], Any] = launcher.at if by_address else launcher  # type: ignore[attr-defined]
        check = self._check(place) if over else None

        def run(bases: Sequence[Any], values: Sequence[int]) -> None:
            named = dict(zip(symbols, values, strict=True))
            if check is not None:
                check(bases if by_address else [t.data_ptr() for t in bases], named)
            launch([bases[k] for k in order], known if known is not None else sizes_at(named))

        fresh = tuple((r.slot, r.maker(pages)) for r in self.outs)
        return (on_addresses if by_address else on_tensors)(reads, fresh, symbols, run, over=over)

    def _check(self, place: Mapping[Part, int]) -> Callable[[Sequence[int], Sizes], None]:
        """A check that what is written over is nobody else's; `place` tells where each part's address stands."""
        over = {p.slot for p in self.parts if isinstance(p, Over)}
        looked_at = {
            p: length
            for p, length in zip(self.parts, self.lengths, strict=True)
            if isinstance(p, Over) or (isinstance(p, Operand) and p.slot not in over)
        }
        places, lengths = [place[p] for p in looked_at], tuple(looked_at.values())
        known, lengths_at = static(lengths), sized(lengths)
        check = checker([isinstance(p, Over) for p in looked_at])

        def look(bases: Sequence[int], sizes: Sizes) -> None:
            check([bases[k] for k in places], known if known is not None else lengths_at(sizes))

        return look


Fresh = tuple[tuple[int, Callable[[Sizes], torch.Tensor]], ...]
"""Slots to fill, each with the function that gives the memory."""


def on_tensors(
    reads: Sequence[Operand], fresh: Fresh, symbols: Sequence[str], run: Launcher, over: Sequence[Over] = ()
) -> Step:
    """A step that calls `run` on the operands, the results, which it allocates, what is written over, and the values of
    the symbols.
    """
    given = tuple((o.slot, static(o.strides) or (), sized(o.strides), o.dtype) for o in reads)
    windows = tuple((k, sized((o.start, unwrap(maximum(o.length, 0))))) for k, o in enumerate(reads) if o.start != 0)
    ahead = static(tuple(unwrap(wrap(o.start) * o.dtype.itemsize) for o in reads)) if windows and not over else None
    again = getattr(run, "again", None) if ahead is not None else None

    def launch(slots: list[Any]) -> None:
        sizes, tensors = slots[0], []
        for i, known, strides_at, dtype in given:
            tensor, strides = slots[i], known or strides_at(sizes)
            if tensor.stride() != strides or tensor.dtype is not dtype:
                tensor = fitted(tensor, strides, dtype)
            tensors.append(tensor)
        for i, make in fresh:
            slots[i] = made = make(sizes)
            tensors.append(made)
        for part in over:
            slots[part.result] = place = _place(slots, part)
            tensors.append(place)
        if again is not None and again(tensors, ahead):
            return  # a view of what is read takes longer to make than an address
        for k, window_at in windows:
            start, length = window_at(sizes)
            tensors[k] = shown(tensors[k], (length,), (1,), start)
        run(tensors, [sizes[name] for name in symbols])

    return launch


def on_addresses(
    reads: Sequence[Operand],
    fresh: Fresh,
    symbols: Sequence[str],
    run: Callable[[Sequence[int], Sequence[int]], Any],
    arena: Callable[[Sizes, list[int]], torch.Tensor] | None = None,
    over: Sequence[Over] = (),
) -> Step:
    """As `on_tensors`, on the CPU addresses of the tensors. `arena` adds more addresses and gives what to hold on to.

    This is most of what a small kernel costs, so it goes through the tensors once and makes nothing else: what is both
    read and written over, as an optimiser's state is, has been looked at when it was read.
    """
    given = tuple((o.slot, static(o.strides) or (), sized(o.strides), o.dtype, *_ahead(o)) for o in reads)
    found = {(o.slot, o.strides, o.dtype): k for k, o in enumerate(reads) if o.start == 0}
    places = tuple((part, found.get((part.slot, part.strides, part.dtype))) for part in over)

    def launch(slots: list[Any]) -> None:
        sizes, bases = slots[0], []
        held: Any = None
        for i, known, strides_at, dtype, start, start_at in given:
            tensor, strides = slots[i], known or strides_at(sizes)
            if tensor.stride() != strides or tensor.dtype is not dtype:
                held = held, (tensor := fitted(tensor, strides, dtype))
            bases.append(tensor.data_ptr() + (start if start_at is None else start_at(sizes)[0]))
        for i, make in fresh:
            slots[i] = made = make(sizes)
            bases.append(made.data_ptr())
        for part, k in places:
            if k is None or held is not None:
                slots[part.result] = place = _place(slots, part)
                bases.append(place.data_ptr())
            else:
                slots[part.result] = slots[part.slot]
                bases.append(bases[k])
        if arena is not None:
            held = held, arena(sizes, bases)
        run(bases, [sizes[name] for name in symbols] if symbols else ())

    return launch


def _ahead(operand: Operand) -> tuple[int, Callable[[Sizes], Strides] | None]:
    """The bytes from the tensor's address to the one that the kernel is given: as a number, or where sizes tell it as
    a function of these.
    """
    (start,) = static((operand.start,)) or (None,)
    if start is not None:
        return start * operand.dtype.itemsize, None
    return 0, sized((unwrap(wrap(operand.start) * operand.dtype.itemsize),))


def _place(slots: list[Any], part: Over) -> torch.Tensor:
    """The tensor that is written over. LaunchError where it does not lie as the kernel writes it."""
    tensor: torch.Tensor = slots[part.slot]
    strides = static(part.strides) or sized(part.strides)(slots[0])
    if tensor.stride() != strides or tensor.dtype is not part.dtype:
        raise LaunchError("what is written in place lies otherwise than captured; the captured calls write it.")
    return tensor


def fitted(tensor: torch.Tensor, strides: Strides, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as a kernel expects it. A kernel's addresses assume strides and type: what lies otherwise is copied,
    never misread. PyTorch states f32 for some results of narrow calls (batch norm's statistics) that are narrow."""
    return relaid(tensor if tensor.dtype is dtype else tensor.to(dtype), strides)
