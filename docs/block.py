"""The model that docs/cli.md runs. In: nothing. Out: a small feed-forward block and its input."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A residual feed-forward block, as in a transformer."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, width] to the same."""
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


def block() -> tuple[nn.Module, torch.Tensor]:
    """The model and its input, as the command line takes them."""
    torch.manual_seed(0)
    return Block().eval(), torch.randn(8, 128, 256)
