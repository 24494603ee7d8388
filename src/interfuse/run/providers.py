"""Routines that stand for IR nodes. In: tensors and attributes. Out: one tensor; and what it means as IR.

A provider is a routine that PyTorch or the vendor wrote, such as oneDNN's linear with its activation, or a function of
our own that no schedule makes (run/attention.py), offered to the planner beside the captured calls. Weights are read
where they lie at each call: nothing is packed or copied ahead. Operands of a product are x, weight, then bias where
there is one, then the residual for the routines that add one. x and the residual may have any number of leading
dimensions. Sums and what follows them are in f32; the result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from interfuse.base.errors import OptionError
from interfuse.base.knobs import current
from interfuse.capture.torch_types import to_torch
from interfuse.ir.build import apply, cast, like, linear, reshape
from interfuse.ir.dtypes import ALL, DType, compute_type
from interfuse.ir.index import product
from interfuse.ir.node import Node
from interfuse.run import attention_gpu
from interfuse.run.attention import attention
from interfuse.run.attention import meaning as attention_meaning
from interfuse.run.linear import linear as linear_of_tiles
from interfuse.run.linear import missing as no_tiles
from interfuse.run.real import real_tensors

Tensors = Sequence[torch.Tensor]
Attrs = Mapping[str, Any]

_FUSED = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "tanh": ("tanh", ""),
}
"""Activations that oneDNN applies before it rounds: our name to its name and algorithm."""
_AFTER: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "swish": partial(torch.nn.functional.silu, inplace=True),
}
"""Activations done in place afterwards: oneDNN's relu turns NaN into 0, its sigmoid is 0 from -87 on, where there are
still numbers to tell it from 0.
"""
ACTIVATIONS = (*_FUSED, *_AFTER)
"""Values of the attribute `activation` of onednn.linear."""


@dataclass(frozen=True)
class Provider:
    """One routine. `run(tensors, attrs)` gives its result, `meaning(nodes, attrs)` the node that it stands for.

    `device` is the kind of device that it runs on ("" any), `dtypes` the element types that it takes (all operands of
    one), `residual` whether the last operand is added, `cost` the cost class, `launches(attrs)` the kernels of a run.
    """

    name: str
    device: str
    dtypes: tuple[str, ...]
    residual: bool
    run: Callable[[Tensors, Attrs], torch.Tensor]
    meaning: Callable[[Sequence[Node], Attrs], Node]
    launches: Callable[[Attrs], int] = lambda attrs: 1
    cost: str = "contraction"


def _wide_linear(operands: Sequence[Node]) -> tuple[Node, DType]:
    """x @ weight.T + bias over the last dimension of x, in the type of the sums, with the type of the result."""
    dtype, at = operands[0].dtype, compute_type(operands[0].dtype)
    x, weight, *bias = (cast(o, at) for o in operands)
    flat = reshape(x, (product(x.shape[:-1]), x.shape[-1]))
    return reshape(linear(flat, weight, bias[0] if bias else None), (*x.shape[:-1], weight.shape[0])), dtype


def _gelu(x: Node) -> Node:
    inner = apply("erf", apply("mul", x, like(math.sqrt(0.5), x)))
    return apply("mul", apply("mul", x, like(0.5, x)), apply("add", inner, like(1.0, x)))


def _gelu_tanh(x: Node) -> Node:
    cube = apply("mul", apply("mul", x, x), x)
    inner = apply("mul", apply("add", x, apply("mul", cube, like(0.044715, x))), like(math.sqrt(2 / math.pi), x))
    return apply("mul", apply("mul", x, like(0.5, x)), apply("add", apply("tanh", inner), like(1.0, x)))


_MEANINGS: Mapping[str, Callable[[Node], Node]] = {
    "none": lambda x: x,
    "relu": lambda x: apply("maximum", like(0.0, x), x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": lambda x: apply("tanh", x),
    "sigmoid": lambda x: apply("sigmoid", x),
    "swish": lambda x: apply("mul", x, apply("sigmoid", x)),
}


def _activation(attrs: Attrs) -> str:
    name = str(attrs.get("activation", "none"))
    if name not in ACTIVATIONS:
        raise OptionError(f"there is no activation {name!r}; a provider knows {', '.join(ACTIVATIONS)}.")
    return name


def _linear_meaning(operands: Sequence[Node], attrs: Attrs) -> Node:
    wide, dtype = _wide_linear(operands)
    return cast(_MEANINGS[_activation(attrs)](wide), dtype)


def _add_meaning(operands: Sequence[Node], attrs: Attrs) -> Node:
    wide, dtype = _wide_linear(operands[:-1])
    return cast(apply("add", wide, cast(operands[-1], wide.dtype)), dtype)


def _aten_linear(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
    return torch.nn.functional.linear(*tensors)


def _bias(tensors: Tensors) -> torch.Tensor | None:
    # oneDNN reads the bias as if it were contiguous, whatever its stride says.
    return tensors[0].contiguous() if tensors else None


def _onednn_linear(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
    x, weight, *bias = tensors
    activation = attrs.get("activation", "none")
    name, algorithm = _FUSED.get(activation, _FUSED["none"])
    out = torch.ops.mkldnn._linear_pointwise(x, weight, _bias(bias), name, [], algorithm)
    after = _AFTER.get(activation)
    return out if after is None else after(out)


def _split_linear(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
    return linear_of_tiles(tensors, attrs, _onednn_linear)


def _onednn_linear_add(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
    x, weight, *bias, residual = tensors
    return torch.ops.mkldnn._linear_pointwise.binary(x, residual, weight, _bias(bias), "add")


def _cublas_linear(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
    x, weight, bias = tensors
    return torch.matmul(x, weight.t()).add_(bias)


def _cublaslt(use_gelu: bool) -> Callable[[Tensors, Attrs], torch.Tensor]:
    def run(tensors: Tensors, attrs: Attrs) -> torch.Tensor:
        x, weight, bias = tensors
        out = torch.ops.aten._addmm_activation.default(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=use_gelu)
        return out.view(*x.shape[:-1], weight.shape[0])

    return run


_NARROW = ("f32", "bf16", "f16")
PROVIDERS: Mapping[str, Provider] = {
    p.name: p
    for p in (
        Provider(
            "aten.linear",
            "",
            (*_NARROW, "f64"),
            False,
            _aten_linear,
            lambda operands, attrs: _linear_meaning(operands, {}),
        ),
        Provider(
            "onednn.linear",
            "cpu",
            _NARROW,
            False,
            _onednn_linear,
            _linear_meaning,
            lambda attrs: 1 + (attrs.get("activation") in _AFTER),
        ),
        Provider("interfuse.linear", "cpu", ("f32",), False, _split_linear, _linear_meaning),
        Provider("onednn.linear_add", "cpu", _NARROW, True, _onednn_linear_add, _add_meaning),
        Provider("interfuse.attention", "cpu", _NARROW, False, attention, attention_meaning, cost="attention"),
        *(
            Provider(name, "cuda", types, False, run, attention_gpu.meaning, cost="attention")
            for name, types, run in (
                ("flash.attention", ("bf16", "f16"), attention_gpu.flash),
                ("efficient.attention", _NARROW, attention_gpu.efficient),
                ("cudnn.attention", ("bf16", "f16"), attention_gpu.cudnn),
            )
        ),
        # For few rows in fp32 cuBLAS picks a far better kernel without the bias in its epilogue. Narrow types would
        # round twice.
        Provider(
            "cublas.linear",
            "cuda",
            ("f32",),
            False,
            _cublas_linear,
            lambda operands, attrs: _linear_meaning(operands, {}),
            lambda attrs: 2,
        ),
        # cuBLASLt's GELU epilogue is the tanh form; its relu, unlike oneDNN's, keeps NaN.
        Provider(
            "cublaslt.linear_gelu",
            "cuda",
            _NARROW,
            False,
            _cublaslt(True),
            lambda operands, attrs: _linear_meaning(operands, {"activation": "gelu_tanh"}),
        ),
        Provider(
            "cublaslt.linear_relu",
            "cuda",
            _NARROW,
            False,
            _cublaslt(False),
            lambda operands, attrs: _linear_meaning(operands, {"activation": "relu"}),
        ),
    )
}
"""Every provider by name. Those of cublas and cublaslt need a bias."""


def _onednn_takes(dtype: DType) -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch is built without oneDNN"
    if not torch.backends.mkldnn.enabled:
        return "oneDNN is switched off (torch.backends.mkldnn)"
    check = {"bf16": "_is_mkldnn_bf16_supported", "f16": "_is_mkldnn_fp16_supported"}.get(dtype.name)
    if check is not None and not getattr(torch.ops.mkldnn, check)():
        return f"oneDNN has no {dtype} arithmetic on this CPU"
    return None


def available(name: str, dtype: DType | str, device: str) -> str | None:
    """Why provider `name` cannot take `dtype` on `device` ("cpu", "cuda:0", ...) here; None where it can."""
    provider = PROVIDERS.get(name)
    if provider is None:
        return f"there is no provider {name}"
    dtype = ALL[dtype] if isinstance(dtype, str) else dtype
    kind = torch.device(device).type
    if provider.device not in ("", kind):
        return f"{name} runs on {provider.device}, not on {kind}"
    if dtype.name not in provider.dtypes:
        return f"{name} does not take {dtype}"
    if kind == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA device here"
    if name in attention_gpu.SWITCHES and not attention_gpu.SWITCHES[name]():
        return f"this PyTorch has no {name}, or it is switched off (torch.backends.cuda)"
    if name == "interfuse.linear":
        return no_tiles(current()) or _onednn_takes(dtype)
    return _onednn_takes(dtype) if name.startswith("onednn.") else None


def probe(name: str, dtype: DType | str, device: str, attrs: Attrs | None = None) -> str | None:
    """`available`, then one tiny run: why the provider fails, or None where it works."""
    reason = available(name, dtype, device)
    if reason is not None:
        return reason
    at = to_torch(ALL[dtype] if isinstance(dtype, str) else dtype)
    with real_tensors():
        tensors = [torch.zeros(shape, dtype=at, device=device) for shape in ((4, 16), (8, 16), (8,))]
        if PROVIDERS[name].residual:
            tensors.append(torch.zeros((4, 8), dtype=at, device=device))
        try:
            PROVIDERS[name].run(tensors, attrs or {})
        except RuntimeError as error:
            return f"{name} fails here: {str(error).splitlines()[0]}"
    return None
