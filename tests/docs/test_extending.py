"""What docs/extending.md says is enforced. In: the operator table, providers. Out: a failure where a part lacks."""

from __future__ import annotations

import re
from pathlib import Path

from interfuse.emit import cpp_prelude
from interfuse.ir.ops import POINTWISE, TABLE
from interfuse.plan.routines import PROVIDERS as CHOSEN
from interfuse.run.providers import PROVIDERS
from tests.emit import test_cpp_math as compared

TESTS = Path(__file__).resolve().parents[1]
IN_C = {name: TABLE[name].cpp for name in POINTWISE if not TABLE[name].cpp.startswith("none: ")}
ELSEWHERE = frozenset(("copy", "where", "isnan", "isinf", "normal_cdf", "shl", "shr"))
"""Compared in tests/emit by tests of their own, or as parts of whole kernels."""


def test_every_cpp_text_calls_helpers_that_exist() -> None:
    known = cpp_prelude.names()
    missing = {op: w for op, text in IN_C.items() for w in re.findall(r"[A-Za-z_]\w*", text) if w not in known}
    assert not missing, f"emit/prelude has no such helper: {missing}"


def test_every_cpp_operator_is_compared() -> None:
    lists = (compared.UNARY, compared.BINARY, compared.INTEGER_UNARY, compared.INTEGER_BINARY, ELSEWHERE)
    assert set(IN_C) == {op for found in lists for op in found}, "add the operator to tests/emit/test_cpp_math.py"


def test_every_provider_that_the_planner_names_exists_for_that_device() -> None:
    for kind, by_activation in CHOSEN.items():
        for name in (n for names in by_activation.values() for n in names):
            assert PROVIDERS[name].device in ("", kind), name


def test_every_provider_is_tested() -> None:
    text = (TESTS / "run" / "test_providers.py").read_text(encoding="utf-8")
    assert [name for name in PROVIDERS if f'"{name}"' not in text] == []
