"""Joined parts through the front doors: one kernel with what is around them, values inside the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from interfuse.driver.backend import Backend
from interfuse.driver.options import read
from tests.judge import judge

pytestmark = pytest.mark.usefixtures("own_cache", "no_gradients")


def regions(f: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """The regions of `f` and how each runs, once the judge has found its values good."""
    backend = Backend(read())
    verdict = judge(f, inputs, torch.compile(f, backend=backend))
    assert verdict.ok, verdict.note
    assert [e.facts for r in backend.records for e in r.of("fallback")] == []
    return [f"{r.name}: {r.choice.label}" for c in backend.compiled if c.plan for r in c.plan.regions]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_rotary_embedding_of_queries_and_keys_is_one_kernel(dtype: torch.dtype) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = (torch.randn(2, 7, heads, 64, dtype=dtype).transpose(1, 2) for heads in (4, 2))
    cos, sin = torch.randn(2, 7, 64, dtype=dtype), torch.randn(2, 7, 64, dtype=dtype)
    assert regions(llama.apply_rotary_pos_emb, q, k, cos, sin) == ["mul+neg+cat+mul+add x2: packed: map"]


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]


def _case(wanted: str, f: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    return f, tuple(torch.randn(s) for s in shapes), wanted


FUSED: dict[str, Case] = {
    "rotary": _case(
        "mul+neg+cat+mul+add: fused: map",
        lambda x, cos, sin: x * cos + rotate_half(x) * sin,
        (2, 4, 7, 22),
        (7, 22),
        (7, 22),
    ),
    "append": _case("cat: fused: map", lambda past, new: torch.cat([past, new], -2), (2, 3, 9, 8), (2, 3, 1, 8)),
    "dense block": _case(
        "cat+mul+add+relu: fused: map",
        lambda a, b, scale, shift: F.relu(torch.cat([a, b], 1) * scale + shift),
        (2, 3, 6, 7),
        (2, 5, 6, 7),
        (8, 1, 1),
        (8, 1, 1),
    ),
    "norm of a cat": _case(
        "mul+cat+layer_norm: fused: row, resident",
        lambda a, b: F.layer_norm(torch.cat([a, b * 2], -1), (48,)),
        (4, 20),
        (4, 28),
    ),
    "paired": _case(
        "mul+gelu+cat: fused: map",
        lambda x: torch.cat([x.chunk(2, -1)[0] * 2, F.gelu(x.chunk(2, -1)[1])], -1),
        (4, 40),
    ),
    "stacked": _case("add+stack: fused: map", lambda a, b: torch.stack([a, b + 1], -1), (5, 7), (5, 7)),
    "promoted": _case("cast+cat+mul: fused: map", lambda a, b: torch.cat([a, b.int()], 0) * 2, (3, 5), (2, 5)),
    "padded": _case("constant_pad_nd+add: fused: map", lambda x: F.pad(x, (1, -2, 1, 1), value=2.0) + 1, (2, 3, 6, 7)),
    "reflected": _case(
        "reflection_pad2d+add: fused: map", lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect") + 1, (2, 3, 6, 7)
    ),
    "replicated": _case("replication_pad1d+add: fused: map", lambda x: F.pad(x, (3, 0), mode="replicate") + 1, (3, 7)),
    "shifted windows": _case(
        "roll+add: fused: map",
        lambda x: torch.roll(x, (-1, -1), (1, 2)).view(2, 2, 2, 3, 2, 5).transpose(2, 3) + 1,
        (2, 4, 6, 5),
    ),
    "flipped": _case("flip+mul: fused: map", lambda x: x.flip(0, -1) * 2, (4, 9)),
    "flipped back": _case("flip+cumsum+flip: fused: row, resident", lambda x: x.flip(-1).cumsum(-1).flip(-1), (4, 19)),
    "repeated": _case("repeat+mul: fused: map", lambda x: x.repeat(2, 1, 3) * 2, (4, 9)),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name: str) -> None:
    f, inputs, wanted = FUSED[name]
    assert regions(f, *inputs) == [wanted]


@pytest.mark.parametrize("dtype", (torch.int8, torch.uint8, torch.int16, torch.bool), ids=str)
def test_unpacked_weights_are_one_kernel(dtype: torch.dtype) -> None:
    """Two codes of four bits a byte, side by side: parts that are read element by element, of types of two words."""
    packed, scale = torch.randint(0, 99, (7, 18)).to(dtype), torch.randn(7, 1)

    def unpack(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        low, high = (packed, ~packed) if dtype is torch.bool else (packed & 15, packed >> 4)
        return torch.stack([low, high], -1).reshape(7, -1).float() * scale

    (only,) = regions(unpack, packed, scale)
    assert only.endswith("stack+cast+mul: fused: map")


def test_a_part_that_is_written_is_one_kernel() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1:3].mul_(3)
        return y

    assert regions(f, torch.randn(4, 6)) == ["clone+mul+slice_scatter: fused: map"]


def test_circular_padding_is_written_by_one_kernel() -> None:
    found = regions(lambda x: F.pad(x, (1, 2, 1, 1), mode="circular") * 2, torch.randn(2, 3, 6, 7))
    assert found[-1].endswith("more+mul: fused: map") and found[:-1] == ["new_empty: library: new_empty"]


def test_many_parts_stay_a_library_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * k for k in range(10)], -1)

    assert regions(f, torch.randn(4, 6))[-1] == "cat: library: cat"


def test_a_growing_cache_is_one_compile() -> None:
    def f(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, new * 0.5], dim=-2)

    backend = Backend(read())
    fast = torch.compile(f, backend=backend)
    past = torch.randn(2, 3, 4, 10)
    for _ in range(9):
        torch._dynamo.mark_dynamic(past, 2)
        new = torch.randn(2, 3, 1, 10)
        verdict = judge(f, (past, new), lambda p, n: fast(torch._dynamo.mark_dynamic(p, 2) or p, n))
        assert verdict.ok, verdict.note
        past = f(past, new)
    (only,) = backend.compiled
    assert [r.choice.label for r in only.plan.regions] == ["fused: map"]


def test_training_a_rotary_embedding_takes_a_kernel_each_way() -> None:
    def f(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return x * cos + rotate_half(x) * sin

    backend = Backend(read())
    fast = torch.compile(f, backend=backend)
    x, cos, sin = torch.randn(2, 4, 7, 22), torch.randn(7, 22), torch.randn(7, 22)
    weight, gradients = torch.randn(2, 4, 7, 22), []
    with torch.enable_grad():
        for way in (f, fast):
            leaf = x.clone().requires_grad_()
            (way(leaf, cos, sin) * weight).sum().backward()
            gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    assert [r.choice.family for c in backend.compiled for r in c.plan.regions] == ["map", "map"]
