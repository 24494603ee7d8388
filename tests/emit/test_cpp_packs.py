"""Packed C++ kernels on the machine: every member's results, for any number of members and threads; wrong counts."""

from __future__ import annotations

import pytest
import torch

from interfuse.base.errors import DataError, LaunchError
from interfuse.base.knobs import current, override
from interfuse.build.cache import open_cache
from interfuse.build.cpp import build
from interfuse.emit.cpp import emit
from interfuse.run.cpu import load
from tests import packs, targets
from tests.emit.test_cpp_regions import LEVELS
from tests.judge import judge_region

BIG = (*packs.SHAPES, (40, 1024), (1, 1), (57, 33))


def built(packed: packs.Packed, level: str, streaming: frozenset[str] = frozenset()):  # type: ignore[no-untyped-def]
    with override(vector=level) as knobs:
        source = emit(packed.kernel, level, streaming)
        (artifact,) = build([(packed.kernel.name, source)], knobs, open_cache(current()))
        return load(artifact, packed.kernel)


@pytest.mark.parametrize(("name", "level"), [*((n, LEVELS[0]) for n in packs.CASES), *(("norm", v) for v in LEVELS)])
def test_members_of_any_size_get_their_results(name: str, level: str) -> None:
    for packed in packs.packs(name, targets.CPUS["cpu"], shapes=BIG):
        launch = built(packed, level)
        every = list(range(len(packed.regions)))
        found = packed.ran(launch, every)
        for (_, outputs), k, outs in zip(packed.regions, every, found, strict=True):
            verdict = judge_region(outputs, packed.arrays(k), outs)
            assert verdict.ok, (verdict, outputs)
        for members in ([], [0], every[::-1], every * 3):
            for k, outs in zip(members, packed.ran(launch, members), strict=True):
                assert all(torch.equal(a, b) for a, b in zip(outs, found[k], strict=True))


def test_bits_do_not_depend_on_threads() -> None:
    threads = torch.get_num_threads()
    for packed in packs.packs("norm", targets.CPUS["cpu"], shapes=((2000, 33), (3, 5), (1, 100), (700, 64))):
        launch, found = built(packed, LEVELS[0]), []
        try:
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                found.append(packed.ran(launch, list(range(len(packed.regions)))))
        finally:
            torch.set_num_threads(threads)
        for other in found[1:]:
            for mine, theirs in zip(found[0], other, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_results_may_be_stored_past_the_caches() -> None:
    (packed,) = packs.packs("step", targets.CPUS["cpu"], shapes=((64, 64), (40, 1024)))
    plain = packed.ran(built(packed, LEVELS[0]), [0, 1])
    streamed = packed.ran(built(packed, LEVELS[0], frozenset(("out0", "out1"))), [0, 1])
    for mine, theirs in zip(plain, streamed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_wrong_counts_are_refused() -> None:
    (packed,) = packs.packs("narrow", targets.CPUS["cpu"], shapes=((64, 64), (3, 5)))
    launch = built(packed, LEVELS[0])
    x = torch.zeros(8)
    for tensors, sizes in (([x, x, x], [8]), ([x, x], []), ([x, x], [8, 8])):
        with pytest.raises(LaunchError, match="a member"):
            launch(tensors, sizes)


def test_an_index_outside_in_any_member_is_told() -> None:
    (packed,) = packs.packs("looked_up", targets.CPUS["cpu"], shapes=((3, 40), (64, 32), (40, 100)))
    launch, ids = built(packed, LEVELS[0]), packed.arrays(1)[packed.regions[1][0][1]]
    ids[2] = 64
    with pytest.raises(DataError, match="met an index outside"):
        packed.ran(launch, [0, 1, 2])
    packed.ran(launch, [0, 2])
    ids[2] = 63
    packed.ran(launch, [0, 1, 2])
