"""The memory-bound kernels that are measured on a GPU. In: nothing. Out: for each name a function and its inputs.

The first 41 are the entries that other compilers were measured on; 40 more vary element types, widths (odd, prime,
vocabularies), layouts, outputs of 8 bits, and sizes from a few rows to large. What a case moves is what its tensors
hold: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]
Inputs = tuple[Any, ...]
HALF, BF16, F32, I8, F8 = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """One kernel: what it computes, a maker of its inputs, and whether it is compiled for sizes that change."""

    function: Function
    inputs: Callable[[], Inputs]
    dynamic: bool = False


def _t(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda")


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMS norm as Llama writes it."""
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layer norm over the last dimension."""
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_keep(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add, then RMS norm; the sum is an output too."""
    a = x + r
    return rms(a, w), a


def norm_keep(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add, then layer norm; the sum is an output too."""
    a = x + r
    return norm(a, w, b), a


def quantised(x: torch.Tensor, dtype: torch.dtype, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 bits with one scale a row."""
    scale = x.abs().amax(-1, keepdim=True) / most
    y = (x / scale).clamp(-most, most)
    return (y.round().to(dtype) if dtype is I8 else y.to(dtype)), scale


def wide_rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMS norm whose result stays in float32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [batch, length, heads, 128], heads moved before length."""
    turned = torch.cat((-q[..., 64:], q[..., :64]), -1)
    return (q * cos[None, :, None] + turned * sin[None, :, None]).transpose(1, 2).contiguous()


def adam(steps: list[torch.Tensor], grads: list[torch.Tensor], firsts: list[torch.Tensor]) -> list[torch.Tensor]:
    """A momentum step of many parameters."""
    return [p - 1e-3 * (0.9 * m + 0.1 * g) for p, g, m in zip(steps, grads, firsts, strict=True)]


def _sizes() -> dict[str, Case]:
    """The 30 entries at two sizes."""
    found: dict[str, Case] = {}
    for name, (b, s, h) in {"seed": (1, 2048, 4096), "big": (8, 4096, 4096)}.items():

        def add(case: str, function: Function, *shapes: tuple[int, ...], size: str = name) -> None:
            found[f"{case}/{size}"] = Case(function, lambda: tuple(_t(*shape) for shape in shapes))

        x, w, n = (b, s, h), (h,), h
        add("bias_gelu_res", lambda x, b, r: F.gelu(x + b) + r, x, w, x)
        add("add_ln", lambda x, r, w, b: norm(x + r, w, b), x, x, w, w)
        add("add_ln_keep", norm_keep, x, x, w, w)
        add("softmax_mask", lambda x, m: torch.softmax(x * 0.125 + m, -1), x, (s, h))
        add("relu_add_mul", lambda x: (F.relu(x) + 1) * 0.5, x)
        add("cumsum_scale", lambda x, s: torch.cumsum(x.float(), -1) * s, x, w)
        add("cumsum_dim0", lambda x: torch.cumsum(x.float(), 1).to(HALF), x)
        add("mean_var", lambda x: torch.var_mean(x.float(), -1), x)
        add("col_mean_var", lambda x: torch.var_mean(x.float(), (0, 1)), x)
        add("full_sum_norm", lambda x: x / x.float().pow(2).sum().sqrt(), x)
        add("swiglu", swiglu, x)
        add("rms_res", rms_keep, x, x, w)
        add("ln_transpose", lambda x, w, b: norm(x, w, b).transpose(1, 2).contiguous(), x, w, w)
        add("rms_q8", lambda x, w: quantised(wide_rms(x, w), I8, 127), x, w)
        found[f"xent/{name}"] = Case(
            lambda x, t, n=n: F.cross_entropy(x.view(-1, n).float(), t), lambda x=x: (_t(*x), _ids(x[2], x[0] * x[1]))
        )
    return found


def _others() -> dict[str, Case]:
    """The other 11 of the first entries."""
    image, wide = (32, 256, 56, 56), (4096, 131072)
    found = {
        "gn_silu/16x64x128x128": Case(
            lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), lambda: (_t(16, 64, 128, 128), _t(64), _t(64))
        ),
        "bn_relu_res": Case(
            lambda x, r, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b) + r),
            lambda: (_t(*image), _t(*image), _t(256), _t(256).abs() + 0.5, _t(256), _t(256)),
        ),
        "wide_softmax_4096x131072": Case(lambda x: torch.softmax(x, -1), lambda: (_t(*wide),)),
        "wide_xent_4096x131072": Case(
            lambda x, t: F.cross_entropy(x.float(), t), lambda: (_t(*wide), _ids(wide[1], wide[0]))
        ),
        "few_rows_softmax_8x262144": Case(lambda x: torch.softmax(x, -1), lambda: (_t(8, 262144),)),
        "rope_t": Case(rope, lambda: (_t(4, 4096, 32, 128), _t(4096, 128), _t(4096, 128))),
    }
    for m in (1, 8, 16):
        found[f"gemv_rms_swiglu_m{m}"] = Case(
            lambda x, w, g, u: (lambda h: F.silu(h @ g) * (h @ u))(rms(x, w)),
            lambda m=m: (_t(m, 4096), _t(4096), _t(4096, 14336) * 0.02, _t(4096, 14336) * 0.02),
        )
    for m in (128, 2048):
        found[f"gemm_bias_gelu_m{m}"] = Case(
            lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
            lambda m=m: (_t(m, 4096), _t(16384, 4096) * 0.02, _t(16384)),
        )
    return found


def _types() -> dict[str, Case]:
    """Other element types, and results of 8 bits."""
    found = {}
    for label, dtype in (("f32", F32), ("bf16", BF16)):
        x, w = (8192, 4096), (4096,)

        def add(case: str, function: Function, *shapes: tuple[int, ...], t: torch.dtype = dtype) -> None:
            found[case] = Case(function, lambda: tuple(_t(*shape, dtype=t) for shape in shapes))

        add(f"bias_gelu_res_{label}", lambda x, b, r: F.gelu(x + b) + r, x, w, x)
        add(f"add_ln_{label}", lambda x, r, w, b: norm(x + r, w, b), x, x, w, w)
        add(f"softmax_{label}", lambda x: torch.softmax(x, -1), x)
        add(f"rms_res_{label}", rms_keep, x, x, w)
    rows = (8192, 4096)
    found |= {
        "rms_f8": Case(lambda x, w: quantised(wide_rms(x, w), F8, 448), lambda: (_t(*rows, dtype=BF16), _t(4096))),
        "row_q8_bf16": Case(lambda x: quantised(x.float(), I8, 127), lambda: (_t(*rows, dtype=BF16),)),
        "gelu_f8": Case(lambda x: F.gelu(x).to(F8), lambda: (_t(*rows, dtype=BF16),)),
        "swiglu_block128_f8": Case(
            lambda x: quantised(swiglu(x).float().view(x.shape[0], -1, 128), F8, 448),
            lambda: (_t(*rows, dtype=BF16),),
        ),
        "ln_q8": Case(
            lambda x, w, b: quantised(norm(x, w, b).float(), I8, 127), lambda: (_t(*rows), _t(4096), _t(4096))
        ),
    }
    return found


def _widths() -> dict[str, Case]:
    """Odd and prime widths, and vocabularies."""

    def softmax(rows: int, cols: int) -> Case:
        return Case(lambda x: torch.softmax(x, -1), lambda: (_t(rows, cols),))

    def entropy(rows: int, cols: int) -> Case:
        return Case(lambda x, t: F.cross_entropy(x.float(), t), lambda: (_t(rows, cols, dtype=BF16), _ids(cols, rows)))

    def normed(rows: int, cols: int) -> Case:
        return Case(lambda x, r, w, b: norm(x + r, w, b), lambda: (_t(rows, cols), _t(rows, cols), _t(cols), _t(cols)))

    return {
        "softmax_4095": softmax(8192, 4095),
        "softmax_50257": softmax(2048, 50257),
        "softmax_151936": softmax(1024, 151936),
        "xent_50257": entropy(4096, 50257),
        "xent_151936": entropy(2048, 151936),
        "add_ln_4093": normed(8192, 4093),
        "add_ln_769": normed(32768, 769),
        "cumsum_4093": Case(lambda x: torch.cumsum(x.float(), -1), lambda: (_t(8192, 4093),)),
    }


def _small() -> dict[str, Case]:
    """Few rows, and many short ones."""

    def one(function: Function, *shapes: tuple[int, ...]) -> Case:
        return Case(function, lambda: tuple(_t(*shape) for shape in shapes))

    return {
        "add_ln_16x1024": one(lambda x, r, w, b: norm(x + r, w, b), (16, 1024), (16, 1024), (1024,), (1024,)),
        "softmax_32x512": one(lambda x: torch.softmax(x, -1), (32, 512)),
        "rms_res_1x4096": one(rms_keep, (1, 4096), (1, 4096), (4096,)),
        "bias_gelu_res_1x4096": one(lambda x, b, r: F.gelu(x + b) + r, (1, 4096), (4096,), (1, 4096)),
        "softmax_65536x64": one(lambda x: torch.softmax(x, -1), (65536, 64)),
        "add_ln_131072x128": one(lambda x, r, w, b: norm(x + r, w, b), (131072, 128), (131072, 128), (128,), (128,)),
    }


def _layouts() -> dict[str, Case]:
    """Transposed and channels-last inputs, middle axes, statistics over several axes."""
    image = (32, 256, 56, 56)
    return {
        "ln_of_transposed": Case(lambda x, w, b: norm(x.mT, w, b), lambda: (_t(8, 4096, 2048), _t(4096), _t(4096))),
        "gn_silu_channels_last": Case(
            lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)),
            lambda: (_t(16, 64, 128, 128).to(memory_format=torch.channels_last), _t(64), _t(64)),
        ),
        "bn_statistics": Case(lambda x: torch.var_mean(x.float(), (0, 2, 3)), lambda: (_t(*image),)),
        "softmax_middle": Case(lambda x: torch.softmax(x, 1), lambda: (_t(64, 256, 2048),)),
        "cumsum_reverse": Case(lambda x: x.float().flip(-1).cumsum(-1).flip(-1), lambda: (_t(8192, 4096),)),
    }


def _wholes() -> dict[str, Case]:
    """Backward passes, gathers, many like groups, sizes that change."""
    rows, tensors = (8192, 4096), [(1024, 1024)] * 24 + [(1024,)] * 76
    back = torch.ops.aten.native_layer_norm_backward.default

    def many() -> Inputs:
        return tuple([_t(*shape, dtype=F32) for shape in tensors] for _ in range(3))

    def backward() -> Inputs:
        x, w = _t(*rows), _t(4096)
        _, mean, rstd = torch.ops.aten.native_layer_norm.default(x, (4096,), w, w, 1e-5)
        return _t(*rows), x, mean, rstd, w, w

    return {
        "ln_backward": Case(lambda g, x, m, s, w, b: back(g, x, (4096,), m, s, w, b, [True] * 3), backward),
        "bias_gradient": Case(lambda g: g.float().sum(0).to(HALF), lambda: (_t(65536, 4096),)),
        "embeddings_ln": Case(
            lambda i, p, e, q, w, b: norm(F.embedding(i, e) + F.embedding(p, q), w, b),
            lambda: (_ids(30522, 32, 512), _ids(512, 32, 512), _t(30522, 768), _t(512, 768), _t(768), _t(768)),
        ),
        "log_probability": Case(
            lambda x, t: torch.log_softmax(x.float(), -1).gather(-1, t), lambda: (_t(8192, 32000), _ids(32000, 8192, 1))
        ),
        "step_of_100": Case(adam, many),
        "concat_26": Case(lambda *parts: torch.cat([F.relu(p) for p in parts], -1), lambda: tuple(_many(26))),
        "add_ln_dynamic": Case(
            lambda x, r, w, b: norm(x + r, w, b), lambda: (_t(*rows), _t(*rows), _t(4096), _t(4096)), dynamic=True
        ),
        "softmax_dynamic": Case(lambda x: torch.softmax(x, -1), lambda: (_t(*rows),), dynamic=True),
    }


def _many(count: int) -> list[torch.Tensor]:
    return [_t(16384, 64) for _ in range(count)]


FIRST: Mapping[str, Case] = {**_sizes(), **_others()}
MORE: Mapping[str, Case] = {**_types(), **_widths(), **_small(), **_layouts(), **_wholes()}
CASES: Mapping[str, Case] = {**FIRST, **MORE}
"""Every case by name, FIRST and MORE."""
