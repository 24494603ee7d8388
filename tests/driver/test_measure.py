"""Errors of models that draw random numbers. In: a model with dropout, contenders. Out: who is judged."""

from __future__ import annotations

import torch

from interfuse.driver.measure import measure_model


def test_equal_seeds_judge_who_draws_equal_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.3)).train()
    x = torch.randn(32, 8)

    def own(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)  # as one that draws in another order
        return model(x)

    for fast, random in ((model, False), (own, True)):
        measures = {e.subject: e.facts for e in measure_model(model, fast, (x,), {}, (), 2, "").of("measure")}
        assert not measures["eager"]["random"] and measures["eager"]["error_rms"] < 1e-6
        assert measures["interfuse"]["random"] == random
        assert (measures["interfuse"]["error_rms"] is None) == random
