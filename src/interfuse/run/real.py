"""Real work while a graph is being traced. In: nothing. Out: a block in which tensors are real.

AOTAutograd calls its compilers with fake tensors switched on; measuring needs memory and arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Run the block without fake tensors, tracing or gradients, whatever the caller has switched on."""
    with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.no_grad():
        yield
