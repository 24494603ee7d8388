"""Pages against the code. In: README.md, docs/. Out: a failure for each name, file or figure that is not there."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from interfuse.ir import build as b
from interfuse.ir.dtypes import F32
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.work import Work
from interfuse.passes.pipeline import PASSES
from interfuse.passes.simplify import RULES
from interfuse.report import values
from interfuse.tune import judge
from tests import targets

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PLACES = (ROOT, ROOT / "src" / "interfuse", ROOT / "docs")


def page(name: str) -> str:
    """The text of a page in docs/."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_page_of_knobs_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_knobs.py"))["page"]()
    assert page("knobs.md") == made, "run python docs/make_knobs.py"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_file_and_test_that_a_page_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = [p for p in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in p]
    missing = [p for p in links if not (path.parent / p).exists()]
    for name, test in re.findall(r"`([\w./*]+/[\w.*]+\.(?:py|md|h))(?:::(\w+))?`", text):
        found = [f for place in PLACES for f in place.glob(name)]
        if not found or (test and f"def {test}(" not in found[0].read_text(encoding="utf-8")):
            missing.append(f"{name}::{test}" if test else name)
    assert not missing, f"{path.name} names what is not there: {missing}"


def rows(text: str) -> dict[str, str]:
    """The table rows of a page by the code in their first cell."""
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE))


def test_the_pipeline_page_names_every_stage_pass_rewrite_and_family() -> None:
    text = page("pipeline.md")
    stages = re.findall(r'with stage\("(\w+)"\)', (ROOT / "src/interfuse/driver/compiler.py").read_text("utf-8"))
    assert f"under these names: {', '.join(dict.fromkeys(stages))}." in text
    assert [name for name in rows(text) if name in dict(PASSES)] == [name for name, _ in PASSES]
    assert [r for r in re.findall(r"\w+", rows(text)["simplify"]) if "_" in r] == [r.name for r in RULES]
    assert families() <= set(rows(text)), "a schedule family has no row"


def families() -> set[str]:
    """The family of every kernel that the lowering of a map and of a row gives."""
    x = b.placeholder("x", F32, (4, 8))
    outputs = (b.apply("neg", x), b.reduce("sum", x, (1,)), b.reduce("sum", x, (0,)))
    layouts = {n: contiguous(n.shape) for n in (x, *outputs)}
    every = targets.ALL.values()
    return {lower("k", Work((o,), frozenset((x,)), layouts), t)[0].family for o in outputs for t in every}


def test_every_pass_has_a_file_and_a_test_of_its_name() -> None:
    for name in {name.removesuffix("_again") for name, _ in PASSES}:
        assert (ROOT / "src/interfuse/passes" / f"{name}.py").exists(), name
        assert (ROOT / "tests/passes" / f"test_{name}.py").exists(), name


LEDGER = {
    "model": values.Model,
    "totals": values.Totals,
    "rows[]": values.Row,
    "unfused[]": values.Unfused,
    "measures[]": values.Measure,
    "regions[]": values.Region,
    "regions[].candidates[]": values.Candidate,
    "regions[].rejected[]": values.Rejected,
    "kernels[]": values.Kernel,
    "stages[]": values.Stage,
}


def test_the_ledger_page_names_every_field() -> None:
    text = page("ledger.md")
    found = rows(text)
    wanted = {name.removesuffix("[]") for name in LEDGER if "." not in name} | {"fallbacks", "warnings"}
    assert {"fallbacks", "warnings"} <= set(found)
    assert wanted == {f.name for f in dataclasses.fields(values.Account)}
    assert f"schema {values.SCHEMA}" in text
    for name, kind in LEDGER.items():
        assert re.findall(r"`(\w+)`", found[name])[: len(dataclasses.fields(kind))] == [
            f.name for f in dataclasses.fields(kind)
        ], name


def test_the_numerics_page_states_the_figures_that_are_enforced() -> None:
    text = " ".join(page("numerics.md").split())
    assert f"at most {judge.RMS_FACTOR:g} times eager's in root mean square" in text
    assert f"at most {judge.BLOCK_FACTOR:g} times eager's in each block of {judge.BLOCK} elements" in text
    assert f"{judge.CLOSE_ULPS:g} units in the last place of eager" in text
