"""Launches. In: operands that begin inside a buffer, a launcher. Out: the addresses and views that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from interfuse.ir.index import sym
from interfuse.run.launch import Operand, on_addresses, on_tensors

WHOLE, WINDOW = Operand(1, (4, 1), torch.float32), Operand(1, (4, 1), torch.float32, 8, 12)


class _Launcher:
    """Keeps what it is given; `ready` says whether it launches on addresses."""

    def __init__(self, ready: bool) -> None:
        self.ready, self.given, self.ahead = ready, list[torch.Tensor](), list[int]()

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
        self.given = [*tensors]

    def again(self, tensors: Sequence[torch.Tensor], ahead: Sequence[int] = ()) -> bool:
        self.ahead = [t.data_ptr() + a for t, a in zip(tensors, ahead, strict=False)] if self.ready else []
        return self.ready


@pytest.mark.parametrize("strides", ((4, 1), (1, 5)), ids=("as planned", "otherwise"))
def test_a_window_is_a_view_until_addresses_will_do(strides: tuple[int, int]) -> None:
    x = torch.empty_strided((5, 4), strides).copy_(torch.arange(20.0).view(5, 4))
    launcher = _Launcher(ready=False)
    on_tensors((WHOLE, WINDOW), (), (), launcher)([{}, x])
    assert [t.flatten().tolist() for t in launcher.given] == [[*range(20)], [*range(8, 20)]]
    launcher = _Launcher(ready=True)
    on_tensors((WHOLE, WINDOW), (), (), launcher)([{}, x])
    assert not launcher.given and len(launcher.ahead) == 2
    assert strides != (4, 1) or [a - x.data_ptr() for a in launcher.ahead] == [0, 32]


def test_addresses_of_windows() -> None:
    x, n, found = torch.zeros(5, 4), sym("n"), list[list[int]]()
    moving = Operand(1, (4, 1), torch.float32, n * 4, n * -4 + 20)  # type: ignore[arg-type]

    def run(bases: Sequence[int], sizes: Sequence[int]) -> None:
        found.append([b - x.data_ptr() for b in bases])

    on_addresses((WHOLE, WINDOW, moving), (), (), run)([{"n": 3}, x])
    assert found == [[0, 32, 48]]
    views: list[Any] = []
    on_tensors((moving,), (), (), lambda tensors, sizes: views.extend(tensors))([{"n": 3}, x])
    assert views[0].shape == (8,) and views[0].data_ptr() == x.data_ptr() + 48
