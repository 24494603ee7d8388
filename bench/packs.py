"""python -m bench.packs [--device cuda] [case ...]: work over many small tensors; bench/results/packs_<device>.json.

In: case names (all without any). Out: microseconds a call of eager, Interfuse and Inductor, taking turns, and how many
kernels Interfuse launches. Every contender has tensors of its own; results are compared with eager's first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import tree_map

from bench.common import RESULTS, circumstances, commit, save
from interfuse.driver.backend import Backend
from interfuse.driver.exact import tensors_of
from interfuse.driver.options import read
from interfuse.tune.bench import Timing, compare

Tensors = list[torch.Tensor]


def bert(hidden: int, layers: int = 12, vocabulary: int = 3052) -> list[tuple[int, ...]]:
    """The shapes of BERT's 199 parameters at another width."""
    square, wide = (hidden, hidden), (4 * hidden, hidden)
    layer = [square, (hidden,)] * 4 + [(hidden,)] * 2 + [wide, wide[:1], wide[::-1], (hidden,)] + [(hidden,)] * 2
    head = [(vocabulary, hidden), (512, hidden), (2, hidden), (hidden,), (hidden,)]
    return [*head, *(layer * layers), square, (hidden,)]


def adam(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors) -> None:
    """One step of Adam over lists of tensors, as torch.optim writes it."""
    torch._foreach_lerp_(ms, gs, 0.1)
    torch._foreach_mul_(vs, 0.999)
    torch._foreach_addcmul_(vs, gs, gs, 0.001)
    spread = torch._foreach_sqrt(vs)
    torch._foreach_div_(spread, 0.5)
    torch._foreach_add_(spread, 1e-8)
    torch._foreach_addcdiv_(ps, ms, spread, -1e-3)


def features(xs: Tensors, bs: Tensors) -> Tensors:
    """What a recommender does to each of its features."""
    return [torch.relu(x + b) for x, b in zip(xs, bs, strict=True)]


def clip(gs: Tensors) -> None:
    """Gradients scaled to a norm of one, all together, where it is larger."""
    total = torch.stack(torch._foreach_norm(gs)).norm()
    torch._foreach_mul_(gs, torch.clamp(1.0 / (total + 1e-6), max=1.0))


def cast(ps: Tensors) -> Tensors:
    """All weights in the type of the arithmetic."""
    return [p.to(torch.bfloat16) for p in ps]


def _like(shapes: list[tuple[int, ...]], lists: int) -> tuple[Tensors, ...]:
    return tuple([torch.rand(s) for s in shapes] for _ in range(lists))


CASES: Mapping[str, tuple[Callable[..., Any], Callable[[], tuple[Tensors, ...]]]] = {
    "adam_199_width_64": (adam, lambda: _like(bert(64), 4)),
    "adam_199_width_256": (adam, lambda: _like(bert(256), 4)),
    "features_26": (
        features,
        lambda: (
            _like([(512, 16 * (k % 4 + 1)) for k in range(26)], 1) + _like([(16 * (k % 4 + 1),) for k in range(26)], 1)
        ),
    ),
    "clip_199_width_64": (clip, lambda: _like(bert(64), 1)),
    "cast_199_width_64": (cast, lambda: _like(bert(64), 1)),
}


def measure(name: str, device: str, rounds: int) -> dict[str, Any]:
    """One case: a Timing a contender, launches of Interfuse's plan, and the largest difference from eager."""
    function, make = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = tree_map(lambda t: t.to(device), make())
    backend = Backend(read(None, {}))
    contenders = {
        "eager": function,
        "interfuse": torch.compile(lambda *a: function(*a), backend=backend, dynamic=False),
        "inductor": torch.compile(lambda *a: function(*a), dynamic=False),
    }
    own = {label: tree_map(torch.clone, given) for label in contenders}
    with torch.no_grad():
        results = {label: (f(*own[label]), own[label]) for label, f in contenders.items()}
        theirs, mine = (tensors_of(results[label]) for label in ("eager", "interfuse"))
        off = [(a.double() - b.double()).abs().max().item() for a, b in zip(theirs, mine, strict=True)]
        timings = compare(
            {label: (lambda f=f, label=label: f(*own[label])) for label, f in contenders.items()}, device, rounds
        )  # type: ignore[misc]
    plans = [c.plan for c in backend.compiled if c.plan is not None]
    launches = sum(r.choice.launches for p in plans for r in p.regions)
    return {"launches": launches, "difference": max(off), "seconds": {k: asdict(t) for k, t in timings.items()}}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.packs", description="Measure work over many small tensors.")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or RESULTS / f"packs_{args.device}.json"
    found = {name: measure(name, args.device, args.rounds) for name in args.cases or CASES}
    data = {"rounds": args.rounds, "cases": found, "circumstances": circumstances(args.device, commit())}
    save(out, data)
    table = Table("case", "launches", "eager us", "interfuse us", "inductor us", "beside the better")
    for name, case in found.items():
        times = {k: Timing(**t).median * 1e6 for k, t in case["seconds"].items()}
        better = min(times["eager"], times["inductor"]) / times["interfuse"]
        table.add_row(name, str(case["launches"]), *(f"{t:.0f}" for t in times.values()), f"{better:.2f}x")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
