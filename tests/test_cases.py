"""The known traps through the front door. In: tests/cases.py. Out: each compiled function keeps the numerics
contract.
"""

from __future__ import annotations

import pytest
import torch

from interfuse.driver.backend import Backend
from tests.cases import CASES
from tests.judge import judge


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """No case sees another's compiled code or its dynamic shapes."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_compiled_case_keeps_the_contract(name):
    case = CASES[name]
    function, arguments = case.build()
    verdict = judge(function, arguments, torch.compile(function, backend="interfuse"), case.rule)
    assert verdict.ok, f"{name} ({case.promise}): {verdict.note}"


@pytest.mark.parametrize("name", CASES)
def test_no_case_falls_back(name):
    """A graph that could not be compiled runs as it came and would keep the contract too: no pass for that."""
    function, arguments = CASES[name].build()
    backend = Backend()
    torch.compile(function, backend=backend)(*arguments)
    assert backend.compiled
    for compiled in backend.compiled:
        assert compiled.record.of("fallback") == []
        assert compiled.plan is not None


@pytest.mark.parametrize("name", CASES)
def test_the_case_itself_is_sound(name):
    """Eager passes its own judgement, the numbers repeat, and a visible error fails: else the case would test
    nothing.
    """
    case = CASES[name]
    function, arguments = case.build()
    again, same = case.build()
    assert judge(function, arguments, function, case.rule).ok
    assert all(torch.equal(x, y) for x, y in zip(_leaves(function(*arguments)), _leaves(again(*same)), strict=True))

    def broken(*args):
        out = function(*args)
        return tuple(_damaged(o) for o in out) if isinstance(out, tuple) else _damaged(out)

    assert not judge(function, arguments, broken, case.rule).ok


def _leaves(out):
    return [o.float() for o in (out if isinstance(out, tuple) else (out,))]


def _damaged(out: torch.Tensor) -> torch.Tensor:
    return (out.float() * 1.5 + 0.25).to(out.dtype)
