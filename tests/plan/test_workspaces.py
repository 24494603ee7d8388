"""Workspaces of routines. In: a plan of small products, and made-up needs. Out: choices within eager's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from interfuse.plan.memory import Need
from interfuse.plan.plan import Plan
from interfuse.plan.workspaces import keep_to_eagers_workspaces
from tests.plan.made import planned

X, W = torch.randn(16, 32), torch.randn(32, 32)
OUT = X.numel() * 4
ROUTINE, LIBRARY = "onednn.linear", "library: linear"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Three products in a row, each by the routine; eager holds two of their values at its peak."""
    plan, _ = planned(lambda: F.linear(F.linear(F.linear(X, W), W), W))
    routine = [next(k for k, c in enumerate(r.candidates) if c.label == ROUTINE) for r in plan.regions]
    return replace(plan, regions=tuple(replace(r, chosen=k) for r, k in zip(plan.regions, routine, strict=True)))


def labels(plan: Plan, *needs: dict[str, Need]) -> list[str]:
    return [r.choice.label for r in keep_to_eagers_workspaces(plan, needs).regions]


def test_a_workspace_that_eager_has_no_room_for_goes(plan: Plan) -> None:
    small, large = Need(OUT + 64), Need(OUT + 4096)
    assert labels(plan, {}, {}, {}) == [ROUTINE] * 3
    assert labels(plan, *[{ROUTINE: Need(OUT), LIBRARY: Need(OUT)}] * 3) == [ROUTINE] * 3
    # The first product runs where nothing else is held: there is room for a workspace as large as a value.
    assert labels(plan, *[{ROUTINE: small, LIBRARY: Need(OUT)}] * 3) == [ROUTINE, LIBRARY, LIBRARY]
    assert labels(plan, *[{ROUTINE: large, LIBRARY: Need(OUT)}] * 3) == [LIBRARY] * 3
    assert labels(plan, *[{ROUTINE: small, LIBRARY: small}] * 3) == [ROUTINE] * 3, "eager needs it, too"


def test_what_the_library_would_have_kept_is_room(plan: Plan) -> None:
    routine = {ROUTINE: Need(OUT + 4096)}
    assert labels(plan, *[{**routine, LIBRARY: Need(OUT, kept=4096)}] * 3) == [ROUTINE] * 3
    # One product of the library keeps that much anyway: then there is no room for both.
    one = replace(plan, regions=(replace(plan.regions[0], chosen=1 - plan.regions[0].chosen), *plan.regions[1:]))
    assert {c.label for c in plan.regions[0].candidates} == {ROUTINE, LIBRARY}
    assert labels(one, *[{**routine, LIBRARY: Need(OUT, kept=4096)}] * 3) == [LIBRARY] * 3


def test_the_reason_says_how_many_bytes(plan: Plan) -> None:
    needs = [{ROUTINE: Need(OUT + 4096), LIBRARY: Need(OUT)}] * 3
    region = keep_to_eagers_workspaces(plan, needs).regions[1]
    assert region.reason == (
        f"onednn.linear and its workspace would have {2 * OUT + 4096} bytes held at once, eager holds {2 * OUT}"
    )
