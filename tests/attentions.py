"""Attention that models spell out, to be planned without a GPU and run on one. In: query, key and value as one tensor.

x is (batch, rows, 3 * HEADS * head), as a projection gives it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

HEADS = 4


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    """Query, key and value: (batch, heads, rows, head) each."""
    batch, rows, width = x.shape
    return list(x.view(batch, rows, 3, HEADS, width // (3 * HEADS)).permute(2, 0, 3, 1, 4).unbind(0))


def merged(found: torch.Tensor) -> torch.Tensor:
    """(batch, heads, rows, head) as (batch, rows, heads * head)."""
    batch, heads, rows, head = found.shape
    return found.transpose(1, 2).reshape(batch, rows, heads * head)


def hidden_nowhere(x: torch.Tensor) -> torch.Tensor:
    """A mask of columns that hides nothing, as transformers makes it for BERT under Dynamo."""
    batch, rows, _ = x.shape
    return (torch.arange(rows, device=x.device) + 0 >= 0)[None, None, :, None].expand(batch, -1, rows, rows)


def masked(x: torch.Tensor) -> torch.Tensor:
    """What PyTorch spells out, for it has no kernel for such a mask."""
    q, k, v = halves(x)
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=hidden_nowhere(x)))


def by_hand(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return merged((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v)


def scaled_before(x: torch.Tensor) -> torch.Tensor:
    q, k, v = halves(x)
    return torch.softmax((q * 0.3) @ (k.transpose(-1, -2) * 0.5), dim=-1) @ v


def batches(x: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in halves(x))
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) * 0.25).softmax(-1), v)
