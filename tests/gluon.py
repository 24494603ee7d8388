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
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

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

    def __init__(self, data: np.ndarray, late: Callable[[], None]) -> None:
        self.data, self._late = data, late

    def index(self, k: int) -> Shared:
        return Shared(self.data[k], self._late)

    def load(self, layout: Layout) -> Tensor:
        layout.check(self.data.shape)
        return Tensor(self.data.copy())

    def store(self, x: Tensor) -> None:
        assert x.shape == self.data.shape and x.dtype == self.data.dtype
        self._late()
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
        self.count, self.left, self.phase = 0, 0, 0


class Barriers:
    """Some barriers."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, k: int) -> Barrier:
        return self.all[k]


class Machine:
    """One launch: its programs in turn. Who writes results lets everybody else go on first, as far as they can; or who
    writes to shared memory does.
    """

    def __init__(self, programs: int, warps: int, results_late: bool) -> None:
        self.programs, self.warps, self.results_late, self.failed = programs, warps, results_late, False
        self.here, self.changed = threading.local(), threading.Condition()
        self.waits: dict[int, tuple[Barrier, int] | None] = {}
        self.alive: set[int] = set()

    def blocked(self, thread: int) -> bool:
        """Whether a thread cannot go on, or waits for all others."""
        if thread not in self.waits:
            return False
        wait = self.waits[thread]
        return wait is None or wait[0].phase & 1 == wait[1]

    def _until(self, wait: tuple[Barrier, int] | None) -> None:
        """Wait for a barrier's phase, or until nobody else can go on. StuckError where a barrier is not completed."""
        me = threading.get_ident()
        with self.changed:
            self.waits[me] = wait
            self.changed.notify_all()

            def over() -> bool:
                alone = all(map(self.blocked, self.alive - {me}))
                return (
                    self.failed or not self.blocked(me) or (alone and (wait is None or None not in self.waits.values()))
                )

            self.changed.wait_for(over)
            stuck = self.failed or (wait is not None and self.blocked(me))
            del self.waits[me]
        if stuck:
            raise StuckError("a barrier that nobody completes")

    def wait(self, barrier: Barrier, phase: int) -> None:
        self._until((barrier, phase))

    def arrive(self, barrier: Barrier, count: int = 1) -> None:
        with self.changed:
            assert barrier.left >= count, "more arrivals than the barrier counts"
            barrier.left -= count
            if barrier.left == 0:
                barrier.phase, barrier.left = barrier.phase + 1, barrier.count
                self.changed.notify_all()

    def late(self) -> None:
        """Before something is written to shared memory."""
        if not self.results_late:
            self._until(None)

    def store(self, place: Pointer, x: Tensor) -> None:
        if self.results_late:
            self._until(None)
        at, x = np.broadcast_arrays(place.at, x.data)
        place.memory[at] = x

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...], layout: Any) -> Shared | Barriers:
        if isinstance(layout, Barrier):
            return Barriers(shape[0])
        return Shared(np.full(shape, _poison(dtype), dtype), self.late)

    def ask(self, to: Shared, place: Pointer) -> None:
        """An element is asked for: poison until it is there."""
        to.data[...] = _poison(to.data.dtype)
        self.here.asked.append((to, place))

    def answer(self, barrier: Barrier, increment_count: bool) -> None:
        """What the thread asked for is there, and then all threads of its warps arrive."""
        assert not increment_count
        self.late()
        for to, place in self.here.asked:
            to.data[...] = np.broadcast_to(place.memory[place.at], to.data.shape)
        self.here.asked.clear()
        self.arrive(barrier, 32 * self.here.warps)

    def specialize(self, parts: Sequence[tuple[Any, Any]], warps: Sequence[int], registers: Sequence[int]) -> None:
        """Each part by warps of its own; all of them end."""
        errors: list[BaseException] = []
        program, begun = self.here.program, threading.Event()

        def run(part: Any, arguments: Any, own: int) -> None:
            self.here.program, self.here.warps, self.here.asked = program, own, []
            begun.wait()
            try:
                with np.errstate(all="ignore"):
                    part(*arguments)
            except BaseException as error:  # told by the thread that waits for all
                errors.append(error)
                self.failed = True
            finally:
                with self.changed:
                    self.alive.discard(threading.get_ident())
                    self.changed.notify_all()

        assert len(parts) == len(warps) + 1 == len(registers) + 1
        each = zip(parts, (self.warps, *warps), strict=True)
        threads = [threading.Thread(target=run, args=(*part, own), daemon=True) for part, own in each]
        for t in threads:
            t.start()
        self.alive = {t.ident for t in threads if t.ident is not None}
        begun.set()
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
            store=self.store,
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
            allocate_shared_memory=self.allocate,
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


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.left = count


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
    text: str, entry: str, arrays: Sequence[np.ndarray], programs: int, warps: int, results_late: bool = True
) -> None:
    """Run so many programs of the module's entry on arrays, whose memory is read and written as it lies.

    StuckError where somebody waits for what never comes.
    """
    machine = Machine(programs, warps, results_late)
    space = machine.namespace()
    exec(compile(IMPORTS.sub("", text), f"{entry}.gluon.py", "exec"), space)
    pointers = [Pointer(a.reshape(-1)) for a in arrays]
    with np.errstate(all="ignore"):
        for program in range(programs):
            machine.here.program = program
            space[entry](*pointers)
