"""The models that are measured. In: a device. Out: for each name a function giving (model, positional, keyword
inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from demo.model import embedder

Made = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def minilm(device: str, batch: int, length: int) -> Made:
    """all-MiniLM-L6-v2 with its real weights, on random token ids."""
    model = embedder(device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30000, (batch, length), generator=generator).to(device)
    return model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert(device: str, batch: int, length: int) -> Made:
    """BERT-base of transformers with random weights."""
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).to(device).eval()
    return model, (), {"input_ids": torch.randint(0, 30000, (batch, length)).to(device)}


CASES: Mapping[str, Callable[[str], Made]] = {
    "minilm_b8_s128": lambda device: minilm(device, 8, 128),
    "minilm_b1_s128": lambda device: minilm(device, 1, 128),
    "bert_base_b1_s128": lambda device: bert(device, 1, 128),
    "bert_base_b8_s128": lambda device: bert(device, 8, 128),
}
"""Every case by name; all in float32."""
