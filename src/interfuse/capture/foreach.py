"""Calls on lists of tensors, one tensor at a time. In: an ATen graph. Out: the same graph without `_foreach` operators.

Optimisers call `torch._foreach_add` and kin on all parameters at once. What such a call does to each tensor is what the
plain operator does, and eager runs it so on the CPU; as calls of their own they fuse with what follows, tensor by
tensor, and the planner packs the fused kernels again. On other devices eager launches one kernel for the list: the
first part of a call counts it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

_ARITHMETIC = dict.fromkeys(("add", "sub", "mul", "div"), "Tensor")
_UNARY = """abs acos asin atan ceil cos cosh erf exp expm1 floor frac log log10 log1p log2 neg reciprocal round
rsqrt sigmoid sign sin sinh sqrt tan tanh trunc""".split()

_SCALAR: Mapping[str, str] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), "Scalar"),
    **dict.fromkeys(("addcdiv", "addcmul", "clamp_max", "clamp_min"), "default"),
    "lerp": "Scalar",
    "pow": "Tensor_Scalar",
}
_PLAIN: Mapping[str, Mapping[str, str]] = {
    "default": dict.fromkeys(_UNARY, "default"),
    "List": {
        **_ARITHMETIC,
        "clamp_max": "Tensor",
        "clamp_min": "Tensor",
        "lerp": "Tensor",
        "maximum": "default",
        "minimum": "default",
        "pow": "Tensor_Tensor",
    },
    "Scalar": {**_SCALAR, "norm": "default"},
    "ScalarList": _SCALAR,
    "ScalarAndTensor": {"pow": "Scalar"},
    "Tensor": {name: kind for name, kind in _ARITHMETIC.items() if name != "sub"},
}
"""The overload of the plain operator, by overload and name of the one on lists."""

_NAMES = {"norm": "linalg_vector_norm"}
_KEYWORD = {"addcdiv": "value", "addcmul": "value"}
"""Operators whose last argument has to be named."""

LAUNCHES = "launches"
"""Key of FX metadata: the kernels that eager launches for a part."""


def split(gm: torch.fx.GraphModule) -> None:
    """Replace every `_foreach` call of `gm` that has a plain form by one call a tensor, in place."""
    changed = False
    for n in list(gm.graph.nodes):
        plain = _plain(n)
        if plain is not None and all(u.target is operator.getitem for u in n.users):
            _replace(n, *plain)
            changed = True
    if changed:
        gm.recompile()


def _plain(n: torch.fx.Node) -> tuple[Any, str] | None:
    """The plain operator that a call runs on each tensor, and its name; None where the call is anything else."""
    if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload) or n.target.namespace != "aten":
        return None
    packet = n.target._schema.name.removeprefix("aten::")
    name = packet.removeprefix("_foreach_")
    kind = _PLAIN.get(n.target._overloadname, {}).get(name)
    if kind is None or name == packet or not isinstance(n.meta.get("val"), (list, tuple)):
        return None
    return getattr(getattr(torch.ops.aten, _NAMES.get(name, name)), kind), name


def _replace(n: torch.fx.Node, function: Any, name: str) -> None:
    parts, values = [], n.meta["val"]
    for k, value in enumerate(values):
        args = [a[k] if isinstance(a, (list, tuple)) and len(a) == len(values) else a for a in n.args]
        kwargs = {key: a[k] if isinstance(a, (list, tuple)) else a for key, a in n.kwargs.items()}
        if name in _KEYWORD and len(args) > 3:
            kwargs[_KEYWORD[name]] = args.pop()
        if name == "norm":
            kwargs |= {"dtype": args.pop()} if len(args) > 2 else {}
        with n.graph.inserting_before(n):
            part = n.graph.call_function(function, tuple(args), kwargs)
        part.meta = {**n.meta, "val": value}
        if value.device.type != "cpu":
            part.meta[LAUNCHES] = int(k == 0)
        parts.append(part)
    for user in list(n.users):
        user.replace_all_uses_with(parts[user.args[1]])  # type: ignore[index]
        n.graph.erase_node(user)
    n.graph.erase_node(n)
