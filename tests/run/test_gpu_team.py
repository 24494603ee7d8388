"""Launching kernels of teams without a GPU. In: a kernel. Out: whole teams, no more than there is room for, and words
for each launch that may run beside others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from interfuse.base.errors import LaunchError
from interfuse.build.resources import Resources
from interfuse.device.table import find
from interfuse.emit.triton import emit
from interfuse.ir.dtypes import F32
from interfuse.lower.families import lower
from interfuse.run import gpu, gpu_team
from interfuse.run.gpu_team import SPARE, TeamLauncher
from tests import online, teams


class Device:
    """Stands for a GPU: what is launched on it, which stream is current, and whether a graph is being captured."""

    type, index = "cuda", 0

    def __init__(self) -> None:
        self.stream, self.capturing, self.zeroed, self.waited = 1, False, 0, 0
        self.units = 8

    def zeros(self, count: int, width: int, **_: Any) -> torch.Tensor:
        self.zeroed += 1
        return torch.tensor([0]).expand(count, width).clone()

    def synchronize(self) -> None:
        self.waited += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    here = Device()
    cuda = SimpleNamespace(
        device=lambda _: nullcontext(),
        is_current_stream_capturing=lambda: here.capturing,
        current_stream=lambda: SimpleNamespace(cuda_stream=here.stream, synchronize=here.synchronize),
    )
    profile = find("H100")
    monkeypatch.setattr(gpu_team, "profile_of", lambda _: replace(profile, units=here.units))
    monkeypatch.setattr(gpu_team, "torch", SimpleNamespace(cuda=cuda, zeros=here.zeros, int64=torch.int64))
    yield here


class Launcher(gpu.Launcher):
    """Notes what is launched; the kernel takes 64 registers."""

    def __init__(self, device: Device, rows: int = 5) -> None:
        inputs, outputs = online.softmax(F32, (rows, 512), 1)
        work = teams.work(inputs, outputs)
        assert work is not None
        kernel, _ = lower("shared", work, teams.SMALL)
        super().__init__(emit(kernel), kernel, None, "cuda")
        self.calls: list[tuple[int, Any]] = []
        tensor = SimpleNamespace(device=device, data_ptr=lambda: 64)
        self.tensors: Sequence[Any] = [tensor] * len(kernel.params)

    def launch(self, grid: int, arguments: Any, constants: Any, device: Any) -> None:
        self.calls.append((grid, arguments[-1]))

    def compiled(self, arguments: Any, device: Any) -> Resources:
        return Resources("shared", "cuda:90", 64, 0, 64, 16)  # two programs a unit


def test_a_launch_is_cooperative_and_of_whole_teams(device: Device) -> None:
    own = Launcher(device)
    assert own._constants["launch_cooperative_grid"] is True and own.source.team == 4
    TeamLauncher(own)(own.tensors)
    device.units = 3
    TeamLauncher(own)(own.tensors)
    assert [grid for grid, _ in own.calls] == [4 * 3, 4 * 1], "five rows in two rounds, then six programs at once"


def test_few_rows_take_as_many_programs_as_they_need(device: Device) -> None:
    own = Launcher(device, rows=2)
    TeamLauncher(own)(own.tensors)
    assert own.calls[0][0] == 2 * 4


def test_a_device_that_holds_no_team_says_so(device: Device) -> None:
    own, device.units = Launcher(device), 1
    with pytest.raises(LaunchError, match="needs 4 programs at once"):
        TeamLauncher(own)(own.tensors)
    assert not own.calls


def test_a_stream_keeps_its_words_and_no_two_share_any(device: Device) -> None:
    own = Launcher(device)
    launch = TeamLauncher(own)
    for device.stream in (1, 2, 1, 2):
        launch(own.tensors)
    words = [id(w) for _, w in own.calls]
    assert words[:2] == words[2:] and words[0] != words[1] and (device.zeroed, device.waited) == (1, 1)
    assert all(w.numel() % 2 == 0 and int(w.abs().max()) == 0 for _, w in own.calls), "vectors, all 0"


def test_each_launch_of_a_graph_has_words_of_its_own(device: Device) -> None:
    own = Launcher(device)
    launch = TeamLauncher(own)
    launch(own.tensors)
    device.capturing = True
    for _ in range(SPARE + 3):
        launch(own.tensors)
    assert len({id(w) for _, w in own.calls}) == SPARE + 4
    assert device.zeroed == 1 + 3, "when none is left the graph sets some to 0 itself"
    device.capturing = False
    launch(own.tensors)
    assert own.calls[-1][1] is own.calls[0][1]
