"""The table of lowerings, put to use. In: one ATen call. Out: the nodes of its results, or UnsupportedError with the
reason.

The rules themselves are in the aten_* files, by kind. What a rule gives is checked against the types and shapes that
PyTorch stated for the call, so a wrong rule costs a fusion and never a result of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interfuse.base.errors import GraphError
from interfuse.capture import (
    aten_activation,
    aten_indirect,
    aten_join,
    aten_linear,
    aten_loss,
    aten_movement,
    aten_norm,
    aten_pointwise,
    aten_reduce,
)
from interfuse.capture.rules import RULES
from interfuse.capture.symbols import Symbols
from interfuse.capture.template import flatten
from interfuse.capture.torch_types import from_torch
from interfuse.capture.values import Maker, unsupported
from interfuse.ir import build
from interfuse.ir.graph import Call
from interfuse.ir.layout import base_of
from interfuse.ir.node import Node

KINDS = (
    aten_pointwise,
    aten_activation,
    aten_loss,
    aten_movement,
    aten_join,
    aten_indirect,
    aten_reduce,
    aten_norm,
    aten_linear,
)
"""The modules whose rules fill the table."""

_WHY: tuple[tuple[tuple[str, ...], str], ...] = (
    (("scaled_dot_product", "_flash_attention", "_efficient_attention"), "attention runs as one library kernel"),
    (("convolution", "cudnn_convolution", "mkldnn_convolution"), "a convolution runs as a library kernel"),
    (
        ("bmm", "baddbmm", "matmul", "_grouped_mm", "addmv", "mv", "dot"),
        "a matrix product that is no plain linear layer",
    ),
    (
        ("scatter", "index_put", "index_add", "index_fill", "index_copy", "embedding_dense_backward"),
        "an indirect store has no kernel family yet",
    ),
    (("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted"), "memory without values"),
)


def why_not(target: str) -> str:
    """The reason to record for an operator that has no rule."""
    space, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if space == "higher_order":
        written = name.startswith("auto_functionalized")
        return "an operator that writes its operands" if written else "a call that runs a graph of its own"
    if space == "aten":
        for names, reason in _WHY:
            if any(name == n or name.startswith((n + "_", "_" + n)) for n in names):
                return reason
    return f"no lowering for {target} yet"


def lower(n: torch.fx.Node, call: Call, leaf: Callable[[torch.fx.Node], Any], symbols: Symbols) -> tuple[Node, ...]:
    """The nodes of the call's results, in order. UnsupportedError says why there are none."""
    rule = RULES.get(call.target)
    if rule is None:
        raise unsupported(why_not(call.target))

    def given(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            val = a.meta.get("val")
            if isinstance(val, torch.SymInt) and symbols.is_bound([symbols.dim(val)]):
                return symbols.dim(val)
            if not isinstance(val, torch.Tensor) and isinstance(leaf(a), Node):
                raise unsupported("a number that only running gives")
            return leaf(a)
        if isinstance(a, (list, tuple)):
            return [given(x) for x in a]
        return from_torch(a) if isinstance(a, torch.dtype) else a

    vals = flatten(n.meta["val"])
    make = Maker([from_torch(v.dtype) for v in vals], [symbols.dims(v.shape) for v in vals], call.source, call.target)
    try:
        args, kwargs = _positional(n)
        found = rule(make, *map(given, args), **{k: given(v) for k, v in kwargs.items()})
    except GraphError as error:
        raise unsupported(f"outside the operator table's rules: {error}".removesuffix(".")) from None
    outs = found if isinstance(found, tuple) else (found,)
    if [(o.dtype, o.shape) for o in outs] != list(zip(make.dtypes, make.shapes, strict=True)):
        raise unsupported("its lowering and PyTorch do not agree on type or shape")
    return outs if call.view_of is not None else tuple(_own(o, call) for o in outs)


def _positional(n: torch.fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """The node's arguments, those that its schema lets stand by position all so: names are left for the others only."""
    args, named = list(n.args), dict(n.kwargs)
    places = [a for a in n.target._schema.arguments if not a.kwarg_only]  # type: ignore[union-attr]
    last = max((k for k, a in enumerate(places) if a.name in named), default=-1)
    args += [named.pop(a.name, a.default_value) for a in places[len(args) : last + 1]]
    return args, named


def _own(out: Node, call: Call) -> Node:
    """A result that only moves elements, as the copy that it is: a value with its own buffer. Constants need none."""
    base = base_of(out)
    if base.op in ("const", "iota") or (base is out and out not in map(base_of, call.operands)):
        return out
    return build.apply("copy", out, source=call.source, hint=out.hint)
