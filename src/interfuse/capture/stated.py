"""What tracing states otherwise than PyTorch's kernels give it. In: an ATen graph. Out: its metadata, set right.

Two things are not what the graph says. On the CPU, a norm of narrow values with f32 parameters keeps its statistics in
f32, where tracing states the narrow type; so do the inputs that carry them to a backward graph, whose norm insists on
f32. And the calls that checkpointing puts around random operators carry no metadata of their own.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

_FORWARD = {"native_layer_norm": (1, 2), "native_group_norm": (1, 2)}
"""The statistics among the results of each norm."""

_BACKWARD = {"native_layer_norm_backward": (3, 4), "native_group_norm_backward": (2, 3)}
"""The statistics among the arguments of its gradient."""

_PASS_ON = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.view.default)


def correct(gm: torch.fx.GraphModule) -> None:
    """Set meta["val"] of the nodes of `gm` right, in place."""
    for n in gm.graph.nodes:
        if n.op != "call_function":
            continue
        if n.meta.get("val") is None and isinstance(n.target, torch._ops.HigherOrderOperator):
            if "rng_state" in n.target.name():
                n.meta["val"] = _under_rng_state(n)
            continue
        name = n.target._schema.name.removeprefix("aten::") if isinstance(n.target, torch._ops.OpOverload) else ""
        if name in _FORWARD and _is_mixed(n, 0):
            n.meta["val"] = tuple(v.float() if k in _FORWARD[name] else v for k, v in enumerate(n.meta["val"]))
            for user in n.users:
                if user.target is operator.getitem and user.args[1] in _FORWARD[name]:
                    _widen(user)
        if name in _BACKWARD and _is_mixed(n, 1):
            for k in _BACKWARD[name]:
                _widen(_source(n.args[k]))  # type: ignore[arg-type]


def _source(n: torch.fx.Node) -> torch.fx.Node:
    """The node that `n` only passes on."""
    while n.op == "call_function" and n.target in _PASS_ON:
        n = n.args[0]  # type: ignore[assignment]
    return n


def _widen(n: torch.fx.Node) -> None:
    """State f32 for a statistic, and for what passes it on."""
    n.meta["val"] = n.meta["val"].float()
    for user in n.users:
        if user.target in _PASS_ON:
            _widen(user)


def _is_mixed(n: torch.fx.Node, data: int) -> bool:
    """True where a norm on the CPU takes narrow data, argument number `data`, and f32 parameters."""
    given = [a.meta["val"] for a in n.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    x = n.args[data].meta["val"]  # type: ignore[union-attr]
    narrow = (torch.bfloat16, torch.float16)
    return x.device.type == "cpu" and x.dtype in narrow and any(t.dtype is torch.float32 for t in given)


def _under_rng_state(n: torch.fx.Node) -> Any:
    """What a call of an operator under a given state of the random numbers gives: the operator's own results, after the
    state itself where the call saves it.
    """
    assert isinstance(n.target, torch._ops.HigherOrderOperator), n
    args: Any
    args, kwargs = torch.fx.node.map_arg(
        (n.args, {k: v for k, v in n.kwargs.items() if k != "rng_state"}), lambda m: m.meta["val"]
    )
    first = next(k for k, a in enumerate(args) if isinstance(a, torch._ops.OpOverload))
    found = args[first](*args[first + 1 :], **kwargs)
    if n.target.name() != "run_and_save_rng_state":
        return found
    state = (u.meta.get("val") for u in n.users if u.target is operator.getitem and u.args[1] == 0)
    return next(state, None), found
