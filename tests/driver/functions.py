"""Functions of every kind that a model may hold. In: nothing. Out: FUNCTIONS: what to run, on what, how to judge.

Each is small and gives its results in a fixed order. The tests run it compiled and compare with eager; what they hold
is not that a kernel runs, but that nothing crashes and nothing is silently wrong.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
_DATA = torch.Generator().manual_seed(5)


@dataclass(frozen=True)
class Function:
    """`call(*arguments)`; `rule` is the judge's."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    rule: str = "fp64"


FUNCTIONS: dict[str, Function] = {}


def _function(*arguments: Any, rule: str = "fp64") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[call.__name__.strip("_")] = Function(call, arguments, rule)
        return call

    return register


def _data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=_DATA).to(dtype)


def _integers(*shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, generator=_DATA, dtype=dtype)


X, Y, Z = _data(4, 8), _data(4, 8), torch.complex(_data(4, 8), _data(4, 8))
I = _integers(4, 8)  # noqa: E741
PLACES = _integers(4, 8, low=0, high=4)

# --- One tensor read in several ways


@_function(_data(7, 40).t())
def _sums_of_rows_and_columns_beside_a_difference(x: Tensor) -> Any:
    return x.sum(-1), x.sum(0), x.sum(), x.diff(dim=-1)


@_function(_data(64, 4))
def _sums_of_rows_and_columns_beside_every_other_element(x: Tensor) -> Any:
    return x.sum(-1), x.sum(0), x[::2, ::2] * 2, x[:1] * 2


# --- Writing in place


@_function(X, Y)
def _inputs_are_written(x: Tensor, y: Tensor) -> Any:
    x.copy_(torch.tanh(y) * 2)
    y.relu_().mul_(0.5)
    x[1].mul_(2)
    x.t()[0].add_(1)
    return torch.exp(x) * y


@_function(X)
def _an_input_is_written_through_a_view_and_returned(x: Tensor) -> Any:
    flat = x.view(-1)
    flat.mul_(3)
    x[:, 1:3] += 1
    x.fill_diagonal_(0.25)
    return x, flat, torch.softmax(x, -1), x.t()


@_function(X)
def _only_writes(x: Tensor) -> None:
    x.mul_(2).add_(1).sigmoid_()


@_function(X, Y, _integers(3, low=0, high=4), _data(3, 8))
def _writes_by_index(x: Tensor, y: Tensor, i: Tensor, v: Tensor) -> Any:
    x[i] = 0.5
    x[x > 1] = -1.0
    y.index_add_(0, i, v)
    y.masked_fill_(y > 1, 1.0)
    return torch.index_put(x, (i,), v, accumulate=True) * 2, y.scatter_add(1, i[None].expand(4, 3), v[:1].expand(4, 8))


@_function(X, Y)
def _writes_into_out(x: Tensor, y: Tensor) -> Any:
    torch.exp(x, out=y)
    own = torch.empty(4, 8)
    torch.add(y, 1, out=own)
    return torch.tanh(own), y * 2


@_function(X)
def _resizes(x: Tensor) -> Tensor:
    return x.clone().resize_(2, 4) + 1


# --- Views


@_function(_data(16))
def _overlapping_views(x: Tensor) -> Any:
    y = x.as_strided((3, 4), (2, 1))
    return torch.softmax(y, -1), y.sum(0), x.as_strided((2, 3), (1, 2), 3).exp(), x.unfold(0, 3, 2).mean(-1)


@_function(X)
def _views_come_back(x: Tensor) -> Any:
    return x.t(), x[1:], x.view(-1), x.unsqueeze(0), x.expand(2, 4, 8), x.diagonal(), x.view(torch.int32), x


@_function(X)
def _moved_elements(x: Tensor) -> Any:
    halves = [t * 2 for t in x.split(3, 1)]
    padded = F.pad(x, (1, 2)), F.pad(x, (1, 1), mode="reflect"), F.pad(x, (-1, 2), value=3)
    return *halves, *x.unbind(0), *padded, x.flip(0) * 2, x.roll(1, 1) + 1, torch.rot90(x), torch.stack([x, x + 1], -1)


@_function(_data(2, 3, 4, 5).to(memory_format=torch.channels_last), _data(8, 4).t(), Y)
def _laid_out_otherwise(image: Tensor, x: Tensor, y: Tensor) -> Any:
    return torch.softmax(image * 2, 1), image.relu().contiguous(), torch.tanh(x) + y, x.cumsum(0), image.mean((2, 3))


@_function(X)
def _copies_and_strides(x: Tensor) -> Any:
    y = (x.sign() * 4).to(torch.bfloat16)
    narrow = y, y.float() * 2, y.float() + 1
    wide = x[:, :1].expand(-1, 8) * 2, x.amax(-1, keepdim=True).expand(-1, 8).clone(), x.view(-1)[3].exp()
    return *narrow, *wide, x, x.clone(), x + 0, x + 0, x.t().contiguous() + x.t(), x[:, ::2] - x[:, 1::2]


# --- Other types than floats


@_function(I)
def _integers_(i: Tensor) -> Any:
    bits = i >> 1, i << 2, i & 3, i | 4, i ^ 5, ~i
    divided = i // 3, i % 3, torch.div(i, -3, rounding_mode="trunc"), torch.fmod(i, 3), torch.remainder(i, -3), i / 3
    return *bits, *divided, -i, i.abs(), i**2, i.sum(), i.prod(1), i.amax(0), i.cumsum(1), i.argmin(0), i * 3 + 2**40


@_function(_integers(4, 8, low=-128, high=127, dtype=torch.int8), _integers(4, 8, low=0, high=255, dtype=torch.uint8))
def _narrow_integers_wrap(i: Tensor, u: Tensor) -> Any:
    return i * 2, i + i, i.sum(), u * 3, ~u, u // 7, u.float() / 255, i.to(torch.int16) * 300, u.cumsum(0)


@_function(X > 0, X)
def _booleans(b: Tensor, x: Tensor) -> Any:
    return b & (x > 0), b | (x < 0), b ^ (x > 1), ~b, b.any(), b.all(0), b.sum(1), torch.where(b, x, 0), b * x


@_function(I, X)
def _mixed_types(i: Tensor, x: Tensor) -> Any:
    return (
        i + x,
        i * 2.5,
        i + True,
        x.half() + x,
        x.bfloat16() * i,
        (x > 0) + (i > 0),
        x.double() + x,
        x.to(torch.int32),
    )


@_function(Z)
def _complex(z: Tensor) -> Any:
    plain = z * 2 + 1j, z.conj() * z, z.abs(), z.angle(), z.real, z.imag, z.exp(), z.sum(-1), z @ z.mT
    return (
        *plain,
        torch.view_as_real(z) * 2,
        torch.complex(z.real.tanh(), z.imag * 2).abs(),
        torch.polar(z.abs(), z.real),
    )


@_function(_data(16, 64, dtype=torch.bfloat16), rule="eager")
def _decisions_see_rounded_values(x: Tensor) -> Any:
    y = x / 3
    return y.argmax(-1), y == y.amax(-1, keepdim=True), (x * 1.1).floor(), torch.topk(x * 1.1, 2)


@_function(_data(4, 8, dtype=torch.float16), _data(4, 8, dtype=torch.bfloat16), _data(4, 8, dtype=torch.float64))
def _other_floats(h: Tensor, b: Tensor, d: Tensor) -> Any:
    return torch.softmax(h * 2, -1), F.layer_norm(F.gelu(b), (8,)), F.layer_norm(torch.tanh(d), (8,)), d.float() + h


# --- Order, and sizes that depend on values


@_function(_data(6, 9))
def _order(x: Tensor) -> Any:
    stable = torch.sort(x.round(), dim=0, descending=True, stable=True)
    others = x.kthvalue(2), x.median(-1), x.mode(-1), torch.searchsorted(torch.sort(x).values, x), x.argsort()
    return torch.sort(x * 2), stable, [t * 2 for t in torch.topk(torch.tanh(x), 3)], others


@_function(I)
def _unique(i: Tensor) -> Any:
    return torch.unique(i) * 2, torch.unique_consecutive(i.flatten()), torch.bincount(i.flatten() + 9)


@_function(X, torch.tensor([1, 0, 2, 3]))
def _sizes_from_values(x: Tensor, n: Tensor) -> Any:
    return torch.nonzero(x > 0) * 2, x[x > 0] * 2, torch.masked_select(x, x > 0).exp(), x.repeat_interleave(n, 0) + 1


@_function(X)
def _numbers_from_values(x: Tensor) -> Any:
    if x.sum() > 1e9:
        return x
    count = int(x.abs().sum().item()) % 4 + 1
    return x[:count] * x.mean().item()


# --- Sizes of none and one, values that are none


@_function(torch.tensor(1.5), torch.tensor(3))
def _single_numbers(a: Tensor, n: Tensor) -> Any:
    return a + n, torch.exp(a) / n, a.sum(), torch.stack([a, a]), torch.softmax(a, 0), a.cumsum(0), a.argmax(), n // 2


@_function(_data(0, 8), _data(3, 8))
def _empty(x: Tensor, w: Tensor) -> Any:
    several = x * 2 + 1, x.sum(), x.sum(0), torch.cat([x, x]), torch.softmax(x, -1), F.layer_norm(x, (8,))
    return *several, F.gelu(F.linear(x, w)), w[:, :0].sum(-1), torch.cat([x, w]) * 2


@_function(X)
def _reductions_of_nothing_and_of_constants(x: Tensor) -> Any:
    rows, columns, ones = x[:, :0], x[:0], torch.ones_like(x)
    along = rows.sum(-1), rows.mean(-1), rows.prod(-1), (rows > 0).any(-1), (x * 2)[:, :0].sum(), rows @ columns
    down = (columns + 1).sum(0), (columns > 0).all(0), columns.var(0), torch.logsumexp(rows, -1)
    return *along, *down, torch.softmax(ones * 0.5, -1), F.gelu(ones) + 1, torch.softmax(torch.arange(8.0), -1)


@_function(torch.tensor([[float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1e38, -1.0]]))
def _not_numbers(x: Tensor) -> Any:
    pointwise = [f(x) for f in (torch.relu, F.gelu, torch.sigmoid, torch.tanh, torch.exp, torch.log, torch.rsqrt)]
    clamped = x.clamp(-1, 1), torch.maximum(x, torch.zeros(8)), torch.nan_to_num(x), torch.fmax(x, x + 1), x.isnan()
    reduced = x.amax(-1), x.amin(-1), torch.softmax(x, -1), x.sum(-1), x.argmax(-1), x.cumsum(-1), x.cummax(-1)
    hidden = torch.full((2, 9), -float("inf"))
    return *pointwise, *clamped, *reduced, torch.softmax(hidden, -1), torch.logsumexp(hidden, -1)


# --- What comes in and goes out

Pair = namedtuple("Pair", "first second")


@_function({"a": X, "b": [Y, None, 3]}, 2.5, "name", None, True)
def _containers(given: Any, number: float, word: str, nothing: None, flag: bool) -> Any:
    y = given["a"] * number if flag and nothing is None else given["a"]
    return {"pair": Pair(y, torch.softmax(y, -1)), word: [y.sum(), None, 3, "text"]}, y, y, given["b"][0], torch.ones(3)


@_function(X)
def _generators_and_loops(x: Tensor) -> Any:
    def parts() -> Any:
        for k, row in enumerate(x):
            yield row * k

    try:
        raise ValueError
    except ValueError:
        return torch.stack(list(parts())), tuple(x * k for k in range(12)), functools.reduce(torch.add, list(x))


@_function(X)
def _breaks(x: Tensor) -> Tensor:
    y = torch.from_numpy((x * 2).numpy() + 1)
    print("", end="")
    return torch.tanh(_disabled(y + 1)) * 2


@torch.compiler.disable
def _disabled(x: Tensor) -> Tensor:
    return x * 2


# --- Graphs within graphs, transforms


@_function(X)
def _control_flow(x: Tensor) -> Any:
    loop = torch._higher_order_ops.while_loop
    looped = loop(lambda i, y: i < 5, lambda i, y: (i + 1, torch.tanh(y) + 1), (torch.tensor(0), x))[1]
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: torch.softmax(x, -1), (x,)), looped * 2


@_function(X, _data(8, 5))
def _transforms(x: Tensor, w: Tensor) -> Any:
    mapped = torch.vmap(lambda row: torch.softmax(row * 2, -1) @ w)(x)
    slope = torch.func.grad(lambda t: (torch.tanh(t) * t).sum())(x)
    jacobian = torch.func.jacrev(lambda t: torch.softmax(t, -1))(x[0])
    return mapped, slope, jacobian, torch.func.jvp(torch.tanh, (x,), (x + 1,)), torch.func.hessian(_cubes)(x[0])


def _cubes(t: Tensor) -> Tensor:
    return (t**3).sum()


# --- Layers and library routines


@_function(_data(2, 3, 8, 8), _data(5, 3, 3, 3), _data(2, 5, 5, 2))
def _images(x: Tensor, w: Tensor, grid: Tensor) -> Any:
    pooled = F.avg_pool2d(x, 2) * 2, F.adaptive_avg_pool2d(x, 1), F.max_pool2d(x, 2, return_indices=True)
    turned = F.conv_transpose2d(x, w.transpose(0, 1)), F.conv1d(x[:, :, 0], w[..., 0])
    sampled = F.grid_sample(x, torch.tanh(grid), align_corners=False) * 2, F.interpolate(x, scale_factor=2) + 1
    return F.relu(F.conv2d(x, w, stride=2, dilation=2)), *pooled, *turned, *sampled, F.instance_norm(x)


@_function(PLACES, _data(9, 5), torch.tensor([0, 8, 20]))
def _embeddings(i: Tensor, w: Tensor, starts: Tensor) -> Any:
    bags = F.embedding_bag(i, w, mode="max"), F.embedding_bag(i.flatten(), w, starts, mode="sum") * 2
    return *bags, torch.tanh(F.embedding(i, w, padding_idx=0)) + 1, F.one_hot(i, 4).float() * 2


@_function(_data(2, 4, 4), _data(2, 4, 5))
def _products(a: Tensor, b: Tensor) -> Any:
    sums = torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij->b", a), torch.einsum("bii->bi", a)
    one = a[:, 1:2] @ b + 1, torch.relu(a @ b[..., 2:3])
    x, y = a[0], b[0]
    return (
        *sums,
        *one,
        torch.addmm(y, x, y, beta=2, alpha=0.5),
        torch.outer(x[0], y[0]),
        x.mv(x[0]),
        torch.kron(x, y),
        x @ y,
    )


@_function(_data(2, 32), _data(4, 4))
def _library_routines(x: Tensor, a: Tensor) -> Any:
    spectra = torch.fft.fft(x).abs(), torch.fft.irfft(torch.fft.rfft(x * 2)), torch.fft.fft2(x).imag
    square = a @ a.mT + 4 * torch.eye(4)
    return *spectra, torch.linalg.inv(square), torch.linalg.solve(square, a), torch.linalg.cholesky(square), a.det()


@_function(_data(2, 2, 6, 8), _data(2, 2, 6, 8), _data(2, 2, 6, 8))
def _attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    attend = F.scaled_dot_product_attention
    lower = torch.ones(6, 6, dtype=torch.bool).tril()
    return attend(q, k, v), attend(q, k, v, is_causal=True), attend(q, k, v, attn_mask=lower) + q


@_function(X, PLACES)
def _gathers_and_scatters(x: Tensor, i: Tensor) -> Any:
    read = x.gather(1, i), x.take(i), torch.take_along_dim(x, i, 1), x.index_select(0, i[0]), x[i[0], i[1]]
    return *read, x.scatter(1, i, 2.0), x.scatter_reduce(1, i, x, "amax"), x.index_fill(0, i[0, :1], 9.0), x.tril()


@_function(X, Y, _integers(4, low=0, high=8))
def _losses(x: Tensor, y: Tensor, t: Tensor) -> Any:
    labels = F.cross_entropy(x, t), F.cross_entropy(x, t, label_smoothing=0.1, reduction="none"), F.nll_loss(x, t)
    others = [f(x, y) for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.cosine_similarity)]
    return *labels, *others, F.kl_div(F.log_softmax(x, -1), torch.softmax(y, -1), reduction="batchmean")


@_function(_data(3, 4, 6))
def _reductions_and_scans(x: Tensor) -> Any:
    moments = x.std(-1), x.var((1, 2)), torch.std_mean(x, correction=0), x.norm(), torch.logsumexp(x, (0, 1))
    ends = torch.aminmax(x), x.prod(-1), x.nansum(), torch.count_nonzero(x, 1), x.any(1), x.sum((0, 2))
    return *moments, *ends, x.cumprod(1), x.cummax(1), torch.logcumsumexp(x, 1), x.flip(1).cumsum(1).flip(1), x.diff()


@_function(X)
def _activations_and_special_functions(x: Tensor) -> Any:
    names = "relu6 elu selu celu leaky_relu hardtanh hardswish hardsigmoid mish softplus softsign logsigmoid silu glu"
    special = "erf erfc expm1 sinc sinh atan i0 round trunc frac"
    return *(getattr(F, n)(x) for n in names.split()), *(getattr(torch, n)(x) for n in special.split())


@_function(_data(4, 8), _data(5, 8))
def _autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.softmax(F.gelu(F.linear(x, w)), -1) + 1


@_function(X)
def _a_long_chain(x: Tensor) -> Tensor:
    for k in range(40):
        x = torch.sin(x) + k
    return x
