"""The launcher of packs without a GPU: the table that a kernel reads, its grid, what is refused."""

from __future__ import annotations

import pytest
import torch

from interfuse.base.errors import LaunchError
from interfuse.emit.triton import ALIGN, emit
from interfuse.lower.target import GPU
from interfuse.run import gpu
from interfuse.run.gpu_pack import PackLauncher
from tests import packs
from tests.run.test_gpu import Recording


def made(unit: int = 1) -> tuple[PackLauncher, Recording]:
    (packed,) = packs.packs("narrow", GPU, unit, ((64, 100), (16, 16), (48, 2)))
    function = Recording()
    return PackLauncher(gpu.Launcher(emit(packed.kernel), packed.kernel, function, "cuda")), function


def test_the_table_has_a_column_after_the_other() -> None:
    launch, function = made()
    x, y = [torch.zeros(n) for n in (6400, 1, 2048)], [torch.zeros(n).bfloat16() for n in (6400, 1, 2048)]
    launch([x[0], y[0], x[1], y[1], x[2], y[2]], [6400, 1, 2048])
    ((grid, (table, members), constants),) = function.calls
    assert grid == (13 + 1 + 4,) and members == 3
    assert table.tolist() == [0, 13, 14, *(t.data_ptr() for t in (*x, *y)), 6400, 1, 2048]
    assert constants[ALIGN] == 16


def test_addresses_that_are_not_aligned_are_said_to_be() -> None:
    launch, function = made()
    x, y = torch.zeros(17)[1:], torch.zeros(16).bfloat16()
    launch([x, y], [16])
    assert function.calls[0][2][ALIGN] == 1


def test_members_without_elements_have_no_programs() -> None:
    launch, function = made()
    x, y = torch.zeros(16), torch.zeros(16).bfloat16()
    launch([x, y], [0])
    assert not function.calls
    launch([x, y, x, y, x, y], [0, 16, 0])
    assert function.calls[0][0] == (1,) and function.calls[0][1][0].tolist()[:3] == [0, 0, 1]


def test_wrong_counts_are_refused() -> None:
    launch, function = made()
    x = torch.zeros(16)
    for tensors, sizes in (([x], [16]), ([x, x], []), ([x, x, x, x], [16])):
        with pytest.raises(LaunchError, match="a member"):
            launch(tensors, sizes)
    assert not function.calls
