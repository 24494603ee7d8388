"""Tables of figures quote the data files and nothing else. In: README.md, docs/figures.md. Out: a failure where they
differ.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_data_files(tables: ModuleType) -> None:
    pages = [path.read_text() for path in tables.PAGES]
    for page in pages:
        assert tables.filled(page) == page, "the data files have changed: run python docs/make_tables.py"
    for name in tables.TABLES:
        assert sum(page.count(f"<!-- table:{name} -->") for page in pages) == 1


def test_a_changed_figure_shows(tables: ModuleType) -> None:
    for path in tables.PAGES:
        page = path.read_text()
        assert "x |" in page
        assert tables.filled(page.replace("x |", "y |")) == page


def test_the_demo_is_shown() -> None:
    page = (ROOT / "README.md").read_text()
    shown = page.split("<!-- demo:begin -->")[1].split("<!-- demo:end -->")[0]
    for words in (
        "largest difference between the two tables",
        "launches",
        "memory traffic",
        "against float64",
        "passed",
    ):
        assert words in shown
