"""Triton's interpreter, as its tests run it. In: nothing. Out: `quicker`, a context in which it takes a tenth as long.

By itself it combines one element after the other, each by a dozen calls of Python, and looks through Triton's language
again at every call of a helper.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def quicker() -> Iterator[None]:
    """The language is made ready once, and elements are combined as a GPU's lanes do it: side by side."""
    from triton import language as tl
    from triton.runtime import interpreter

    ready: list[Any] = []
    scopes: list[Any] = []

    def make_ready(function: Callable[..., Any]) -> Any:
        """What a function of a kernel sees of the language, once for all of them: a launch has nothing to undo."""
        seen = [v for v in function.__globals__.values() if inspect.ismodule(v) and v in (tl, tl.core)]
        if any(lang not in ready for lang in seen):
            scopes.append(plain[0](function))
            ready.extend(seen)
        return interpreter._LangPatchScope()

    places = (
        (interpreter, "_patch_lang", make_ready),
        (interpreter.ReduceOps, "generic_reduce", _reduce),
        (interpreter.ScanOps, "generic_scan", _scan),
    )
    plain = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, ours in places:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for (owner, name, _), theirs in zip(places, plain, strict=True):
            setattr(owner, name, theirs)
        for scope in reversed(scopes):
            scope.restore()


def _combined(ops: Any, left: Sequence[np.ndarray], right: Sequence[np.ndarray], types: Sequence[Any]) -> list:
    """What the function of a reduction or a scan makes of arrays of elements, each in its own type."""
    given = [ops.to_tensor(x, t) for x, t in zip((*left, *right), (*types, *types), strict=True)]
    found = ops.combine_fn.fn(*given)
    every = found if isinstance(found, tuple) else (found,)
    return [f.handle.data.astype(x.dtype) for f, x in zip(every, left, strict=True)]


def _reduce(self: Any, operands: tuple[Any, ...]) -> list[Any]:
    """Neighbours together, then what is left of them, until one is left: their number is a power of two."""
    types, axis = [x.dtype for x in operands], self.axis
    shape = operands[0].handle.data.shape
    held = [x.handle.data if axis is not None else x.handle.data.reshape(-1) for x in operands]
    held = [np.moveaxis(x, axis or 0, 0) for x in held]
    while len(held[0]) > 1:
        assert len(held[0]) % 2 == 0
        held = _combined(self, [x[::2] for x in held], [x[1::2] for x in held], types)
    if self.keep_dims:
        held = [x.reshape((1,) * len(shape)) if axis is None else np.moveaxis(x, 0, axis) for x in held]
    else:
        held = [x[0] for x in held]
    return [self.to_tensor(x, t) for x, t in zip(held, types, strict=True)]


def _scan(self: Any, operands: tuple[Any, ...]) -> list[Any]:
    """Each with the one before it, then with what is two before it, four, and so on."""
    types, held = [x.dtype for x in operands], [x.handle.data for x in operands]
    count = held[0].shape[self.axis]
    place = np.arange(count).reshape([-1 if d == self.axis else 1 for d in range(held[0].ndim)])
    step = 1
    while step < count:
        more = _combined(self, [np.roll(x, step, self.axis) for x in held], held, types)
        held = [np.where(place >= step, m, x) for m, x in zip(more, held, strict=True)]
        step *= 2
    return [self.to_tensor(x, t) for x, t in zip(held, types, strict=True)]
