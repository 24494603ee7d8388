"""Small models on which fusion compilers are known to go wrong. In: nothing. Out: CASES, by name: what to run and how
to judge it.

Each is a few lines of PyTorch, at CPU test size or at the size of real work (`large`). `promise` says what must hold
here; `rule` is the judge's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """`make(large)` gives (function, arguments), the same numbers each time."""

    make: Callable[[bool], tuple[Callable[..., Any], tuple]]
    promise: str
    rule: str = "fp64"

    def build(self, large: bool = False) -> tuple[Callable[..., Any], tuple]:
        """What to call and with what; `large` for the size of real work, on the GPU where there is one."""
        return self.make(large)


class _Data:
    """A stream of random tensors from one seed, on the GPU where they are `large` and there is one."""

    def __init__(self, large: bool) -> None:
        self._device = "cuda" if large and torch.cuda.is_available() else "cpu"
        self._generator = torch.Generator(self._device).manual_seed(20)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self._generator, device=self._device) * scale).to(dtype)

    def below(self, top: int, count: int) -> torch.Tensor:
        return torch.randint(0, top, (count,), generator=self._generator, device=self._device)


def _scaled_softmax_over_columns(large):
    data, rows, columns = _Data(large), *((32, 2**21) if large else (24, 700))
    return (lambda scores, gain: torch.softmax(scores * gain, dim=0)), (data(rows, columns), data(columns))


def _norm_then_block_codes(large):
    data, rows, blocks, block = _Data(large), *((256, 256, 32) if large else (12, 6, 32))

    def quantise(hidden, weight):
        wide = hidden.to(torch.float32)
        normal = wide * torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + 1e-6) * weight.to(torch.float32)
        parts = normal.reshape(rows, blocks, block)
        largest = torch.clamp(parts.abs().amax(dim=2, keepdim=True), min=1e-30)
        step = torch.exp2(torch.log2(largest).floor() - 8)
        codes = torch.clamp(parts / step, -448, 448).to(torch.float8_e4m3fn)
        return codes.reshape(rows, blocks * block), step[..., 0]

    width = blocks * block
    return quantise, (data(rows, width, dtype=torch.bfloat16), data(width, dtype=torch.bfloat16))


def _little_layer(large):
    data, rows, width, features = _Data(large), *((64, 128, 128) if large else (20, 48, 32))
    arguments = data(rows, width), data(features, width), data(features)
    return (lambda x, weight, bias: torch.relu(functional.linear(x, weight, bias))), arguments


def _wide_concatenation(large):
    data, count, rows, width = _Data(large), *((299, 768, 192) if large else (30, 10, 8))
    columns = tuple(data(rows, width) for _ in range(count))
    return (lambda *columns: torch.cat([torch.relu(c.mul(2).add(1)) for c in columns], dim=1)), columns


def _messages_over_edges(large):
    data, nodes, edges, width = _Data(large), *((1000, 1000, 16) if large else (30, 45, 6))

    def step(source, gate, strength, weights, sender, other, receiver):
        message = torch.einsum("euv,eu->ev", weights[sender] * strength[:, None, None], source[sender] * gate[other])
        return torch.zeros_like(source).index_add(0, receiver, message)

    ends = [data.below(nodes, edges) for _ in range(3)]
    return step, (data(nodes, width), data(nodes, width), data(edges), data(nodes, width, width), *ends)


def _cumulative_softplus(large):
    data, rows, width = _Data(large), *((4096, 1024) if large else (12, 96))
    arguments = data(rows, width), data(width, width, scale=0.06)
    return (lambda x, weight: functional.softplus(x.matmul(weight)).cumsum(dim=-1)), arguments


def _group_norm_swish(large):
    data, channels, groups, side = _Data(large), *((320, 32, 64) if large else (32, 16, 12))
    arguments = data(1, channels, side, side), data(channels), data(channels)
    return (lambda image, gain, shift: functional.silu(functional.group_norm(image, groups, gain, shift))), arguments


def _upsample_convolve_norm(large):
    data, channels, groups, side = _Data(large), *((256, 32, 64) if large else (16, 8, 6))

    def block(image, kernel, gain, shift):
        larger = functional.conv2d(functional.interpolate(image, scale_factor=2, mode="nearest"), kernel, padding=1)
        return larger * 0.01 + functional.silu(functional.group_norm(larger, groups, gain, shift))

    kernel = data(channels, channels, 3, 3, scale=0.02 if large else 0.05)
    return block, (data(1, channels, side, side), kernel, data(channels), data(channels))


def _layer_stack(large):
    data, half = _Data(large), torch.bfloat16
    rows, width, depth = (512, 4096, 10) if large else (10, 48, 4)
    layers = tuple(
        (data(width, width, dtype=half, scale=width**-0.5), data(width, dtype=half), data(width, dtype=half))
        for _ in range(depth)
    )

    def stack(hidden, layers):
        for weight, gain, shift in layers:
            hidden = functional.gelu(functional.layer_norm(hidden.matmul(weight), (width,), gain, shift))
        return hidden

    return stack, (data(rows, width, dtype=half), layers)


def _softmax_gradient_channels_last(large):
    data, (batch, heads, rows, columns) = _Data(large), ((4, 16, 576, 576) if large else (2, 3, 10, 14))

    def backward(upstream, probabilities):
        grad = upstream.view(batch, rows, heads, columns).transpose(1, 2)
        inner = (probabilities * grad).sum(dim=3, keepdim=True)
        return (probabilities * grad - probabilities * inner).permute(0, 2, 3, 1).contiguous()

    return backward, (data(batch, rows, heads * columns), torch.softmax(data(batch, heads, rows, columns), dim=-1))


def _four_gates_on_a_product(large):
    data, half = _Data(large), torch.float16
    rows, inner, columns = (1024, 5098, 1024) if large else (16, 24, 20)

    def gates(x, weight, shifts, gains):
        product = x @ weight
        parts = [torch.sigmoid(product + shift) * gain for shift, gain in zip(shifts, gains, strict=True)]
        return parts[0] + parts[1] + parts[2] + parts[3]

    return gates, (
        data(rows, inner, dtype=half, scale=0.1 if large else 0.2),
        data(inner, columns, dtype=half, scale=0.1 if large else 0.2),
        data(4, columns, dtype=half),
        data(4, columns, dtype=half),
    )


def _ties_at_the_top(large):
    data = _Data(large)

    def share(scores):
        scaled = scores / 128**0.5
        winners = (scaled == scaled.max(dim=-1, keepdim=True).values).float()
        return winners / winners.sum(dim=-1, keepdim=True)

    return share, (data(*((64, 384) if large else (40, 200)), dtype=torch.bfloat16),)


def _constant_into_two_norms(large):
    data = _Data(large)

    def network(image, mean, variance, gain, shift):
        once = functional.elu(functional.batch_norm(image, mean, variance, gain, shift, training=False))
        return (functional.group_norm(once, 4).abs() + 1e-3).log().clamp(min=-8, max=8)

    image = torch.full_like(data(*((4, 8, 6, 6) if large else (3, 8, 5, 5))), 0.37)
    return network, (image, data(8), data(8).abs() + 0.5, data(8), data(8))


def _sums_of_two_products(large):
    data, rows, inner = _Data(large), *((32768, 16) if large else (90, 6))
    arguments = data(rows, inner), data(rows, inner), data(inner, rows)
    return (lambda a, c, shared: (a @ shared).sum(dim=1) + (c @ shared).sum(dim=1)), arguments


def _ladder(large):
    data = _Data(large)

    def climb(low, high):
        for _ in range(13):
            low, high = low + high, high
            low, high = low, torch.tanh(low) * high
        return high + low

    return climb, (data(8), data(8))


def _recurrent_steps(large):
    data, width, steps = _Data(large), *((32, 64) if large else (12, 9))

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
