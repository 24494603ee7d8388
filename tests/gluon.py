"""A small interpreter for generated Gluon text. In: the text of kernels whose rows go by way of a ring, arrays. Out:
what they write.

Triton's own interpreter has no Gluon. Here every sort of warps is a thread, barriers count as a GPU's do, and shared
memory holds nothing of use until somebody writes there: what is asked for is poison until it is waited for. A barrier
that nobody arrives at ends in `StuckError`. Programs run one after the other.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

SECONDS = 20.0
"""How long a wait may take; a chunk is there within a thousandth of it."""

SLOW = 0.0
"""Seconds of a store."""

IMPORTS = re.compile(r"^(import|from) .*$", re.MULTILINE)


class StuckError(AssertionError):
    """Somebody waits for what never comes."""


class Tensor:
    """An array of one element type; what meets it is converted as a GPU does, plain numbers take its type."""

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.data.astype(dtype))

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.data[at])

    def __neg__(self) -> Tensor:
        return Tensor(-self.data)

    def __invert__(self) -> Tensor:
        return Tensor(~self.data)


def _sign(name: str, compute: Callable[[Any, Any], Any]) -> None:
    def signed(self: Tensor, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        return Tensor(compute(self.data, _plain(other)))

    def reflected(self: Tensor, other: Any) -> Tensor:
        return Tensor(compute(_plain(other), self.data))

    setattr(Tensor, f"__{name}__", signed)
    setattr(Tensor, f"__r{name}__", reflected)


for _name, _compute in (
    ("add", np.add),
    ("sub", np.subtract),
    ("mul", np.multiply),
    ("floordiv", np.floor_divide),
    ("truediv", np.divide),
    ("mod", np.remainder),
    ("and", np.bitwise_and),
    ("or", np.bitwise_or),
    ("xor", np.bitwise_xor),
    ("lt", np.less),
    ("le", np.less_equal),
    ("gt", np.greater),
    ("ge", np.greater_equal),
    ("eq", np.equal),
    ("ne", np.not_equal),
):
    _sign(_name, _compute)


class Pointer:
    """Places in the memory of an array."""

    def __init__(self, memory: np.ndarray, at: Any = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.at + _plain(more))

    __radd__ = __add__


def _plain(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


class Shared:
    """Some shared memory."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def index(self, k: int) -> Shared:
        return Shared(self.data[k])

    def load(self, layout: Layout) -> Tensor:
        layout.check(self.data.shape)
        return Tensor(self.data.copy())

    def store(self, x: Tensor) -> None:
        assert x.shape == self.data.shape and x.dtype == self.data.dtype
        self.data[...] = x.data


class Layout:
    """How threads lie over a tensor: what it says must be true of the shape."""

    def __init__(self, *said: Any, **more: Any) -> None:
        self.said = said

    def check(self, shape: tuple[int, ...]) -> None:
        """Fail where the layout is not one of this shape."""


class Linear(Layout):
    """A layout by what each bit moves an element by: all together reach every element once."""

    def check(self, shape: tuple[int, ...]) -> None:
        *bases, _, whole = self.said
        reached = [np.zeros(len(whole), dtype=int)]
        for base in (b for some in bases for b in some):
            reached += [place + base for place in reached]
        assert tuple(whole) == shape and len({tuple(p) for p in reached}) == math.prod(shape) == len(reached)


class Slice(Layout):
    """One dimension of a layout."""


class Barrier:
    """A barrier that `count` arrivals complete, again and again."""

    def __init__(self) -> None:
        self.lock, self.count, self.left, self.phase = threading.Condition(), 0, 0, 0


class Barriers:
    """Some barriers."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, k: int) -> Barrier:
        return self.all[k]


class Machine:
    """One launch: its programs in turn."""

    def __init__(self, programs: int, warps: int, seconds: float) -> None:
        self.programs, self.warps, self.seconds, self.failed = programs, warps, seconds, False
        self.here = threading.local()

    def wait(self, barrier: Barrier, phase: int) -> None:
        with barrier.lock:
            done = barrier.lock.wait_for(lambda: self.failed or barrier.phase & 1 != phase, self.seconds)
        if self.failed or not done:
            raise StuckError("a barrier that nobody completes")

    def arrive(self, barrier: Barrier, count: int = 1) -> None:
        with barrier.lock:
            assert barrier.left >= count, "more arrivals than the barrier counts"
            barrier.left -= count
            if barrier.left == 0:
                barrier.phase, barrier.left = barrier.phase + 1, barrier.count
                barrier.lock.notify_all()

    def ask(self, to: Shared, place: Pointer) -> None:
        """An element is asked for: poison until it is there."""
        to.data[...] = _poison(to.data.dtype)
        self.here.asked.append((to, place))

    def answer(self, barrier: Barrier, increment_count: bool) -> None:
        """What the thread asked for is there, and then all threads of its warps arrive."""
        assert not increment_count
        for to, place in self.here.asked:
            to.data[...] = np.broadcast_to(place.memory[place.at], to.data.shape)
        self.here.asked.clear()
        self.arrive(barrier, 32 * self.here.warps)

    def specialize(self, parts: Sequence[tuple[Any, Any]], warps: Sequence[int], registers: Sequence[int]) -> None:
        """Each part by warps of its own; all of them end."""
        errors: list[BaseException] = []
        program = self.here.program

        def run(part: Any, arguments: Any, own: int) -> None:
            self.here.program, self.here.warps, self.here.asked = program, own, []
            try:
                with np.errstate(all="ignore"):
                    part(*arguments)
            except BaseException as error:  # told by the thread that waits for all
                errors.append(error)
                self.failed = True

        assert len(parts) == len(warps) + 1 == len(registers) + 1
        each = zip(parts, (self.warps, *warps), strict=True)
        threads = [threading.Thread(target=run, args=(*part, own), daemon=True) for part, own in each]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise next((e for e in errors if not isinstance(e, StuckError)), errors[0])

    def namespace(self) -> dict[str, Any]:
        """What generated text finds under the names that it imports."""
        gl = SimpleNamespace(
            **{f"{kind}{n}": np.dtype(f"{kind}{n}") for kind in ("int", "uint") for n in (8, 16, 32, 64)},
            **{f"float{n}": np.dtype(f"float{n}") for n in (16, 32)},
            bfloat16=np.dtype(ml_dtypes.bfloat16),
            constexpr=lambda x: x,
            static_range=range,
            program_id=lambda axis: self.here.program,
            num_programs=lambda axis: self.programs,
            arange=lambda start, end, layout: Tensor(np.arange(start, end, dtype=np.int32)),
            full=lambda shape, x, dtype, layout: Tensor(np.full(shape, x, dtype)),
            cast=lambda x, dtype: Tensor(np.asarray(_plain(x)).astype(dtype)),
            load=lambda p: Tensor(p.memory[p.at]),
            store=_store,
            sum=lambda x, axis, keep_dims: Tensor(x.data.sum(axis, keepdims=keep_dims, dtype=x.dtype)),
            max=lambda x, axis, keep_dims: Tensor(x.data.max(axis, keepdims=keep_dims)),
            min=lambda x, axis, keep_dims: Tensor(x.data.min(axis, keepdims=keep_dims)),
            reduce=_reduce,
            reshape=lambda x, shape: Tensor(x.data.reshape(shape)),
            maximum=lambda a, b, propagate_nan: Tensor(np.maximum(_plain(a), _plain(b))),
            minimum=lambda a, b, propagate_nan: Tensor(np.minimum(_plain(a), _plain(b))),
            where=_elementwise(lambda c, a, b: np.where(c, a, b)),
            fma=_elementwise(lambda a, b, c: np.float32(np.float64(a) * b + c)),
            div_rn=_elementwise(np.divide),
            abs=_elementwise(np.abs),
            exp2=_elementwise(np.exp2),
            sqrt_rn=_elementwise(np.sqrt),
            rsqrt=_elementwise(lambda x: 1 / np.sqrt(x)),
            allocate_shared_memory=_allocate,
            warp_specialize=self.specialize,
            BlockedLayout=Layout,
            DistributedLinearLayout=Linear,
            SliceLayout=Slice,
            SwizzledSharedLayout=Layout,
        )
        math_of = {name: _elementwise(getattr(np, name)) for name in ("exp", "exp2", "tanh", "log")}
        return {
            "gluon": SimpleNamespace(jit=lambda f: f),
            "gl": gl,
            "tl": SimpleNamespace(PropagateNan=SimpleNamespace(ALL=None)),
            "libdevice": SimpleNamespace(**math_of, fast_dividef=_elementwise(np.divide)),
            "mbarrier": SimpleNamespace(MBarrierLayout=Barrier, init=_init, wait=self.wait, arrive=self.arrive),
            "async_copy": SimpleNamespace(async_copy_global_to_shared=self.ask, mbarrier_arrive=self.answer),
        }


def _poison(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind in "fV" else np.iinfo(dtype).max


def _allocate(dtype: np.dtype[Any], shape: tuple[int, ...], layout: Any) -> Shared | Barriers:
    return Barriers(shape[0]) if isinstance(layout, Barrier) else Shared(np.full(shape, _poison(dtype), dtype))


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.left = count


def _store(place: Pointer, x: Tensor) -> None:
    time.sleep(SLOW)
    at, x = np.broadcast_arrays(place.at, x.data)
    place.memory[at] = x


def _elementwise(compute: Callable[..., Any]) -> Callable[..., Tensor]:
    def call(*args: Any) -> Tensor:
        kind = next((a.dtype for a in args[::-1] if isinstance(a, Tensor)), np.dtype("float32"))
        with np.errstate(all="ignore"):
            return Tensor(np.asarray(compute(*map(_plain, args))).astype(kind))

    return call


def _reduce(x: Tensor, axis: int, combine: Callable[[Any, Any], Any], keep_dims: bool) -> Tensor:
    first, *rest = (Tensor(part) for part in np.split(x.data, x.shape[axis], axis))
    for part in rest:
        first = combine(first, part)
    assert keep_dims
    return first


def launch(
    text: str, entry: str, arrays: Sequence[np.ndarray], programs: int, warps: int, seconds: float = SECONDS
) -> None:
    """Run so many programs of the module's entry on arrays, whose memory is read and written as it lies.

    StuckError where a wait takes longer than these `seconds`.
    """
    machine = Machine(programs, warps, seconds)
    space = machine.namespace()
    exec(compile(IMPORTS.sub("", text), f"{entry}.gluon.py", "exec"), space)
    pointers = [Pointer(a.reshape(-1)) for a in arrays]
    with np.errstate(all="ignore"):
        for program in range(programs):
            machine.here.program = program
            space[entry](*pointers)
