"""Loads and calls CPU kernels. In: an artifact and its Kernel. Out: a Launcher that takes tensors.

The library calls OpenMP through the libgomp that torch has loaded already (same SONAME), so kernels share torch's
threads and follow torch.set_num_threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Sequence

import torch

from interfuse.base.errors import CacheError, LaunchError
from interfuse.build.cpp import Artifact
from interfuse.lower.kernel import Kernel


class Launcher:
    """A loaded kernel. Calling it runs it to the end on the caller's thread and OpenMP's; the GIL is free meanwhile."""

    __slots__ = ("_counts", "_function", "_library", "_pack_buffers", "_pack_sizes", "name")

    def __init__(self, library: ctypes.CDLL, kernel: Kernel) -> None:
        self.name = kernel.name
        self._library = library
        self._function = library[kernel.name]
        self._function.restype = None
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_char_p)  # packed bytes: cheaper to make than ctypes arrays
        self._counts = sum(p.mode != "scratch" for p in kernel.params), len(kernel.symbols)
        self._pack_buffers = struct.Struct(f"{self._counts[0]}P").pack
        self._pack_sizes = struct.Struct(f"{self._counts[1]}l").pack

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        """Run the kernel on the buffers of its parameters in order, scratch left out; a data_ptr() is element 0.

        `sizes` are the kernel's symbols in order. Shapes, strides and types are the caller's to get right. LaunchError
        for a wrong count of either.
        """
        try:
            buffers, packed = self._pack_buffers(*[t.data_ptr() for t in tensors]), self._pack_sizes(*sizes)
        except struct.error:
            raise LaunchError(
                f"{self.name} takes {self._counts[0]} buffers and {self._counts[1]} sizes, not "
                f"{len(tensors)} and {len(sizes)}: pass them as its parameters stand."
            ) from None
        self._function(buffers, packed)


def load(artifact: Artifact, kernel: Kernel) -> Launcher:
    """The Launcher of a built kernel. CacheError where the library is not the one that was built, LaunchError where it
    cannot be loaded."""
    try:
        data = artifact.path.read_bytes()
    except OSError as error:
        raise CacheError(f"{artifact.path} cannot be read ({error}); build the kernel again.") from error
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise CacheError(f"{artifact.path} does not match its hash; remove its folder and build the kernel again.")
    try:
        return Launcher(ctypes.CDLL(str(artifact.path)), kernel)
    except (OSError, AttributeError) as error:
        raise LaunchError(f"{artifact.path} cannot be loaded ({error}); remove it and build it again.") from error
