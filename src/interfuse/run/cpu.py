"""Loads and calls CPU kernels. In: an artifact and its Kernel. Out: a Launcher that takes tensors.

The library calls OpenMP through the libgomp that torch has loaded already (same SONAME), so kernels share torch's
threads and follow torch.set_num_threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from interfuse.base.errors import CacheError, DataError, LaunchError
from interfuse.base.knobs import Knobs
from interfuse.build.cache import open_cache
from interfuse.build.cpp import Artifact, build
from interfuse.emit.cpp_names import entry
from interfuse.emit.trampoline import NAME
from interfuse.lower.kernel import Kernel

T = TypeVar("T")


class Trampoline:
    """Runs several kernels in one C call (emit/trampoline.py)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._function = library[NAME]
        self._function.restype = ctypes.c_int
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)

    def __call__(self, table: Sequence[int], bases: int, sizes: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """A function that runs `table` on so many bases (addresses) and sizes; DataError as from a Launcher."""
        function, packed = self._function, struct.pack(f"{len(table)}l", *table)
        pack_bases, pack_sizes = struct.Struct(f"{bases}P").pack, struct.Struct(f"{sizes}l").pack

        def run(bases: Sequence[int], sizes: Sequence[int]) -> None:
            if function(packed, pack_bases(*bases), pack_sizes(*sizes)):
                raise _outside("a kernel")

        return run


class Launcher:
    """A loaded kernel. Calling it runs it to the end on the caller's thread and OpenMP's; the GIL is free meanwhile."""

    __slots__ = ("_counts", "_function", "_library", "_pack_buffers", "_pack_sizes", "is_checked", "name", "trampoline")

    def __init__(self, library: ctypes.CDLL, kernel: Kernel, trampoline: Trampoline | None = None) -> None:
        self.name, self.trampoline = kernel.name, trampoline
        self._library, self.is_checked = library, bool(kernel.picks)
        self._function = library[entry(kernel.name)]
        self._function.restype = ctypes.c_int if self.is_checked else None
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_char_p)  # packed bytes: cheaper to make than ctypes arrays
        self._counts = sum(p.mode != "scratch" for p in kernel.params), len(kernel.symbols)
        self._pack_buffers = struct.Struct(f"{self._counts[0]}P").pack
        self._pack_sizes = struct.Struct(f"{self._counts[1]}l").pack

    @property
    def address(self) -> int:
        """Where the kernel's function lies, for a table of the trampoline."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Run the kernel on the buffers of its parameters in order, scratch left out; a data_ptr() is element 0.

        `sizes` are the kernel's symbols in order. Shapes, strides and types are the caller's to get right. LaunchError
        for a wrong count of either, DataError where an index in the data lies outside what it picks from.
        """
        try:
            buffers, packed = self._pack_buffers(*[t.data_ptr() for t in tensors]), self._pack_sizes(*sizes)
        except struct.error:
            raise LaunchError(
                f"{self.name} takes {self._counts[0]} buffers and {self._counts[1]} sizes, not "
                f"{len(tensors)} and {len(sizes)}: pass them as its parameters stand."
            ) from None
        if self._function(buffers, packed):
            raise _outside(self.name)

    def at(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Run the kernel on the addresses of its buffers; both counts are the caller's to get right. DataError as when
        called."""
        if self._function(self._pack_buffers(*addresses), self._pack_sizes(*sizes)):
            raise _outside(self.name)


def _outside(name: str) -> DataError:
    return DataError(f"{name} met an index outside what it picks from; look at the indices it was given.")


class PackLauncher:
    """A loaded packed kernel: one call runs it for any number of members, as Launcher does for one."""

    __slots__ = ("_each", "_function", "_library", "name")

    def __init__(self, library: ctypes.CDLL, kernel: Kernel) -> None:
        self.name = kernel.name
        self._library = library
        self._function = library[entry(kernel.name)]
        self._function.restype = ctypes.c_int if kernel.picks else None
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)
        self._each = sum(p.mode != "scratch" for p in kernel.params), len(kernel.symbols)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Run on the members' buffers, the first member's in parameter order, then the second's, ...; `sizes` likewise.

        LaunchError where the counts do not make whole members, or not the same number of them; DataError as from a
        Launcher.
        """
        self.at([t.data_ptr() for t in tensors], sizes)

    def at(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """The same on addresses."""
        buffers, symbols = self._each
        members = len(addresses) // buffers
        if len(addresses) != members * buffers or len(sizes) != members * symbols:
            raise LaunchError(
                f"{self.name} takes {buffers} buffers and {symbols} sizes a member, not {len(addresses)} and "
                f"{len(sizes)} in all: pass them as its parameters stand, member by member."
            )
        table = struct.pack(f"{len(addresses)}P", *addresses)
        if self._function(table, struct.pack(f"{len(sizes)}l", *sizes), members):
            raise _outside(self.name)


def load(artifact: Artifact, kernel: Kernel, trampoline: Trampoline | None = None) -> Launcher | PackLauncher:
    """The Launcher of a built kernel. CacheError where the library is not the one that was built, LaunchError where it
    cannot be loaded."""
    if kernel.packed:
        return loaded(artifact, lambda library: PackLauncher(library, kernel))
    return loaded(artifact, lambda library: Launcher(library, kernel, trampoline))


def load_trampoline(artifact: Artifact) -> Trampoline:
    """The built trampoline. Errors as `load`."""
    return loaded(artifact, Trampoline)


def loaded(artifact: Artifact, made: Callable[[ctypes.CDLL], T]) -> T:
    """What `made` makes of a built library. Errors as `load`."""
    try:
        data = artifact.path.read_bytes()
    except OSError as error:
        raise CacheError(f"{artifact.path} cannot be read ({error}); build the kernel again.") from error
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise CacheError(f"{artifact.path} does not match its hash; remove its folder and build the kernel again.")
    try:
        return made(ctypes.CDLL(str(artifact.path)))
    except (OSError, AttributeError) as error:
        raise LaunchError(f"{artifact.path} cannot be loaded ({error}); remove it and build it again.") from error


def routine(name: str, text: str, knobs: Knobs, result: type | None = None) -> Callable[[bytes, bytes], Any]:
    """The function `name` of a C++ text that is no kernel's, built or found in the cache of `knobs`: it takes packed
    addresses and packed numbers, and gives a `result`, or nothing. Errors as of building, and as `load`.
    """
    (artifact,) = build([(name, text)], knobs, open_cache(knobs))
    found: Any = loaded(artifact, lambda library: library[name])
    found.restype, found.argtypes = result, (ctypes.c_char_p, ctypes.c_char_p)
    return found  # type: ignore[no-any-return]
