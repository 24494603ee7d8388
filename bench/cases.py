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


def t5(device: str, batch: int, length: int) -> Made:
    """The encoder of T5-small of transformers with random weights."""
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config()).to(device).eval()
    return model, (), {"input_ids": torch.randint(0, 32000, (batch, length)).to(device)}


def llama(device: str, batch: int, length: int) -> Made:
    """Four layers of a Llama of 1B parameters (width 2048, 32 heads that share 8), with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = transformers.LlamaModel(config).to(device).eval()
    return model, (), {"input_ids": torch.randint(0, 32000, (batch, length)).to(device)}


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

LARGE: Mapping[str, Callable[[str], Made]] = {
    "bert_base_b32_s512_bf16": lambda device: bf16(bert(device, 32, 512)),
    "t5_small_b8_s512_bf16": lambda device: bf16(t5(device, 8, 512)),
    "llama_1b_4_layers_b1_s512_bf16": lambda device: bf16(llama(device, 1, 512)),
}
"""Cases for a GPU, measured there besides."""
