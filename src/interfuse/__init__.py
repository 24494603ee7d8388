"""Interfuse: operator fusion for PyTorch. In: a model. Out: the same model in fewer kernels, and the ledger.

`compile(model)` gives a model that behaves as the original; `explain(model, inputs)` runs both and says what each fused
region saved, measured, with the reason for every decision.
"""
from __future__ import annotations

__version__ = "0.1.0"
