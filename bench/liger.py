"""Liger's hand-written kernels as peers. In: a case's name. Out: a function of the case's arguments, or None.

Liger is not needed: without the package liger-kernel there are none. Where it lacks a part of a case (the sum before a
layer norm, the SiLU behind a group norm) PyTorch runs that part, as it does for people who use Liger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]


def liger_form(case: str) -> Function | None:
    """What a user of Liger would write for a case of bench/memory_cases.py."""
    if find_spec("liger_kernel") is None:
        return None
    beginnings = [b for b in FORMS if case.startswith(b) and case not in UNLIKE]
    return FORMS[max(beginnings, key=len)] if beginnings else None


def _softmax(x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_softmax

    return liger_softmax(x)


def _entropy(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(x.view(-1, x.shape[-1]), t)


def _rms(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_fused_add_rms_norm

    return liger_fused_add_rms_norm(x, r, w, 1e-6)


def _norm_keep(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_layer_norm

    a = x + r
    return liger_layer_norm(a, w, b, 1e-5), a


def _norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _norm_keep(x, r, w, b)[0]


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_swiglu

    return liger_swiglu(*x.chunk(2, -1))


def _group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_group_norm

    return F.silu(liger_group_norm(x, w, b, x.shape[1], 8, 1e-5))


FORMS: Mapping[str, Function] = {
    "softmax_": _softmax,
    "wide_softmax_": _softmax,
    "few_rows_softmax_": _softmax,
    "xent": _entropy,
    "wide_xent": _entropy,
    "rms_res": _rms,
    "add_ln": _norm,
    "add_ln_keep": _norm_keep,
    "swiglu/": _swiglu,
    "gn_silu/": _group_norm,
}
"""By the beginning of the cases' names."""

UNLIKE = ("softmax_mask/seed", "softmax_mask/big", "softmax_middle")
"""Cases of other operators under such names."""
