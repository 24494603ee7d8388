"""What eager does for one ATen call beside its values. In: an FX node. Out: kernel launches, the operand it views,
effects.

Launch counts are those of PyTorch's CUDA kernels, to the best of what its sources say: one by default, none for views
and for memory that is only allocated, more for composites that run as several kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interfuse.capture.foreach import LAUNCHES
from interfuse.ir.node import Node

_NONE = frozenset(
    (
        "copy_",  # eager wrote there at once: only a functional graph copies
        "_unsafe_view",
        "empty",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "empty_like",
        "lift_fresh",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "_assert_scalar",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_assert_tensor_metadata",
        "_reshape_alias",
    )
)
_SEVERAL: dict[str, int] = {
    "logsumexp": 8,
    "native_group_norm": 3,
    "native_layer_norm_backward": 2,
    "masked_fill": 2,
    "index_put": 3,
    "index_add": 2,
    "scatter": 2,
    "scatter_add": 2,
    "slice_scatter": 2,
    "slice_backward": 2,
    "select_backward": 2,
    "select_scatter": 2,
    "constant_pad_nd": 2,
    "nonzero": 3,
    "sort": 2,
    "topk": 2,
    "mse_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "binary_cross_entropy_with_logits": 5,
    "embedding_dense_backward": 3,
    "convolution_backward": 2,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "_scaled_dot_product_cudnn_attention_backward": 3,
    "native_group_norm_backward": 3,
    "_fused_rms_norm_backward": 2,
}
_VIEWS = frozenset(("_unsafe_view", "_reshape_alias"))
_COLLECTIVE = ("_c10d_functional", "c10d", "c10d_functional", "symm_mem", "_dtensor")
_DROPOUT = (
    torch.nn.functional.dropout,
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.functional.dropout1d,
    torch.nn.functional.dropout2d,
    torch.nn.functional.dropout3d,
    torch.nn.AlphaDropout,
    torch.nn.functional.alpha_dropout,
    torch.dropout,
)


def is_idle_dropout(n: torch.fx.Node) -> bool:
    """True for the clone that stands for a dropout in eval mode, which eager passes its input through."""
    stack = n.meta.get("source_fn_stack")
    if n.target is not torch.ops.aten.clone.default or not stack:
        return False
    return stack[-1][1] == "dropout" or any(stack[-1][1] is d for d in _DROPOUT)


def _operator(n: torch.fx.Node) -> str:
    return n.target._schema.name.partition("::")[2] if isinstance(n.target, torch._ops.OpOverload) else ""


def _argument(n: torch.fx.Node, name: str) -> Any:
    """The value of an operator's argument, its default where none is given; None where it has no such argument."""
    for k, a in enumerate(n.target._schema.arguments):  # type: ignore[union-attr]
        if a.name == name:
            return n.args[k] if k < len(n.args) else n.kwargs.get(name, a.default_value)
    return None


def _aliased(n: torch.fx.Node) -> int | None:
    """The argument that the results are views of: the one that the schema marks as aliased and not written to."""
    if not isinstance(n.target, torch._ops.OpOverload):
        return None
    if _operator(n) in _VIEWS:
        return 0
    marked = enumerate(a.alias_info for a in n.target._schema.arguments)
    return next((k for k, alias in marked if alias is not None and not alias.is_write), None)


def viewed(n: torch.fx.Node, operands: Sequence[Node], leaf: Callable[[torch.fx.Node], Any]) -> int | None:
    """The operand that the call's results are views of, or None."""
    k = 0 if is_idle_dropout(n) else _aliased(n)
    if k is None or k >= len(n.args) or not isinstance(n.args[k], torch.fx.Node):
        return None
    node = leaf(n.args[k])  # type: ignore[arg-type]
    return list(operands).index(node) if isinstance(node, Node) else None


def count(n: torch.fx.Node, target: str) -> int:
    """Kernels that eager launches on a GPU for the call."""
    name = _operator(n)
    if LAUNCHES in n.meta:
        return int(n.meta[LAUNCHES])
    if (
        name in _NONE
        or _aliased(n) is not None
        or is_idle_dropout(n)
        or (not name and target.startswith(("operator.", "torch.sym")))
    ):
        return 0
    if name == "convolution":
        return 1 if n.args[2] is None else 2  # the bias is added by a kernel of its own
    if name == "roll":
        return max(len(_argument(n, "dims")), 1)  # one dimension after another
    return _SEVERAL.get(name, 1)


def is_joined(n: torch.fx.Node) -> bool:
    """True for a part of a call on a list of tensors whose one launch another part counts."""
    return n.meta.get(LAUNCHES) == 0


def _inner_effect(n: torch.fx.Node) -> str:
    for a in n.all_input_nodes:
        if a.op == "get_attr":
            inner = a.graph.owning_module
            for part in str(a.target).split("."):
                inner = getattr(inner, part)  # type: ignore[assignment]
            if isinstance(inner, torch.fx.GraphModule):
                found = (effect(m) for m in inner.graph.nodes if m.op == "call_function")
                first = next((e for e in found if e), "")
                if first:
                    return first
    return ""


def effect(n: torch.fx.Node) -> str:
    """ "" or random, mutation, collective: why the call must keep its place and count.

    A call that runs graphs of its own (a branch, a loop) has the first effect that these have.
    """
    if isinstance(n.target, torch._ops.HigherOrderOperator):
        name = n.target.name()
        if "rng_state" in name:
            return "random"
        return "mutation" if "mutation" in name or name == "with_effects" else _inner_effect(n)
    if not isinstance(n.target, torch._ops.OpOverload):
        return ""
    if torch.Tag.nondeterministic_seeded in n.target.tags:
        return "" if _argument(n, "dropout_p") == 0 else "random"
    if n.target.namespace in _COLLECTIVE:
        return "collective"
    return "mutation" if n.target._schema.is_mutable or n.is_impure() else ""
