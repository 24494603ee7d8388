"""Cases for the cost model whose sizes nobody chose. In: a seed. Out: for each name a function and its inputs.

Each form of kernel is drawn with sizes and element types of its own: from 2**16 elements to 2**26, rows from
64 elements to 2**16, a fifth of them of odd lengths. SEEN is there to look at and to fit; HELD_BACK is only judged, and
is a third of all cases: those of bench/memory_cases.py, SEEN and these.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from bench import memory_cases as known
from bench.memory_cases import BF16, F8, F32, HALF, I8, Case, _ids, _t

TYPES = {"f16": HALF, "bf16": BF16, "f32": F32}
SMALLEST, LARGEST = 2**16, 2**26
"""Elements of a case's largest tensor."""


class Draw:
    """One drawing. Only `random()` is asked of the generator: its numbers are the same in every Python."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random
        self.label = self.of(*TYPES)
        self.dtype = TYPES[self.label]

    def of(self, *choices: Any) -> Any:
        """One of the choices."""
        return choices[int(self._random() * len(choices))]

    def between(self, low: int, high: int) -> int:
        """A whole number, every factor of two as likely as any other."""
        return round(2 ** (math.log2(low) + self._random() * math.log2(high / low)))

    def length(self, low: int, high: int) -> int:
        """A length of rows: three fifths multiples of 64, a fifth powers of two, a fifth whatever comes."""
        kind, n = self._random(), self.between(low, high)
        return n if kind < 0.2 else 2 ** round(math.log2(n)) if kind < 0.4 else max(64, n // 64 * 64)

    def rows(self, cols: int, largest: int = LARGEST) -> tuple[int, int]:
        """A shape with rows of `cols`."""
        return max(1, self.between(max(SMALLEST, cols), largest) // cols), cols

    def matrix(self, low: int = 64, high: int = 2**16) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows(self.length(low, high))

    def images(self) -> tuple[int, int, int, int]:
        """Images, channels (a multiple of 16), height and width."""
        channels, side = 16 * self.between(1, 64), self.between(7, 112)
        each = channels * side**2
        return max(1, self.between(max(SMALLEST, each), LARGEST) // each), channels, side, side


Shape = tuple[int, ...]
Forms = Mapping[str, tuple[Callable[..., Any], tuple[Shape, ...]]]
"""By name a function and the shapes of its inputs."""


def _vector(shape: Shape) -> Shape:
    return (shape[-1],)


def _maps(d: Draw) -> Forms:
    m, even = d.matrix(), d.rows(2 * d.length(64, 2**14))
    image, rows, narrow = d.images(), d.rows(128), d.matrix(64, 2**14)
    channels = (image[1],)
    return {
        "bias_gelu": (lambda x, b: F.gelu(x + b), (m, _vector(m))),
        "relu_residual": (lambda x, r: F.relu(x) * 0.5 + r, (m, m)),
        "swiglu": (known.swiglu, (even,)),
        "gelu_f8": (lambda x: F.gelu(x).to(F8), (m,)),
        "batch_norm_relu": (
            lambda x, r, m, v, w, b: F.relu(F.batch_norm(x, m, v.abs() + 0.5, w, b) + r),
            (image, image, *[channels] * 4),
        ),
        "rope": (known.rope, ((1, rows[0], 8, 128), (rows[0], 128), (rows[0], 128))),
        "transposed_add": (lambda x, r: (x.mT + r).contiguous(), (narrow, narrow[::-1])),
    }


def _rows(d: Draw) -> Forms:
    m, w = d.matrix(), d.matrix(256, 2**14)
    v, few = _vector(w), d.rows(d.length(2**12, 2**17), 2**24)
    return {
        "add_ln": (lambda x, r, w, b: known.norm(x + r, w, b), (w, w, v, v)),
        "rms_keep": (known.rms_keep, (w, w, v)),
        "softmax_mask": (lambda x, m: torch.softmax(x * 0.125 + m, -1), (m, _vector(m))),
        "log_softmax": (lambda x: torch.log_softmax(x, -1), (few,)),
        "unit_rows": (lambda x: x / x.float().pow(2).sum(-1, keepdim=True).sqrt().to(x.dtype), (w,)),
        "row_q8": (lambda x: known.quantised(x.float(), I8, 127), (m,)),
        "row_variance": (lambda x: torch.var_mean(x.float(), -1), (m,)),
        "ln_transpose": (lambda x, w, b: known.norm(x, w, b).mT.contiguous(), (w, v, v)),
        "cumsum": (lambda x, s: torch.cumsum(x.float(), -1) * s, (w, v)),
        "cumsum_reverse": (lambda x: x.float().flip(-1).cumsum(-1).flip(-1), (w,)),
    }


def _columns(d: Draw) -> Forms:
    m, image, w = d.matrix(), d.images(), d.matrix(256, 2**14)
    middle = (d.between(2, 64), *d.rows(d.length(64, 2**11), LARGEST // 64))
    return {
        "column_variance": (lambda x: torch.var_mean(x.float(), 0), (m,)),
        "bias_gradient": (lambda g: g.float().sum(0).to(HALF), (m,)),
        "softmax_middle": (lambda x: torch.softmax(x, 1), (middle,)),
        "cumsum_middle": (lambda x: torch.cumsum(x.float(), 1).to(HALF), (middle,)),
        "group_norm_silu": (
            lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)),
            (image, (image[1],), (image[1],)),
        ),
        "batch_statistics": (lambda x: torch.var_mean(x.float(), (0, 2, 3)), (image,)),
        "whole_norm": (lambda x: x / x.float().pow(2).sum().sqrt(), (w,)),
    }


def _others(d: Draw) -> Mapping[str, Case]:
    """What takes more than tensors of random numbers."""
    scores, w, count = d.matrix(256, 2**16), d.matrix(256, 2**14), d.of(8, 20, 50)
    each, words = d.rows(d.length(64, 2**10), 2**20), d.between(2**10, 2**15)
    back = torch.ops.aten.native_layer_norm_backward.default
    dtype = d.dtype

    def backward() -> tuple[Any, ...]:
        x, v = _t(*w, dtype=dtype), _t(w[1], dtype=dtype)
        _, mean, rstd = torch.ops.aten.native_layer_norm.default(x, (w[1],), v, v, 1e-5)
        return _t(*w, dtype=dtype), x, mean, rstd, v, v

    def many(count: int, shape: Shape) -> list[torch.Tensor]:
        return [_t(*shape, dtype=dtype) for _ in range(count)]

    return {
        f"cross_entropy {_by(scores)}": Case(
            lambda x, t: F.cross_entropy(x.float(), t), lambda: (_t(*scores, dtype=dtype), _ids(scores[1], scores[0]))
        ),
        f"ln_backward {_by(w)}": Case(lambda g, x, m, s, v, b: back(g, x, (w[1],), m, s, v, b, [True] * 3), backward),
        f"embedding_ln {_by(w)}": Case(
            lambda i, e, v, b: known.norm(F.embedding(i, e), v, b),
            lambda: (_ids(words, w[0]), _t(words, w[1], dtype=dtype), *[_t(w[1], dtype=dtype)] * 2),
        ),
    } | {
        f"{name}_{count} {_by(each)}": case
        for name, case in {
            "step": Case(known.adam, lambda: tuple(many(count, each) for _ in range(3))),
            "concat": Case(lambda *p: torch.cat([F.relu(t) for t in p], -1), lambda: tuple(many(count, each))),
        }.items()
    }


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))


def drawn(seed: int) -> dict[str, Case]:
    """A case of each form, named by the form, the largest input and its element type."""
    found: dict[str, Case] = {}
    for family in (_maps, _rows, _columns):
        for form in family(Draw("")):
            d = Draw(f"{seed} {form}")
            function, shapes = family(d)[form]
            inputs = lambda d=d, shapes=shapes: tuple(_t(*s, dtype=d.dtype) for s in shapes)  # noqa: E731
            found[f"{form} {_by(shapes[0])} {d.label} #{seed}"] = Case(function, inputs)
    for number in range(len(_others(Draw("")))):
        d = Draw(f"{seed} other {number}")
        form, case = list(_others(d).items())[number]
        found[f"{form} {d.label} #{seed}"] = case
    return found


def _drawings(*seeds: int) -> dict[str, Case]:
    return {name: case for seed in seeds for name, case in drawn(seed).items()}


SEEN: Mapping[str, Case] = _drawings(1, 4, 6, 7, 8, 9)
HELD_BACK: Mapping[str, Case] = _drawings(2, 3, 5, 10, 11)
CASES: Mapping[str, Case] = {**known.CASES, **SEEN, **HELD_BACK}
"""Every case by name."""
