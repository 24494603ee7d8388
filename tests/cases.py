"""Small models on which fusion compilers are known to go wrong. In: nothing. Out: CASES, by name: what to run and how
to judge it.

Each is a few lines of PyTorch at CPU test size. `promise` says what must hold here; `rule` is the judge's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """`build()` gives (function, arguments), the same numbers each time."""

    build: Callable[[], tuple[Callable[..., Any], tuple]]
    promise: str
    rule: str = "fp64"


class _Data:
    """A stream of random tensors from one seed."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(20)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self._generator) * scale).to(dtype)

    def below(self, top: int, count: int) -> torch.Tensor:
        return torch.randint(0, top, (count,), generator=self._generator)


def _scaled_softmax_over_columns():
    data = _Data()
    return (lambda scores, gain: torch.softmax(scores * gain, dim=0)), (data(24, 700), data(700))


def _norm_then_block_codes():
    data = _Data()

    def quantise(hidden, weight):
        wide = hidden.to(torch.float32)
        normal = wide * torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + 1e-6) * weight.to(torch.float32)
        blocks = normal.reshape(12, 6, 32)
        largest = torch.clamp(blocks.abs().amax(dim=2, keepdim=True), min=1e-30)
        step = torch.exp2(torch.log2(largest).floor() - 8)
        codes = torch.clamp(blocks / step, -448, 448).to(torch.float8_e4m3fn)
        return codes.reshape(12, 192), step[..., 0]

    return quantise, (data(12, 192, dtype=torch.bfloat16), data(192, dtype=torch.bfloat16))


def _little_layer():
    data = _Data()
    arguments = data(20, 48), data(32, 48), data(32)
    return (lambda x, weight, bias: torch.relu(functional.linear(x, weight, bias))), arguments


def _wide_concatenation():
    data = _Data()
    columns = tuple(data(10, 8) for _ in range(30))
    return (lambda *columns: torch.cat([torch.relu(c.mul(2).add(1)) for c in columns], dim=1)), columns


def _messages_over_edges():
    data, nodes, edges, width = _Data(), 30, 45, 6

    def step(source, gate, strength, weights, sender, other, receiver):
        message = torch.einsum("euv,eu->ev", weights[sender] * strength[:, None, None], source[sender] * gate[other])
        return torch.zeros_like(source).index_add(0, receiver, message)

    ends = [data.below(nodes, edges) for _ in range(3)]
    return step, (data(nodes, width), data(nodes, width), data(edges), data(nodes, width, width), *ends)


def _cumulative_softplus():
    data = _Data()
    arguments = data(12, 96), data(96, 96, scale=0.06)
    return (lambda x, weight: functional.softplus(x.matmul(weight)).cumsum(dim=-1)), arguments


def _group_norm_swish():
    data = _Data()
    arguments = data(1, 32, 12, 12), data(32), data(32)
    return (lambda image, gain, shift: functional.silu(functional.group_norm(image, 16, gain, shift))), arguments


def _upsample_convolve_norm():
    data = _Data()

    def block(image, kernel, gain, shift):
        larger = functional.conv2d(functional.interpolate(image, scale_factor=2, mode="nearest"), kernel, padding=1)
        return larger * 0.01 + functional.silu(functional.group_norm(larger, 8, gain, shift))

    return block, (data(1, 16, 6, 6), data(16, 16, 3, 3, scale=0.05), data(16), data(16))


def _layer_stack():
    data, half = _Data(), torch.bfloat16
    layers = tuple((data(48, 48, dtype=half, scale=0.14), data(48, dtype=half), data(48, dtype=half)) for _ in range(4))

    def stack(hidden, layers):
        for weight, gain, shift in layers:
            hidden = functional.gelu(functional.layer_norm(hidden.matmul(weight), (48,), gain, shift))
        return hidden

    return stack, (data(10, 48, dtype=half), layers)


def _softmax_gradient_channels_last():
    data, batch, heads, rows, columns = _Data(), 2, 3, 10, 14

    def backward(upstream, probabilities):
        grad = upstream.view(batch, rows, heads, columns).transpose(1, 2)
        inner = (probabilities * grad).sum(dim=3, keepdim=True)
        return (probabilities * grad - probabilities * inner).permute(0, 2, 3, 1).contiguous()

    return backward, (data(batch, rows, heads * columns), torch.softmax(data(batch, heads, rows, columns), dim=-1))


def _four_gates_on_a_product():
    data, half = _Data(), torch.float16

    def gates(x, weight, shifts, gains):
        product = x @ weight
        parts = [torch.sigmoid(product + shift) * gain for shift, gain in zip(shifts, gains, strict=True)]
        return parts[0] + parts[1] + parts[2] + parts[3]

    return gates, (
        data(16, 24, dtype=half, scale=0.2),
        data(24, 20, dtype=half, scale=0.2),
        data(4, 20, dtype=half),
        data(4, 20, dtype=half),
    )


def _ties_at_the_top():
    data = _Data()

    def share(scores):
        scaled = scores / 128**0.5
        winners = (scaled == scaled.max(dim=-1, keepdim=True).values).float()
        return winners / winners.sum(dim=-1, keepdim=True)

    return share, (data(40, 200, dtype=torch.bfloat16),)


def _constant_into_two_norms():
    data = _Data()

    def network(image, mean, variance, gain, shift):
        once = functional.elu(functional.batch_norm(image, mean, variance, gain, shift, training=False))
        return (functional.group_norm(once, 4).abs() + 1e-3).log().clamp(min=-8, max=8)

    return network, (torch.full((3, 8, 5, 5), 0.37), data(8), data(8).abs() + 0.5, data(8), data(8))


def _sums_of_two_products():
    data = _Data()
    arguments = data(90, 6), data(90, 6), data(6, 90)
    return (lambda a, c, shared: (a @ shared).sum(dim=1) + (c @ shared).sum(dim=1)), arguments


def _ladder():
    data = _Data()

    def climb(low, high):
        for _ in range(13):
            low, high = low + high, high
            low, high = low, torch.tanh(low) * high
        return high + low

    return climb, (data(8), data(8))


def _recurrent_steps():
    data, width, steps = _Data(), 12, 9

    def unroll(sequence, into, back, hidden, cell):
        for step in sequence.unbind(0):
            keep, new, candidate, out = (step @ into + hidden @ back).split(width, dim=1)
            cell = cell * torch.sigmoid(keep) + torch.tanh(candidate) * torch.sigmoid(new)
            hidden = torch.tanh(cell) * torch.sigmoid(out)
        return hidden, cell

    into, back = (data(width, 4 * width, scale=0.2) for _ in range(2))
    return unroll, (data(steps, 3, width), into, back, data(3, width), data(3, width))


CASES = {
    "scaled_softmax_over_columns": Case(_scaled_softmax_over_columns, "a softmax over the outer axis reads once"),
    "norm_then_block_codes": Case(_norm_then_block_codes, "8-bit codes are eager's, but for a rare neighbour", "codes"),
    "little_layer": Case(_little_layer, "a small product and its activation fuse only where that is faster"),
    "wide_concatenation": Case(_wide_concatenation, "many small parts do not cost a launch each"),
    "messages_over_edges": Case(_messages_over_edges, "gather, contraction and scatter keep eager's values"),
    "cumulative_softplus": Case(_cumulative_softplus, "a scan after a product is right"),
    "group_norm_swish": Case(_group_norm_swish, "few long groups are no slower than eager's"),
    "upsample_convolve_norm": Case(_upsample_convolve_norm, "an index change is fused only while reads stay dense"),
    "layer_stack": Case(_layer_stack, "half-precision roundings do not pile up beyond eager's"),
    "softmax_gradient_channels_last": Case(_softmax_gradient_channels_last, "the output keeps its permuted strides"),
    "four_gates_on_a_product": Case(_four_gates_on_a_product, "one product with four uses is computed once"),
    "ties_at_the_top": Case(_ties_at_the_top, "a comparison sees the rounded quotient, so ties are ties", "eager"),
    "constant_into_two_norms": Case(_constant_into_two_norms, "variance near nought is judged by float64"),
    "sums_of_two_products": Case(_sums_of_two_products, "two fused reductions need no more memory than eager"),
    "ladder": Case(_ladder, "compile time grows with depth, not with the number of paths"),
    "recurrent_steps": Case(_recurrent_steps, "compile time grows in line with the number of steps"),
}
