"""PyTorch's own operator samples through torch.compile. In: entries of its database. Out: what is wrong with each.

`python -m tests.driver.sweep [float32 [samples]]` goes through all of them, which takes minutes, and prints each that
differs from eager. The tests take a fixed part.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from tests.judge import judge

SKIPPED = {
    "as_strided.partial_views": "the judge's copies of its arguments have other storages",
    "empty": "memory without values",
    "empty_like": "memory without values",
    "empty_permuted": "memory without values",
    "empty_strided": "memory without values",
    "new_empty": "memory without values",
    "new_empty_strided": "memory without values",
    "jiterator_2inputs_2outputs": "runs on GPUs alone",
    "jiterator_4inputs_with_extra_args": "runs on GPUs alone",
    "jiterator_binary": "runs on GPUs alone",
    "jiterator_binary_return_by_ref": "runs on GPUs alone",
    "jiterator_unary": "runs on GPUs alone",
    "linalg.cond": "its last digits differ from run to run",
    "nn.functional.max_unpool2d": "tracing states other strides than eager gives",
    "nn.functional.max_unpool2d.grad": "tracing states other strides than eager gives",
    "sparse.mm.reduce": "sparse values have no strides to compare",
    "sparse.sampled_addmm": "sparse values have no strides to compare",
    "to_sparse": "sparse values have no strides to compare",
}
"""Entries that cannot be judged, each with the reason."""

BY_EAGER = frozenset(("unique", "unique_consecutive"))
"""Entries whose number of results may differ in a float64 run."""


def name_of(op: Any) -> str:
    """An entry's name, with that of its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def entries(dtype: torch.dtype) -> list[Any]:
    """The entries that can be judged in this type on the CPU, by name."""
    return sorted((op for op in op_db if dtype in op.dtypes and name_of(op) not in SKIPPED), key=name_of)


def wrong(op: Any, dtype: torch.dtype, count: int) -> str:
    """What differs between eager and compiled on `count` of the entry's samples, or ""."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype))
    random.Random(0).shuffle(samples)
    given = [(s.input, s.args, s.kwargs) for s in samples[:count]]
    function, backend = op.op, Backend()

    def eager(given: Any) -> list[Any]:
        torch.manual_seed(7)
        return [function(i, *a, **k) for i, a, k in given]

    fast = torch.compile(lambda given: [function(i, *a, **k) for i, a, k in given], backend=backend)

    def compiled(given: Any) -> list[Any]:
        torch.manual_seed(7)
        return fast(given)  # type: ignore[no-any-return]

    with torch.no_grad(), override(race=False):
        try:
            verdict = judge(eager, (given,), compiled, "eager" if name_of(op) in BY_EAGER else "fp64")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    failed = [str(e.facts["error"]) for r in backend.records for e in r.of("fallback")]
    return "; ".join(filter(None, (verdict.note, *failed)))


def main() -> int:
    """The number of entries that differ."""
    dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    warnings.simplefilter("ignore")
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    found = 0
    for op in entries(dtype):
        difference = wrong(op, dtype, count)
        if difference:
            found += 1
            print(f"{name_of(op)}: {difference.splitlines()[0][:300]}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(min(main(), 1))
