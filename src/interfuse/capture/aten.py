"""The table of lowerings. In: one ATen call. Out: the IR nodes of its results, or UnsupportedError with the reason.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interfuse.base.errors import UnsupportedError
from interfuse.capture.symbols import Symbols
from interfuse.ir.graph import Call
from interfuse.ir.node import Node


def lower(n: torch.fx.Node, call: Call, leaf: Callable[[torch.fx.Node], Any], symbols: Symbols) -> tuple[Node, ...]:
    """The nodes of the call's results."""
    raise UnsupportedError(f"no lowering for {call.target} yet")
