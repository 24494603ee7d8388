"""Whether a result is as accurate as eager's. In: tensors of a candidate, of eager and of a float64 run. Out: an Error.

The contract: integers, booleans and 8-bit floats are equal, but for one in a thousand by one code where they are
rounded from a float that came through a reduction; NaN and infinities stand where eager and float64 agree that they
stand; the root mean square distance from float64 is at most 1.5 times eager's, and the largest distance in each 4096
elements at most four times eager's, plus half an ulp for 16-bit results and two for wider ones, plus what moving the
inputs by their last float32 bit does to the float64 run where the caller has made that run too (`moved`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.capture.torch_types import from_torch

BLOCK = 4096
RMS_FACTOR, BLOCK_FACTOR = 1.5, 4.0
MOVED_RMS, MOVED_BLOCK = 3.0, 6.0
"""How often what moved inputs change is allowed on top, in root mean square and in a block."""

CODES = 1e-3
"""The share of codes rounded from a float that came through a reduction that may be one code off."""

SEED = 7
CLOSE_ULPS = 8.0
"""Distance from eager that is allowed where no float64 run can be had, in ulps."""

WORST = 1e9
"""The share that stands for "not comparable": wrong integers, NaN in another place."""


@dataclass(frozen=True)
class Error:
    """`rms` relative to the exact value, and the worst error as a `share` of what is allowed: above 1 is too much."""

    rms: float
    share: float

    @property
    def ok(self) -> bool:
        """True where the result keeps the contract."""
        return self.share <= 1.0


def judge(
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor] | None,
    nearby: Sequence[torch.Tensor] | None = None,
    codes: Collection[int] = (),
) -> Error:
    """The worst Error over the tensors; `exact` None judges by closeness to eager.

    `nearby` is the float64 run on `moved` inputs; without it an ill-conditioned function is held to more. `codes` are
    the positions of integers and 8-bit floats that are rounded from a float that came through a reduction.
    """
    if len(got) != len(eager):
        return Error(WORST, WORST)
    worst = Error(0.0, 0.0)
    for k, (g, e) in enumerate(zip(got, eager, strict=True)):
        if k in codes:
            one = _coded(g, e)
        else:
            one = _one(g, e, None if exact is None else exact[k], None if nearby is None else nearby[k])
        worst = Error(max(worst.rms, one.rms), max(worst.share, one.share))
    return worst


def moved(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with floating tensors in float64, each element moved at random by up to its last float32 bit.

    Where all of them are float64 already, by its last float64 bit. The same inputs are moved alike each time.
    """
    wide = (torch.float64, torch.complex128)
    bit = 2.0**-53 if all(t.dtype in wide for t in inputs if _moves(t)) else 2.0**-24
    generator = torch.Generator().manual_seed(SEED)

    def one(value: Any) -> Any:
        if not _moves(value):
            return value
        by = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1
        return _wide(value.detach()) * (1 + bit * by.to(value.device))

    return [one(value) for value in inputs]


def _moves(value: Any) -> bool:
    """True for a tensor of numbers that are not 8-bit codes."""
    return (
        isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
        and value.dtype.itemsize > 1
    )


def _one(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, nearby: torch.Tensor | None = None
) -> Error:
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return Error(WORST, WORST)
    if not (eager.is_floating_point() or eager.is_complex()) or eager.dtype.itemsize == 1:
        return Error(0.0, 0.0) if torch.equal(_bits(got), _bits(eager)) else Error(WORST, WORST)
    if not eager.numel():
        return Error(0.0, 0.0)
    ulp, sixteen = _ulp(eager.dtype), eager.dtype.itemsize == 2
    known = exact is not None
    got, eager = _wide(got), _wide(eager)
    true = _wide(exact) if exact is not None else eager
    agreed = _kind(eager) == _kind(true)
    if bool(((_kind(got) != _kind(true)) & agreed).any()):
        return Error(WORST, WORST)
    near = true if nearby is None else _wide(nearby)
    use = agreed & (_kind(true) == 0) & (_kind(near) == 0)
    error, allowed, size = ((got - true)[use].abs(), (eager - true)[use].abs(), true[use].abs())
    spread = (near - true)[use].abs()
    if not error.numel():
        return Error(0.0, 0.0)
    slack = (0.5 if sixteen else 2.0) * ulp if known else CLOSE_ULPS * ulp
    tiny = torch.finfo(torch.float32).tiny * ulp
    whole = _rms(error) / (RMS_FACTOR * _rms(allowed) + MOVED_RMS * _rms(spread) + slack * _rms(size) + tiny)
    most = BLOCK_FACTOR * (_top(allowed) + slack * _top(size)) + MOVED_BLOCK * _top(spread)
    local = (_top(error) / (most + tiny)).max().item()
    return Error(_rms(error) / max(_rms(size), tiny), max(whole, local))


def _coded(got: torch.Tensor, eager: torch.Tensor) -> Error:
    """How many codes are off, as a share of `CODES`, and by how many codes at most."""
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return Error(WORST, WORST)
    if got.is_floating_point() and not torch.equal(_wide(got).isnan(), _wide(eager).isnan()):
        return Error(WORST, WORST)  # NaN has the code next to the largest number's
    apart = (_numbered(got) - _numbered(eager)).abs()
    if not apart.numel():
        return Error(0.0, 0.0)
    share = max(float((apart > 0).double().mean()) / CODES, float(apart.max()))
    return Error(0.0, min(share, WORST))


def _numbered(t: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the values; the sign and magnitude of an 8-bit float become one signed number."""
    if not t.is_floating_point():
        return t.to(torch.int64)
    bits = _bits(t).to(torch.int64)
    return torch.where(bits >= 128, 128 - bits, bits)


def _ulp(dtype: torch.dtype) -> float:
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    return from_torch(real).ulp


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8) if t.is_floating_point() else t


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _kind(t: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf; complex numbers by their magnitude."""
    t = t.abs() if t.is_complex() else t
    return torch.isnan(t) * 1 + torch.isposinf(t) * 2 + torch.isneginf(t) * 3


def _rms(t: torch.Tensor) -> float:
    return float(t.square().mean().sqrt())


def _top(t: torch.Tensor) -> torch.Tensor:
    """The largest of each block of elements."""
    flat = t.flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK).amax(1)
