"""The numerics contract as code. In: a compiled function's values beside eager's and float64's. Out: a verdict with a
share.

A share is the error over what is allowed; above 1 the contract is broken. Three rules, one chosen for each case:

- `fp64`: the error against a float64 run is at most 1.5 times eager's in root mean square and 4 times eager's largest
  in every run of 4096 elements. Allowed on top: what moving each input by its last float32 bit does to the float64 run
  (a function that is ill conditioned may not be held to more), and half a unit in the last place for 16-bit results,
  two for wider ones. NaN and infinities must stand wherever eager and float64 agree that they stand. Integers and
  booleans are equal.
- `eager`: equal to eager's to two units in the last place (half of one for 16-bit results): for what follows a discrete
  decision.
- `codes`: integers and 8-bit floats differ from eager's in at most one element of a thousand, and there by one code:
  for what is rounded from a float that came through a reduction. Wider floats go by `eager`.

The type, shape and strides of every result are compared, and so is every argument after the call: a function that
mutates its arguments must leave the same values in them. For the float64 run, floating arguments (and a module's
parameters) are cast up, and casts to narrow types inside the function become casts to float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from interfuse.ir.evaluate import evaluate
from interfuse.ir.node import Node

RULES = ("fp64", "eager", "codes")
BLOCK = 4096
WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
}

Array = Any
"""A tensor, or a NumPy array of any type that the IR knows."""


@dataclass(frozen=True)
class Verdict:
    """Whether the contract holds, the worst error as a share of what is allowed, and what is wrong."""

    ok: bool
    share: float
    note: str = ""


def _tensor(x: Array) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x.detach()  # judged where it is: a CPU takes minutes over what a GPU has worked on
    x = np.asarray(x)
    if x.dtype in _BITS:
        bits, kind = _BITS[x.dtype]
        return torch.from_numpy(np.ascontiguousarray(x).view(bits).copy().reshape(x.shape)).view(kind)
    return torch.from_numpy(np.ascontiguousarray(x).copy().reshape(x.shape))


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _is_coded(t: torch.Tensor) -> bool:
    """True for integers, booleans and 8-bit floats: types whose values are compared as codes."""
    return not (t.is_floating_point() or t.is_complex()) or t.dtype.itemsize == 1


def _codes(t: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the values: an 8-bit float's sign and magnitude bits become one signed number."""
    if not t.is_floating_point():
        return t.to(torch.int64)
    bits = t.contiguous().view(torch.uint8).to(torch.int64)
    magnitude = bits % 128
    return torch.where(bits >= 128, -magnitude, magnitude)


def _code_share(got: torch.Tensor, eager: torch.Tensor, rule: str) -> float:
    step = (_codes(got) - _codes(eager)).abs()
    if not step.numel() or not step.any():
        return 0.0
    if rule != "codes":
        return math.inf
    if got.is_floating_point() and not torch.equal(_wide(got).isnan(), _wide(eager).isnan()):
        return math.inf
    return max(float((step > 0).double().mean()) / 1e-3, float(step.max()))


def _sort_of_value(t: torch.Tensor) -> torch.Tensor:
    """0 for finite numbers, then one number each for NaN, inf and -inf; a complex number goes by its magnitude."""
    t = t.abs() if t.is_complex() else t
    return torch.where(torch.isnan(t), 1, torch.where(torch.isinf(t), torch.where(t > 0, 2, 3), 0))


def _mean_square_root(t: torch.Tensor) -> float:
    return float(t.abs().square().mean().sqrt())


def _tops(t: torch.Tensor) -> torch.Tensor:
    """The largest magnitude in each run of BLOCK elements."""
    flat = t.flatten().abs()
    padding = flat.new_zeros(-len(flat) % BLOCK)
    return torch.cat([flat, padding]).view(-1, BLOCK).amax(1)


def _float_share(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, nearby: torch.Tensor) -> float:
    info = torch.finfo(eager.dtype)
    units = (0.5 if eager.dtype in (torch.float16, torch.bfloat16) else 2.0) * info.eps
    floor = info.smallest_normal * info.eps
    got, eager, exact, nearby = map(_wide, (got, eager, exact, nearby))
    sort, agreed = _sort_of_value(exact), _sort_of_value(eager) == _sort_of_value(exact)
    if bool(((_sort_of_value(got) != sort) & agreed).any()):
        return math.inf
    counted = agreed & (sort == 0) & (_sort_of_value(nearby) == 0)
    error, theirs, moved, size = (
        torch.where(counted, t, torch.zeros_like(t)) for t in (got - exact, eager - exact, nearby - exact, exact)
    )
    rms, top = _mean_square_root, _tops
    whole = rms(error) / (1.5 * rms(theirs) + 3 * rms(moved) + units * rms(size) + floor)
    local = top(error) / (4 * top(theirs) + 6 * top(moved) + 4 * units * top(size) + floor)
    return max(whole, float(local.max()))


def judge_arrays(
    got: Array, eager: Array, exact: Array | None = None, nearby: Array | None = None, rule: str = "fp64"
) -> Verdict:
    """Verdict on one result, as tensors or NumPy arrays of one shape.

    `exact` is the float64 run's and `nearby` the float64 run's on inputs moved by their last bit (left out: not moved);
    the rules `eager` and `codes` need neither. ValueError for an unknown rule.
    """
    if rule not in RULES:
        raise ValueError(f"there is no rule {rule!r}; the rules are {', '.join(RULES)}")
    if rule == "fp64" and exact is None:
        raise ValueError("the rule fp64 needs the float64 run's values: give `exact`")
    got, eager = _tensor(got), _tensor(eager)
    if got.device != eager.device:
        got, eager = got.cpu(), eager.cpu()
    if (got.dtype, got.shape) != (eager.dtype, eager.shape):
        return Verdict(False, math.inf, f"{got.dtype}{list(got.shape)} for {eager.dtype}{list(eager.shape)}")
    if _is_coded(eager):
        share = _code_share(got, eager, rule)
    elif not eager.numel():
        share = 0.0
    else:
        true = eager if rule != "fp64" else _tensor(exact).to(eager.device)
        near = true if nearby is None or rule != "fp64" else _tensor(nearby).to(eager.device)
        share = _float_share(got, eager, true, near)
    return Verdict(share <= 1, share, "" if share <= 1 else f"the error is {share:.3g} times what is allowed")


def judge_region(
    outputs: Sequence[Node],
    values: Mapping[Node, np.ndarray],
    got: Sequence[Array],
    rule: str = "fp64",
    symbols: Mapping[str, int] | None = None,
) -> Verdict:
    """The worst verdict on a kernel's results for IR nodes: the reference evaluator stands in for eager and for
    float64.
    """
    eager = evaluate(outputs, values, False, symbols)
    exact = evaluate(outputs, values, True, symbols)
    nearby = evaluate(outputs, {n: _nudged_array(n, x) for n, x in values.items()}, True, symbols)
    verdicts = [judge_arrays(g, e, x, n, rule) for g, e, x, n in zip(got, eager, exact, nearby, strict=True)]
    return _worst([(f"output {k} ({o})", v) for k, (o, v) in enumerate(zip(outputs, verdicts, strict=True))])


def _nudged_array(node: Node, x: np.ndarray) -> np.ndarray:
    if not node.dtype.is_float:
        return x
    noise = np.random.default_rng(7).uniform(-1, 1, np.shape(x))
    return np.asarray(x).astype(np.float64) * (1 + (2.0**-24 if node.dtype.bytes <= 4 else 2.0**-53) * noise)


def _worst(named: Sequence[tuple[str, Verdict]]) -> Verdict:
    name, worst = max(named, key=lambda pair: pair[1].share, default=("", Verdict(True, 0.0)))
    return Verdict(worst.ok, worst.share, f"{name}: {worst.note}" if worst.note else "")


class _CastsWiden(TorchFunctionMode):
    """While on, a cast to a narrow floating type is a cast to float64."""

    SHORTHANDS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.SHORTHANDS:
            return args[0].to(torch.float64)
        return func(*map(_wider_type, args), **{k: _wider_type(v) for k, v in (kwargs or {}).items()})


def _wider_type(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _fresh(value: Any) -> Any:
    """A copy with the same strides, so that the caller's own arguments are never written."""
    if not isinstance(value, torch.Tensor):
        return value
    if 0 in value.stride():
        return value.detach().clone().requires_grad_(value.requires_grad)
    same = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return same.copy_(value.detach()).requires_grad_(value.requires_grad)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _plain_run(function: Callable[..., Any], arguments: tuple) -> list[torch.Tensor]:
    """The results, then the arguments as the call leaves them."""
    given = tree_map(_fresh, arguments)
    return _tensors(function(*given)) + _tensors(given)


def _wide_run(function: Callable[..., Any], arguments: tuple, nudge: float = 0.0) -> list[torch.Tensor]:
    """The same in float64, on inputs each moved by up to `nudge` of itself."""
    generators: dict[torch.device, torch.Generator] = {}

    def widened(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _is_coded(value):
            return value
        if not nudge:
            return _wide(_fresh(value.detach()))
        where = value.device
        own = generators.setdefault(where, torch.Generator(where).manual_seed(7))
        noise = 2 * torch.rand(value.shape, generator=own, device=where, dtype=torch.float64) - 1
        return _wide(value.detach()) * (1 + nudge * noise)

    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _CastsWiden():
            given = tree_map(widened, tree_map(_fresh, arguments))
            return _tensors(function(*given)) + _tensors(given)
    finally:
        torch.set_default_dtype(default)


def judge(function: Callable[..., Any], arguments: tuple, compiled: Callable[..., Any], rule: str = "fp64") -> Verdict:
    """Verdict on compiled(*arguments) beside function(*arguments), results and arguments both."""
    eager, got = _plain_run(function, arguments), _plain_run(compiled, arguments)
    if len(got) != len(eager):
        return Verdict(False, math.inf, f"{len(got)} tensors for {len(eager)}")
    exact, nearby = eager, eager
    if rule == "fp64":
        narrow = any(t.dtype in WIDER for t in _tensors(arguments))
        exact, nearby = _wide_run(function, arguments), _wide_run(function, arguments, 2.0**-24 if narrow else 2.0**-53)
    verdicts = []
    for k, (g, e, x, n) in enumerate(zip(got, eager, exact, nearby, strict=True)):
        if g.shape == e.shape and e.numel() > 1 and g.stride() != e.stride():
            return Verdict(False, math.inf, f"tensor {k}: strides {g.stride()} for {e.stride()}")
        verdicts.append((f"tensor {k}", judge_arrays(g, e, x, n, rule)))
    return _worst(verdicts)
