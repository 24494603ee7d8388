"""Random programs of PyTorch calls. In: a seed. Out: a Program: source text, inputs of odd layouts, and its function.

Programs are made by running them: a step that fails, or gives values too large to compare, is left out. Steps compute,
reduce, scan, move, join, convert, and write into values in place; a program has several outputs, views among them.
Decisions (comparisons, places of extremes, roundings) are taken of exact values only, those that no order of sums can
change, so that float64's contract holds for all that follows them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33, 64, 65, 100)
FLOATS = (torch.float32,) * 5 + (torch.bfloat16, torch.float16, torch.float64)
INTS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
LAYOUTS = ("plain",) * 6 + ("transposed", "strided", "offset", "expanded")
LARGEST = 1e4


@dataclass(frozen=True)
class Step:
    """`text` with {0}, {1}, ... for the values `refs`; one that writes in place has no value of its own."""

    text: str
    refs: tuple[int, ...]
    writes: bool = False

    def line(self, names: dict[int, str]) -> str:
        return self.text.format(*(names[r] for r in self.refs))


@dataclass(frozen=True)
class Program:
    """Values are numbered: the inputs, then the steps. `bases` are the tensors that the inputs are views of."""

    bases: tuple[torch.Tensor, ...]
    layouts: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def source(self) -> str:
        """A Python function `program` that takes the inputs."""
        count = len(self.bases)
        names = {k: f"x{k}" for k in range(count)} | {count + k: f"v{k}" for k in range(len(self.steps))}
        lines = [f"def program({', '.join(names[k] for k in range(count))}):"]
        for k, step in enumerate(self.steps):
            lines.append("    " + ("" if step.writes else f"v{k} = ") + step.line(names))
        return "\n".join([*lines, f"    return ({', '.join(names[o] for o in self.outputs)},)"])

    def function(self) -> Callable[..., Any]:
        """The function that `source` writes."""
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(self.source(), space)
        return space["program"]

    def viewed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the bases that calls `function` with the inputs, which lie in them as the layouts say."""
        return lambda *bases: function(*(laid(b, how) for b, how in zip(bases, self.layouts, strict=True)))

    def __str__(self) -> str:
        rows = [
            f"# x{k}: {list(laid(b, how).shape)} {b.dtype} {how}"
            for k, (b, how) in enumerate(zip(self.bases, self.layouts, strict=True))
        ]
        return "\n".join([*rows, self.source()])


def laid(base: torch.Tensor, how: str) -> torch.Tensor:
    """The input that lies in `base`: base itself, its transpose, every second column, all but its start, one row
    repeated, or overlapping windows.
    """
    if how == "transposed":
        return base.t() if base.dim() == 2 else base.transpose(-1, 0)
    if how == "strided":
        return base[..., ::2]
    if how == "offset":
        return base[1:]
    if how == "expanded":
        return base.expand(3, *base.shape)
    if how == "overlapping":
        return base.as_strided((base.numel() - 3, 4), (1, 1))
    return base


UNARY = (
    "torch.relu({0})",
    "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')",
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "torch.exp({0}.clamp(max=4))",
    "torch.sin({0})",
    "torch.cos({0})",
    "torch.abs({0})",
    "-{0}",
    "{0}.abs().sqrt()",
    "torch.rsqrt({0}.abs() + 1)",
    "torch.log1p({0}.abs())",
    "F.silu({0})",
    "F.softplus({0})",
    "torch.erf({0})",
    "1 / ({0}.abs() + 0.5)",
    "{0} ** 2",
    "{0} * 0.5 - 1",
    "{0}.clamp(-1, 2)",
    "F.leaky_relu({0}, 0.1)",
    "F.elu({0})",
    "torch.atan({0})",
    "F.hardswish({0})",
    "{0}.mul(3).add(1)",
)
EXACT = {"torch.relu({0})", "torch.abs({0})", "-{0}"}
BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} / ({1}.abs() + 0.5)",
    "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})",
    "torch.add({0}, {1}, alpha=2)",
    "torch.lerp({0}, {0}, 0.3) + {1}",
    "torch.atan2({0}, {1}.abs() + 0.5)",
    "torch.hypot({0}, {1})",
    "torch.addcmul({0}, {1}, {1}, value=0.5)",
)
EXACT |= {"torch.maximum({0}, {1})", "torch.minimum({0}, {1})"}
INTEGER = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "torch.maximum({0}, {1})",
    "{0} & {1}",
    "{0} | {1}",
    "{0} ^ {1}",
    "{0} // 3",
    "{0} % 5",
    "{0} // -2",
    "~{0}",
    "{0} << 1",
    "{0} >> 2",
    "{0} + 1",
    "-{0}",
    "torch.where({1} != 0, {0} // torch.where({1} != 0, {1}, 1), {0})",
)
COMPARE = ("{0} < {1}", "{0} >= {1}", "{0} == {1}", "{0} > 0", "torch.isnan({0})", "{0} != {1}")
BOOLEAN = ("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}")
REDUCE = (
    "{{0}}.sum({dims}, keepdim={keep})",
    "{{0}}.mean({dims}, keepdim={keep})",
    "{{0}}.amax({dims}, keepdim={keep})",
    "{{0}}.amin({dims}, keepdim={keep})",
    "{{0}}.var({dims}, correction={correction}, keepdim={keep})",
    "{{0}}.std({dims}, correction={correction}, keepdim={keep})",
    "torch.logsumexp({{0}}, {dims}, keepdim={keep})",
    "torch.linalg.vector_norm({{0}}, {p}, {dims}, keepdim={keep})",
    "torch.var_mean({{0}}, {dims}, correction={correction}, keepdim={keep})[1]",
    "{{0}}.tanh().prod({dim}, keepdim={keep})",
)
SCAN = (
    "{{0}}.cumsum({dim})",
    "{{0}}.flip({dim}).cumsum({dim}).flip({dim})",
    "{{0}}.tanh().cumprod({dim})",
    "{{0}}.cummax({dim}).values",
    "{{0}}.cummin({dim}).values",
    "torch.logcumsumexp({{0}}, {dim})",
)
WHOLE = (
    "torch.softmax({{0}}, {dim})",
    "torch.log_softmax({{0}}, {dim})",
    "F.layer_norm({{0}}, {{0}}.shape[-1:])",
    "F.rms_norm({{0}}, {{0}}.shape[-1:])",
    "F.normalize({{0}}, dim={dim})",
)
MOVE = (
    "{{0}}.transpose({dim}, {other})",
    "{{0}}.transpose({dim}, {other}).contiguous()",
    "{{0}}.flip({dim})",
    "{{0}}.narrow({dim}, {start}, {length})",
    "{{0}}.select({dim}, {start})",
    "{{0}}.unsqueeze({dim})",
    "{{0}}.squeeze()",
    "{{0}}.reshape(-1)",
    "{{0}}.reshape({{0}}.shape[0], -1)",
    "{{0}}.unsqueeze({dim}).expand(*{{0}}.shape[:{dim}], 3, *{{0}}.shape[{dim}:])",
    "torch.cat([{{0}}, {{0}} * 2], {dim})",
    "torch.stack([{{0}}, -{{0}}], {dim})",
    "{{0}}.roll(1, {dim})",
    "F.pad({{0}}, (1, 2))",
    "F.pad({{0}}, (-1, 1), value=0.5)",
    "{{0}}.tril()",
    "{{0}}.triu(1)",
    "{{0}}.repeat_interleave(2, {dim})",
    "{{0}}.diagonal()",
    "{{0}}.chunk(2, {dim})[0]",
    "{{0}}.unfold({dim}, {length}, 1)",
    "{{0}}.index_select({dim}, torch.arange({start}, {end}))",
    "{{0}}[..., ::2]",
    "{{0}}.movedim({dim}, 0)",
    "{{0}}.repeat(2, *([1] * ({{0}}.dim() - 1)))",
)
WRITE = (
    "{0}.add_({1})",
    "{0}.mul_(0.5)",
    "{0}.relu_()",
    "{0}.copy_({1})",
    "{0}[..., :1].mul_(2)",
    "{0}[..., -1:].zero_()",
    "{0}.clamp_(-2, 2)",
    "{0}.select(0, 0).fill_(1)",
    "{0}.t().add_(1)",
    "{0}.masked_fill_({0} > 1, 0)",
)
JOIN = ("torch.cat([{0}, {1}], -1)", "torch.cat([{0}, {1}], 0)", "{0} @ {1}.transpose(-1, -2)", "F.linear({0}, {1})")


@dataclass
class _Maker:
    """Grows one program, running every step as it goes. `exact` holds the values that no order of sums can change."""

    chance: random.Random
    bases: list[torch.Tensor] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    exact: set[int] = field(default_factory=set)
    special: bool = False

    def inputs(self) -> None:
        c = self.chance
        self.special = c.random() < 0.1
        dims = [c.choice(SIZES) for _ in range(c.choice((1, 2, 2, 2, 3, 3, 4)))]
        while torch.Size(dims).numel() > 20000:
            dims[c.randrange(len(dims))] = c.choice(SIZES[:6])
        main = c.choice(FLOATS)
        for k in range(c.randint(1, 4)):
            shape = [d if k == 0 or c.random() < 0.8 else 1 for d in dims][0 if k == 0 else c.choice((0, 0, 0, 1)) :]
            kind = c.choice(("float",) * 5 + ("int", "bool")) if k else "float"
            how = c.choice(LAYOUTS)
            if how == "transposed" and len(shape) > 1:
                shape[0], shape[-1] = shape[-1], shape[0]
            elif how == "strided" and shape:
                shape[-1] *= 2
            elif how == "offset" and shape:
                shape[0] += 1
            else:
                how = "plain" if how != "expanded" or k else how
            self.bases.append(self.data(shape, kind, main if c.random() < 0.8 else c.choice(FLOATS)))
            self.layouts.append(how)
        self.values = [laid(b.clone(), how) for b, how in zip(self.bases, self.layouts, strict=True)]
        self.exact = set(range(len(self.values)))

    def data(self, shape: list[int], kind: str, dtype: torch.dtype) -> torch.Tensor:
        g = torch.Generator().manual_seed(self.chance.randrange(1 << 30))
        if kind == "bool":
            return torch.rand(shape, generator=g) < 0.5
        if kind == "int":
            return torch.randint(-9, 100, shape, generator=g).to(self.chance.choice(INTS))
        x = torch.randn(shape, generator=g)
        if self.chance.random() < 0.2:
            x = (x * 2).round() / 2
        if self.special:
            odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
            x = torch.where(torch.rand(shape, generator=g) < 0.05, odd[torch.randint(0, 5, shape, generator=g)], x)
        return x.to(dtype)

    def pick(self, *kinds: str, exact: bool = False, dims: int = 0) -> int | None:
        """A value's number, late ones more often; None where there is none of the kinds."""
        found = [
            k
            for k, v in enumerate(self.values)
            if v is not None and _kind(v) in kinds and (not exact or k in self.exact) and v.dim() >= dims
        ]
        return self.chance.choice(found + found[-4:] * 2) if found else None

    def try_step(self, text: str, *refs: int | None, exact: bool = False, writes: bool = False) -> bool:
        """Add a step if it runs and its values can be compared."""
        if any(r is None for r in refs):
            return False
        step = Step(text, tuple(r for r in refs if r is not None), writes)
        kept = Program(tuple(self.bases), tuple(self.layouts), (*self.steps, step), ())
        try:
            values = run(kept)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        for v in values:
            if v is None:
                continue
            if not isinstance(v, torch.Tensor) or v.numel() > 50000 or v.is_complex():
                return False
            if v.is_floating_point() and not self.special and (not bool(v.isfinite().all()) or _top(v) > LARGEST):
                return False
        self.steps.append(step)
        self.values = values
        if writes:
            if not exact:
                self.exact -= {k for k, v in enumerate(values) if v is not None and _shares(v, values[step.refs[0]])}
        elif exact:
            self.exact.add(len(values) - 1)
        return True

    # --- One method a kind of step

    def unary(self) -> None:
        x, text = self.pick("float"), self.chance.choice(UNARY)
        self.try_step(text, x, exact=x in self.exact and text in EXACT)

    def binary(self) -> None:
        x, y, text = self.pick("float"), self.pick("float"), self.chance.choice(BINARY)
        self.try_step(text, x, y, exact=x in self.exact and y in self.exact and text in EXACT)

    def mixed(self) -> None:
        self.try_step(self.chance.choice(("{0} * {1}", "{0} + {1}")), self.pick("float"), self.pick("int", "bool"))

    def integer(self) -> None:
        self.try_step(self.chance.choice(INTEGER), self.pick("int"), self.pick("int"), exact=True)

    def boolean(self) -> None:
        self.try_step(self.chance.choice(BOOLEAN), self.pick("bool"), self.pick("bool"), exact=True)

    def compare(self) -> None:
        x, y = self.pick("float", "int", exact=True), self.pick("float", "int", exact=True)
        self.try_step(self.chance.choice(COMPARE), x, y, exact=True)

    def choose(self) -> None:
        test, x, y = self.pick("bool"), self.pick("float"), self.pick("float", "int")
        text = self.chance.choice(("torch.where({0}, {1}, {2})", "{1}.masked_fill({0}, -1)", "{1}.masked_fill({0}, 2)"))
        self.try_step(text, test, x, y, exact=x in self.exact and y in self.exact)

    def convert(self) -> None:
        x = self.pick("float", "int", "bool", exact=True)
        to = self.chance.choice(("float32", "float32", "float16", "bfloat16", "float64"))
        if x is not None and _kind(self.values[x]) != "float":
            to = self.chance.choice((to, "int64", "int8", "uint8", "bool"))
        self.try_step(f"{{0}}.to(torch.{to})", x, exact=True)

    def narrow_type(self) -> None:
        self.try_step(f"{{0}}.to(torch.{self.chance.choice(('float16', 'bfloat16', 'float32'))})", self.pick("float"))

    def _filled(self, text: str, x: int) -> str:
        c, v = self.chance, self.values[x]
        dims = sorted(c.sample(range(v.dim()), c.randint(1, v.dim())))
        dim = c.randrange(v.dim())
        start = c.randrange(max(v.shape[dim], 1))
        length = c.randint(1, max(v.shape[dim] - start, 1))
        return text.format(
            dims=tuple(d - v.dim() if c.random() < 0.3 else d for d in dims),
            dim=dim,
            other=c.randrange(v.dim()),
            keep=c.random() < 0.5,
            correction=c.choice((0, 1, 2)),
            p=c.choice(("1", "2", "float('inf')", "-float('inf')")),
            start=start,
            length=length,
            end=start + length,
        )

    def reduce(self) -> None:
        x, text = self.pick("float", dims=1), self.chance.choice(REDUCE)
        if self.special and "var_mean" in text:
            return  # eager's running mean of infinities is NaN or not by their places
        if x is not None:
            self.try_step(self._filled(text, x), x, exact=x in self.exact and ("amax" in text or "amin" in text))

    def arg(self) -> None:
        x = self.pick("float", "int", exact=True, dims=1)
        text = self.chance.choice(
            (
                "{{0}}.argmax({dim}, keepdim={keep})",
                "{{0}}.argmin({dim}, keepdim={keep})",
                "{{0}}.max({dim}, keepdim={keep}).indices",
                "{{0}}.cummax({dim}).indices",
                "{{0}}.argmax()",
                "{{0}}.cummin({dim}).indices",
            )
        )
        if x is not None:
            self.try_step(self._filled(text, x), x, exact=True)

    def count(self) -> None:
        x = self.pick("int", "bool", dims=1)
        text = self.chance.choice(
            (
                "{{0}}.sum({dims}, keepdim={keep})",
                "{{0}}.any({dim}, keepdim={keep})",
                "{{0}}.all({dim}, keepdim={keep})",
                "{{0}}.cumsum({dim})",
                "{{0}}.amax({dims}, keepdim={keep})",
                "{{0}}.prod({dim})",
                "torch.count_nonzero({{0}}, {dim})",
            )
        )
        if x is not None:
            self.try_step(self._filled(text, x), x, exact=True)

    def scan(self) -> None:
        x, text = self.pick("float", dims=1), self.chance.choice(SCAN)
        if x is not None:
            self.try_step(self._filled(text, x), x, exact=x in self.exact and "cumm" in text)

    def whole(self) -> None:
        x = self.pick("float", dims=1)
        if x is not None:
            self.try_step(self._filled(self.chance.choice(WHOLE), x), x)

    def move(self) -> None:
        x = self.pick("float", "float", "int", "bool", dims=1)
        if x is not None:
            self.try_step(self._filled(self.chance.choice(MOVE), x), x, exact=x in self.exact)

    def join(self) -> None:
        self.try_step(self.chance.choice(JOIN), self.pick("float", dims=1), self.pick("float", dims=1))

    def write(self) -> None:
        x = self.pick("float", dims=1)
        if x is not None and not _overlaps(self.values[x]):
            self.try_step(self.chance.choice(WRITE), x, self.pick("float"), writes=True)


KINDS = (
    ["unary"] * 6
    + ["binary"] * 6
    + ["reduce"] * 4
    + ["scan"] * 2
    + ["whole"] * 2
    + ["move"] * 5
    + ["write"] * 2
    + ["mixed", "integer", "integer", "boolean", "compare", "compare", "choose", "choose", "convert", "narrow_type"]
    + ["arg", "count", "join"]
)
"""The kinds of steps, as often as they are wanted."""


def _kind(v: torch.Tensor) -> str:
    return "float" if v.is_floating_point() else "bool" if v.dtype is torch.bool else "int"


def _top(v: torch.Tensor) -> float:
    return float(v.abs().max()) if v.numel() else 0.0


def _overlaps(v: torch.Tensor) -> bool:
    """True where two elements, or two of what the tensor is a view of, may lie in one place."""
    return any(t is not None and t.numel() != len(set(_places(t))) for t in (v, v._base))


def _places(t: torch.Tensor) -> list[int]:
    at = torch.zeros(t.shape, dtype=torch.int64)
    for k, (n, s) in enumerate(zip(t.shape, t.stride(), strict=True)):
        at = at + (torch.arange(n) * s).view(*(1,) * k, n, *(1,) * (t.dim() - k - 1))
    return at.flatten().tolist()


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def run(program: Program) -> list[Any]:
    """Every value of the program as eager leaves it at its end; None for steps that write."""
    values: list[Any] = [laid(b.clone(), how) for b, how in zip(program.bases, program.layouts, strict=True)]
    for step in program.steps:
        space = {"torch": torch, "F": torch.nn.functional, **{f"v{r}": values[r] for r in step.refs}}
        found = eval(step.line({r: f"v{r}" for r in step.refs}), space)
        values.append(None if step.writes else found)
    return values


def program(seed: int, longest: int = 30) -> Program:
    """The program of a seed: up to `longest` steps and up to five outputs."""
    chance = random.Random(seed)
    maker = _Maker(chance)
    maker.inputs()
    for _ in range(chance.randint(min(6, longest), longest)):
        getattr(maker, chance.choice(KINDS))()
    made = [k for k, v in enumerate(maker.values) if v is not None and k >= len(maker.bases)] or [0]
    last = made[-6:]
    outputs = chance.sample(last, min(len(last), chance.randint(1, 4)))
    outputs += [chance.choice(made)] * (chance.random() < 0.5)
    return pruned(Program(tuple(maker.bases), tuple(maker.layouts), tuple(maker.steps), tuple(outputs)))


def pruned(program: Program) -> Program:
    """The program without steps that no output needs. Steps that write stay, and what they read."""
    count = len(program.bases)
    needed = set(program.outputs)
    for k in reversed(range(len(program.steps))):
        if program.steps[k].writes or count + k in needed:
            needed.update(program.steps[k].refs)
    keep = [k for k, s in enumerate(program.steps) if s.writes or count + k in needed]
    number = {k: k for k in range(count)} | {count + k: count + new for new, k in enumerate(keep)}
    steps = tuple(replace(program.steps[k], refs=tuple(number[r] for r in program.steps[k].refs)) for k in keep)
    return replace(program, steps=steps, outputs=tuple(number[o] for o in program.outputs))
