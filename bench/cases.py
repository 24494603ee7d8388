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


def gpt2(device: str, batch: int, length: int) -> Made:
    """GPT-2 (124M) of transformers with random weights, logits of every position."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).to(device).eval()
    return model, (), {"input_ids": torch.randint(0, 50000, (batch, length)).to(device)}


def bf16(made: Made) -> Made:
    """The same with weights and activations in bfloat16."""
    model, inputs, kwargs = made
    return model.to(torch.bfloat16), inputs, kwargs


_FLOAT32: Mapping[str, Callable[[str], Made]] = {
    "minilm_b8_s128": lambda device: minilm(device, 8, 128),
    "minilm_b1_s128": lambda device: minilm(device, 1, 128),
    "bert_base_b1_s128": lambda device: bert(device, 1, 128),
    "bert_base_b8_s128": lambda device: bert(device, 8, 128),
    "gpt2_b1_s128": lambda device: gpt2(device, 1, 128),
}


def _in_bf16(make: Callable[[str], Made]) -> Callable[[str], Made]:
    return lambda device: bf16(make(device))


CASES: Mapping[str, Callable[[str], Made]] = {
    **_FLOAT32,
    **{f"{name}_bf16": _in_bf16(make) for name, make in _FLOAT32.items()},
}
"""Every case by name; in float32 but for those named bf16."""
