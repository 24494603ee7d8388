"""Attention on a GPU, by PyTorch's kernels. In: query, key, value, a mask or none. Out: the weighted values.

Each is called by its own name, whatever PyTorch's rules would choose, and gives its result as the plan wants it to lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.ir.build import apply, permute
from interfuse.ir.node import Node
from interfuse.run.attention import meaning as plain_meaning

Run = Callable[[Sequence[torch.Tensor], Mapping[str, Any]], torch.Tensor]


def flash(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> torch.Tensor:
    """FlashAttention, for 16-bit types. Tensors (batch, heads, rows, head); attrs are scale, causal and form."""
    routine = torch.ops.aten._scaled_dot_product_flash_attention.default
    return _laid(routine(*_aligned(tensors), 0.0, attrs["causal"], False, scale=attrs["scale"])[0], attrs)


def efficient(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> torch.Tensor:
    """The memory-efficient kernel, which takes float32 too, and a mask of (batch, heads, rows, keys) that is added.
    Else tensors and attrs as for `flash`.
    """
    query, key, value = _aligned(tensors[:3])
    mask = _padded(tensors[3]) if len(tensors) > 3 else None
    routine = torch.ops.aten._scaled_dot_product_efficient_attention.default
    return _laid(routine(query, key, value, mask, False, 0.0, attrs["causal"], scale=attrs["scale"])[0], attrs)


def cudnn(tensors: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> torch.Tensor:
    """cuDNN's, for 16-bit types. Tensors and attrs as for `flash`."""
    routine = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    return _laid(routine(*_aligned(tensors), None, False, 0.0, attrs["causal"], False, scale=attrs["scale"])[0], attrs)


ALIGNED = 16
"""Bytes."""

SWITCHES: Mapping[str, Callable[[], bool]] = {
    "flash.attention": lambda: bool(
        torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.is_flash_attention_available()
    ),
    "efficient.attention": lambda: bool(torch.backends.cuda.mem_efficient_sdp_enabled()),
    "cudnn.attention": lambda: bool(torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cudnn.is_available()),
}
"""Whether this PyTorch has each kernel, and the user has not switched it off."""


def meaning(operands: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    """The node that they compute."""
    node = plain_meaning(operands, attrs)
    return apply("copy", permute(node, (0, 2, 1, 3))) if attrs["form"] == "turned" else node


def _aligned(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, copied where a row does not lie in one piece that begins at a multiple of `ALIGNED` bytes: so many
    are read at once, and a CUDA error that an address raises ends the process.
    """
    return [t if _is_aligned(t) else t.clone(memory_format=torch.contiguous_format) for t in tensors]


def _is_aligned(t: torch.Tensor) -> bool:
    whole = all(s * t.element_size() % ALIGNED == 0 for s in t.stride()[:-1])
    return whole and t.stride(-1) == 1 and t.data_ptr() % ALIGNED == 0


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """The mask, copied into rows of whole `ALIGNED` bytes where it does not lie so; what is repeated is copied once."""
    if _is_aligned(mask):
        return mask
    once = mask[tuple(slice(0, 1) if s == 0 else slice(None) for s in mask.stride())]
    step = ALIGNED // mask.element_size()
    rows = mask.new_empty((*once.shape[:-1], -(-mask.shape[-1] // step) * step))
    rows = rows[..., : mask.shape[-1]]
    rows.copy_(once)
    return rows.expand(mask.shape)


def _laid(out: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    """The result in the form asked for; the kernels leave heads beside each other, so that most forms copy nothing."""
    if attrs["form"] == "heads first":
        return out.contiguous()
    turned = out.transpose(1, 2).contiguous()
    return turned if attrs["form"] == "turned" else turned.transpose(1, 2)
