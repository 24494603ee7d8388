"""Plans for GPUs that are not here. In: small models, names of GPUs. Out: ranked plans, compiled, with error bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.base.knobs import override
from tests.cli.sample import invoke


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache"):
        yield


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + 1, -1) @ w


SMALL = (torch.ones(64, 256, dtype=torch.bfloat16), torch.ones(256, 256, dtype=torch.bfloat16))


def test_plans_of_several_gpus() -> None:
    seen: list[str] = []
    found = interfuse.whatif(block, SMALL, gpus=["mi300x", "H200", "h200"], watch=lambda s, *_: seen.append(s))
    assert [o.gpu for o in found.outlooks] == sorted(
        ("H200", "MI300X"), key=lambda g: next(o.ours.us for o in found.outlooks if o.gpu == g)
    )
    assert {s.split(":")[0] for s in seen} == {"H200", "MI300X"}
    for o in found.outlooks:
        softmax, linear = o.account.regions
        assert softmax.choice.label == "fused: row, resident" and linear.choice.label == "library: linear"
        times = [c.predicted_us for c in softmax.candidates]
        assert times == sorted(times) and all(c.error_bar for c in softmax.candidates)
        (kernel,) = (k for k in o.account.kernels if k.name in softmax.choice.kernels)
        assert kernel.registers and kernel.spills == 0 and kernel.occupancy
        assert 0 < o.ours.us < o.eager.us and o.ours.bar_us > 0
        assert softmax.choice.bound in ("launch", "memory", "cache", "arithmetic", "waiting")
    text = str(found)
    assert "predicted, nothing measured" in text and text.count("fused: row, resident") == 2
    values = json.loads(found.to_json())
    assert values["schema"] == 1 and len(values["gpus"]) == 2
    assert values["gpus"][0]["regions"][0]["candidates"][0]["parts"]


def test_a_faster_memory_is_faster() -> None:
    big = (torch.ones(1 << 20, dtype=torch.float16),)
    found = interfuse.whatif(lambda x: x.relu() * 2 + 1, big, gpus=["L40S", "B200", "H200"])
    assert [o.gpu for o in found.outlooks] == ["B200", "H200", "L40S"]


def test_parameters_and_gradients_stay_as_they_are() -> None:
    net = nn.Linear(8, 8)
    before = net.weight.clone()
    interfuse.whatif(net, (torch.ones(2, 8),), gpus=["A100"])
    assert torch.equal(net.weight, before) and net.weight.grad is None
    assert next(net.parameters()).device.type == "cpu"


def test_what_makes_no_sense_says_so() -> None:
    with pytest.raises(OptionError, match=r"no GPU 'Voodoo'.*H200"):
        interfuse.whatif(block, SMALL, gpus=["Voodoo"])
    with pytest.raises(OptionError, match="is no GPU"):
        interfuse.whatif(block, SMALL, gpus=["CPU avx2"])
    with pytest.raises(OptionError, match="no GPU is given"):
        interfuse.whatif(block, SMALL, gpus=[])
    with pytest.raises(ModelError, match="captured no graph"):
        interfuse.whatif(lambda x: 3, (torch.ones(1),), gpus=["H100"])
    with override(disable=True), pytest.raises(OptionError, match="INTERFUSE_DISABLE"):
        interfuse.whatif(block, SMALL, gpus=["H100"])


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import torch\ndef f():\n    return torch.tanh, (torch.ones(4, 5),)\n")
    out = tmp_path / "out.json"
    result = invoke("whatif", f"{tmp_path / 'm.py'}:f", "--gpu", "h100, a100", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "H100" in result.output and "A100" in result.output and "tanh" in result.output
    assert {g["gpu"] for g in json.loads(out.read_text())["gpus"]} == {"H100", "A100"}
    assert invoke("whatif", f"{tmp_path / 'm.py'}:f", "--gpu", "Voodoo").exit_code == 2
