"""The float64 run that errors are measured against. In: a model and its inputs. Out: its outputs in float64, or None.

Floating inputs, parameters and buffers are made float64, and casts to narrower types inside the model become casts to
float64, so that eager's own roundings count as error too.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from interfuse.tune.judge import moved

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


class _CastsWiden(TorchFunctionMode):
    """While on, a floating type that is asked for by name is float64."""

    SHORTHANDS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.SHORTHANDS:
            return args[0].to(torch.float64)
        return func(*map(_wider, args), **{k: _wider(v) for k, v in (kwargs or {}).items()})


def _wider(value: Any) -> Any:
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _WIDER:
        return value
    return value.detach().to(_WIDER[value.dtype])


def exact_outputs(
    model: Callable[..., Any], inputs: Any, kwargs: Mapping[str, Any], arguments: bool = False, move: bool = False
) -> list[torch.Tensor] | None:
    """The tensors that the model gives in float64; None where it cannot run so.

    `arguments=True` adds the tensors among the arguments as the call leaves them, `move=True` moves the floating ones
    by their last float32 bit first. The caller's own are not written.
    """
    leaves, spec = tree_flatten((inputs, dict(kwargs)))
    given = tree_unflatten(moved(leaves) if move else list(map(_widened, leaves)), spec)
    try:
        wide = _copied(model).double() if isinstance(model, torch.nn.Module) else model
        with _CastsWiden():
            result = wide(*given[0], **given[1])
    except Exception:  # whatever keeps a model from running in float64, the other figures still stand
        return None
    return [t.detach() for t in (*tensors_of(result), *(tensors_of(given) if arguments else ()))]


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # copying an exported model, PyTorch warns of its own code
        return copy.deepcopy(model)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested containers or a model's output object, in order."""
    if hasattr(tree, "to_tuple"):
        tree = tree.to_tuple()
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]
