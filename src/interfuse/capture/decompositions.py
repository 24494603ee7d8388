"""The decomposition table handed to AOTAutograd. In: nothing. Out: a dict from ATen operators to the functions that
replace them.

It is empty, on purpose. Every operator that a decomposition could make fusible has a rule of its own
(capture/rules.py) that builds the same primitives inside one call. So the captured calls are exactly the kernels that
eager launches: the library path costs what eager costs, in time and memory, and the ledger's "before" is eager's own
count; halves are rounded where eager's kernel rounds them, once, and not after each part. What PyTorch itself breaks
up whatever the table says (composite operators: matmul, dropout, rms_norm on a CPU) runs in those parts in eager too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """The table for `aot_autograd(decompositions=...)`; a new dict each time."""
    return {}
