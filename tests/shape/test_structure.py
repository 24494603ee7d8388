"""The shape of the code base. In: the source files, as text and syntax trees. Out: a sentence for each broken rule.

Nothing of the package is imported. Every rule is a function from a parsed file to the sentences that it earns, so that
the last test can show that each rule is able to fail. Every exception has a reason and must still be needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "interfuse"

ROWS = (
    "base",
    "device",
    "ir",
    "capture",
    "passes",
    "lower",
    "cost",
    "plan",
    "emit",
    "build",
    "run",
    "tune",
    "report",
    "driver",
    "cli",
)
"""A row imports from itself and from the rows before it; the package's own files stand after the last row."""

ALLOWED_IN = {
    "torch": ("capture", "run", "tune", "driver"),
    "triton": ("build", "run"),
    "sympy": ("capture",),
}
"""Where a heavy package may be imported."""

LAZY: dict[tuple[str, str], str] = {}
"""(row, package) that may be imported inside a function, each with its reason."""

LONG_FILES: dict[str, tuple[int, str]] = {
    "ir/index.py": (540, "one closed algebra: its constructors simplify by calling each other"),
}
"""File under src/interfuse: (lines allowed, reason)."""

LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}
""""file::function": (lines allowed, reason)."""

ENVIRONMENT_READERS: dict[str, str] = {}
"""File under src/interfuse that may touch os.environ, with the reason (handing a child process its environment)."""

FILE_LINES, FUNCTION_LINES = 400, 60

FOREIGN_WORDS = re.compile(
    r"/work/|/tmp/|/home/\w|/root/|/opt/|\bhelper agent|\bsub-?agent|\bthis session\b|\.\./shared|/shared/|"
    r"\bas an? (?:AI|language model)\b",
    re.IGNORECASE,
)
"""What committed text never says: paths of one machine, and how or where the text came to be."""


@dataclass(frozen=True)
class File:
    """One source file: its path under src/interfuse and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def row(self) -> str:
        return self.path.split("/")[0] if "/" in self.path else ""


def level(module: str) -> int:
    """Where a module (without the package's name) stands; the package's own files come last."""
    row = module.split(".")[0]
    return ROWS.index(row) if row in ROWS else len(ROWS)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that is imported, with its line; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if base != "interfuse":
                yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        inner = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{prefix}{node.name}."
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        yield from functions(node, inner)


# --- The rules: each gives the sentences that a file earns.


def imports_earlier_rows_only(file: File) -> Iterator[str]:
    for name, line in imports(file.tree):
        if name.startswith("."):
            yield f"{file.path}:{line} imports {name}: write absolute imports"
        if name == "interfuse" and file.row not in ("cli", ""):
            yield f"{file.path}:{line} imports the whole package; only cli uses it as users do"
        if name.startswith("interfuse.") and level(name.removeprefix("interfuse.")) > level(file.module):
            yield f"{file.path}:{line} imports {name}, which stands in a later row"


def stands_in_a_row(file: File) -> Iterator[str]:
    if file.row and file.row not in ROWS:
        yield f"{file.path}: {file.row} is no row; the rows are {', '.join(ROWS)}"


def heavy_packages_stay_in_their_rows(file: File) -> Iterator[str]:
    for name, line in imports(file.tree):
        package = name.split(".")[0]
        if file.row not in ALLOWED_IN.get(package, (file.row,)):
            yield f"{file.path}:{line} imports {package}, which belongs to {', '.join(ALLOWED_IN[package])}"


def imports_at_the_top(file: File) -> Iterator[str]:
    inside = {found: None for _, function in functions(file.tree) for found in imports(function)}
    for name, line in inside:
        if (file.row, name.split(".")[0]) not in LAZY:
            yield f"{file.path}:{line} imports {name} inside a function"


def has_no_global(file: File) -> Iterator[str]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Global):
            yield f"{file.path}:{node.lineno} uses global: pass {', '.join(node.names)} as an argument"


def file_is_short(file: File) -> Iterator[str]:
    lines, allowed = len(file.text.splitlines()), LONG_FILES.get(file.path, (FILE_LINES, ""))[0]
    if lines > allowed:
        yield f"{file.path} has {lines} lines, over {allowed}: split it by what its parts are for"


def functions_are_short(file: File) -> Iterator[str]:
    for name, function in functions(file.tree):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        allowed = LONG_FUNCTIONS.get(f"{file.path}::{name}", (FUNCTION_LINES, ""))[0]
        if lines > allowed:
            yield f"{file.path}:{function.lineno} {name} has {lines} lines, over {allowed}"


def module_says_purpose_in_and_out(file: File) -> Iterator[str]:
    if not file.tree.body:
        return
    doc = ast.get_docstring(file.tree) or ""
    missing = [part for part in ("In:", "Out:") if part not in doc]
    if missing:
        yield f"{file.path}: the module docstring lacks {' and '.join(missing)}"


def public_things_have_docstrings(file: File) -> Iterator[str]:
    def walk(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            overloaded = any("overload" in ast.unparse(d) for d in node.decorator_list)
            if not ast.get_docstring(node) and not overloaded:
                yield f"{file.path}:{node.lineno} {prefix}{node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{node.name}.")

    yield from walk(file.tree.body, "")


def speaks_of_the_product_alone(file: File) -> Iterator[str]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if found := FOREIGN_WORDS.search(line):
            yield f"{file.path}:{number} says {found.group()!r}"


Rule = Callable[[File], Iterator[str]]
RULES: tuple[Rule, ...] = (
    imports_earlier_rows_only,
    stands_in_a_row,
    heavy_packages_stay_in_their_rows,
    imports_at_the_top,
    has_no_global,
    file_is_short,
    functions_are_short,
    module_says_purpose_in_and_out,
    public_things_have_docstrings,
    speaks_of_the_product_alone,
)


def sources() -> list[File]:
    """Every Python file of the package."""
    return [File(p.relative_to(SOURCE).as_posix(), p.read_text()) for p in sorted(SOURCE.rglob("*.py"))]


FILES = sources()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps(rule: Rule) -> None:
    broken = [sentence for file in FILES for sentence in rule(file)]
    assert not broken, "\n" + "\n".join(broken)


# --- What concerns several files at once.


def dependencies() -> dict[str, set[str]]:
    """Each module with the modules of the package that it imports when it is imported itself."""
    modules = {f.module for f in FILES}
    return {
        f.module: {n.removeprefix("interfuse.") for n, _ in imports(f.tree) if n.startswith("interfuse.")} & modules
        for f in FILES
    }


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The names along one cycle of `graph`, the first repeated at the end; empty where there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_no_import_cycle() -> None:
    found = cycle(dependencies())
    assert not found, "these modules import each other: " + " -> ".join(found)


def test_every_exception_is_still_needed() -> None:
    lines = {f.path: len(f.text.splitlines()) for f in FILES}
    stale = [
        p
        for p, (allowed, reason) in LONG_FILES.items()
        if not reason or lines.get(p, 0) <= FILE_LINES or lines[p] + 50 < allowed
    ]
    long = {f"{f.path}::{n}": (fn.end_lineno or 0) - fn.lineno + 1 for f in FILES for n, fn in functions(f.tree)}
    stale += [
        n
        for n, (allowed, reason) in LONG_FUNCTIONS.items()
        if not reason or long.get(n, 0) <= FUNCTION_LINES or long[n] + 15 < allowed
    ]
    used = {(f.row, n.split(".")[0]) for f in FILES for _, fn in functions(f.tree) for n, _ in imports(fn)}
    stale += [f"lazy import of {package} in {row}" for row, package in LAZY if (row, package) not in used]
    assert not stale, f"exceptions that are not needed any more, or have no reason: {stale}"


def table_rows(file: File) -> Iterator[tuple[int, str]]:
    """Every call in the operator table's file that builds a row, with its line."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_row", "_call", "_infix"):
            yield node.lineno, ast.unparse(node)


def test_the_operator_table_is_complete() -> None:
    """Every meaning that a row names is written, and where a backend has no text a constant says why."""
    ops, meanings = (next(f for f in FILES if f.path == path) for path in ("ir/ops.py", "ir/numpy_meaning.py"))
    written = {n.name for n in meanings.tree.body if isinstance(n, ast.FunctionDef)} | {
        name.id
        for n in meanings.tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    assert len(list(table_rows(ops))) >= 50
    for line, text in table_rows(ops):
        missing = set(re.findall(r"\bm\.(\w+)", text)) - written
        assert not missing, f"ir/ops.py:{line} names meanings that are not written: {missing}"
    reasons = [
        n.value.value
        for n in ast.walk(ops.tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
    ]
    assert reasons
    assert all(r.startswith("none: ") and len(r) > len("none: because") for r in reasons), reasons


def knob_fields() -> list[tuple[str, str, str]]:
    """Each knob's field, environment variable and sentence, from base/knobs.py."""
    knobs = next(f for f in FILES if f.path == "base/knobs.py")
    table = next(n for n in knobs.tree.body if isinstance(n, ast.ClassDef) and n.name == "Knobs")
    found = []
    for node in table.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and isinstance(node.target, ast.Name):
            env, doc = (ast.literal_eval(a) for a in node.value.args[:2])
            found.append((node.target.id, env, doc))
    return found


def test_every_knob_is_documented_and_only_the_table_reads_the_environment() -> None:
    page = (ROOT / "README.md").read_text()
    assert knob_fields()
    for name, env, doc in knob_fields():
        assert env.startswith("INTERFUSE_") and len(doc) >= 15, f"knob {name} needs a variable and a sentence"
        assert env in page, f"the README's table of settings lacks {env}"
    readers = {
        f.path
        for f in FILES
        for n in ast.walk(f.tree)
        if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")
    } - {"base/knobs.py"}
    assert readers == set(ENVIRONMENT_READERS), "only base/knobs.py and the exceptions listed here read the environment"


def committed_text() -> list[File]:
    """Text files outside the package: tests, pages, scripts, settings."""
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".csv", ""}
    found = {p: p.relative_to(ROOT).parts for p in sorted(ROOT.rglob("*")) if p.suffix in kinds and p.is_file()}
    return [
        File("/".join(parts), p.read_text(errors="replace"))
        for p, parts in found.items()
        if "__pycache__" not in parts and not any(k.startswith(".") and k != ".ci" for k in parts)
    ]


def test_committed_text_speaks_of_the_product_alone() -> None:
    this = Path(__file__).resolve().relative_to(ROOT).as_posix()
    broken = [s for f in committed_text() if f.path not in (this, "LICENSE") for s in speaks_of_the_product_alone(f)]
    assert not broken, "\n" + "\n".join(broken)


# --- Each rule can fail.

GOOD = File("plan/sample.py", '"""A sample. In: x. Out: y."""\nfrom interfuse.ir.node import Node\n')
BREAKS: tuple[tuple[Rule, File], ...] = (
    (imports_earlier_rows_only, replace(GOOD, text="from interfuse.emit import cpp\n")),
    (imports_earlier_rows_only, replace(GOOD, text="from . import plan\n")),
    (imports_earlier_rows_only, replace(GOOD, text="import interfuse\n")),
    (imports_earlier_rows_only, replace(GOOD, text="from interfuse import tune\n")),
    (imports_earlier_rows_only, replace(GOOD, text="def f():\n    import interfuse.run.program\n")),
    (stands_in_a_row, replace(GOOD, path="misc/sample.py")),
    (heavy_packages_stay_in_their_rows, replace(GOOD, text="import torch.nn as nn\n")),
    (imports_at_the_top, replace(GOOD, text="def f():\n    import json\n")),
    (has_no_global, replace(GOOD, text="def f():\n    global x\n")),
    (file_is_short, replace(GOOD, text="\n" * (FILE_LINES + 1))),
    (functions_are_short, replace(GOOD, text="def f():\n" + "    x = 1\n" * FUNCTION_LINES)),
    (module_says_purpose_in_and_out, replace(GOOD, text='"""A sample. In: x."""\n')),
    (public_things_have_docstrings, replace(GOOD, text="class A:\n    '''A.'''\n    def f(self): ...\n")),
    (speaks_of_the_product_alone, replace(GOOD, text="# see /work/notes\n")),
)


@pytest.mark.parametrize(("rule", "file"), BREAKS, ids=lambda v: getattr(v, "__name__", ""))
def test_each_rule_can_fail(rule: Rule, file: File) -> None:
    assert list(rule(file))
    assert not list(rule(GOOD))


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule for rule, _ in BREAKS} == set(RULES)


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b"}, "b": set()}) == []


def test_no_folder_of_tests_is_passed_over(request: pytest.FixtureRequest) -> None:
    skipped = request.config.getini("norecursedirs")
    folders = {d.name for d in Path(__file__).parents[1].rglob("*") if d.is_dir() and list(d.glob("test_*.py"))}
    assert not [d for d in folders if any(fnmatch(d, pattern) for pattern in skipped)]
