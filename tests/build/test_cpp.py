"""Building C++ kernels. In: sources good and bad, compilers present and absent. Out: artifacts, clear errors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from interfuse.base.errors import BuildError, CompilerMissingError, DeviceError, OptionError
from interfuse.base.knobs import Knobs
from interfuse.build import compilers
from interfuse.build.cache import MANIFEST, Cache, open_cache
from interfuse.build.cpp import Artifact, build

GOOD = 'extern "C" void {name}(void* const*, const long*) {{}}\n'


@pytest.fixture
def knobs(tmp_path: Path) -> Knobs:
    return Knobs(cache_dir=tmp_path / "cache")


@pytest.fixture
def cache(knobs: Knobs) -> Cache:
    return open_cache(knobs)


def source(name: str) -> tuple[str, str]:
    return name, GOOD.format(name=name)


def test_artifacts_come_in_order_and_are_found_again(knobs: Knobs, cache: Cache) -> None:
    ready: list[Artifact] = []
    names = ["first", "second", "third"]
    made = build([source(n) for n in names], knobs, cache, ready.append)
    assert [a.path.name for a in made] == [f"{n}.so" for n in names]
    assert not any(a.cached for a in made) and all(a.seconds > 0 for a in made)
    assert sorted(a.key for a in ready) == sorted(a.key for a in made)
    assert made[0].source_path.read_text() == GOOD.format(name="first")
    again = build([source(n) for n in names], knobs, cache)
    assert all(a.cached for a in again) and [a.path for a in again] == [a.path for a in made]
    entry = cache.get(made[0].key)
    assert entry is not None and entry.record["name"] == "first" and "-O3" in entry.record["command"]


def test_equal_sources_are_compiled_once(knobs: Knobs, cache: Cache) -> None:
    ready: list[Artifact] = []
    one, two = build([source("same"), source("same")], knobs, cache, ready.append)
    assert one == two and len(ready) == 1


def test_a_damaged_library_is_built_again(knobs: Knobs, cache: Cache) -> None:
    (artifact,) = build([source("kernel")], knobs, cache)
    artifact.path.write_bytes(b"not a library")
    (again,) = build([source("kernel")], knobs, cache)
    assert not again.cached and again.path.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("damage", ["lists nothing", "is a file"])
def test_an_entry_without_its_library_is_built_again(knobs: Knobs, cache: Cache, damage: str) -> None:
    (artifact,) = build([source("kernel")], knobs, cache)
    folder = artifact.path.parent
    if damage == "lists nothing":
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))
    else:
        shutil.rmtree(folder)
        folder.write_text("in the way")
    (again,) = build([source("kernel")], knobs, cache)
    assert not again.cached and again.path.read_bytes().startswith(b"\x7fELF")


def test_a_compiler_that_writes_nothing_is_reported(knobs: Knobs, cache: Cache, tmp_path: Path) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    with pytest.raises(BuildError, match="rejects kernel"):
        build([source("kernel")], dataclasses.replace(knobs, cxx=str(fake)), cache)


def test_vector_level_and_name_are_part_of_the_key(knobs: Knobs, cache: Cache) -> None:
    (native,) = build([source("kernel")], knobs, cache)
    (portable,) = build([source("kernel")], dataclasses.replace(knobs, vector="portable"), cache)
    (renamed,) = build([("other", GOOD.format(name="kernel"))], knobs, cache)
    assert len({native.key, portable.key, renamed.key}) == 3


def test_a_syntax_error_names_the_kept_source(knobs: Knobs, cache: Cache) -> None:
    with pytest.raises(BuildError, match="expected") as caught:
        build([source("fine"), ("broken", "int x = ;\n")], knobs, cache)
    kept = next((cache.root / "rejected").iterdir())
    assert str(kept) in str(caught.value) and kept.read_text() == "int x = ;\n"
    assert str(caught.value).count("\n") <= 13
    assert len(cache.keys()) <= 1


def test_a_kernel_needs_a_plain_name(knobs: Knobs, cache: Cache) -> None:
    with pytest.raises(BuildError, match="cannot name a kernel"):
        build([("../escape", GOOD.format(name="x"))], knobs, cache)


def test_a_missing_compiler_says_what_to_install(knobs: Knobs, cache: Cache) -> None:
    with pytest.raises(CompilerMissingError, match=r"install g\+\+.*INTERFUSE_CXX"):
        build([source("kernel")], dataclasses.replace(knobs, cxx="no-such-compiler"), cache)
    assert build([], dataclasses.replace(knobs, cxx="no-such-compiler"), cache) == []


def test_a_compiler_that_does_not_run_is_reported(knobs: Knobs, tmp_path: Path) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho broken installation >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(CompilerMissingError, match="broken installation"):
        compilers.find(dataclasses.replace(knobs, cxx=str(fake)))
    with pytest.raises(CompilerMissingError, match=r"false --version ends with status 1 and says nothing\)"):
        compilers.find(dataclasses.replace(knobs, cxx="false"))


def test_vector_levels(knobs: Knobs, monkeypatch: pytest.MonkeyPatch) -> None:
    level = compilers.vector_level(knobs)
    assert level in ("avx512", "avx2", "portable") and compilers.supports(level)
    with pytest.raises(OptionError, match="native"):
        compilers.vector_level(dataclasses.replace(knobs, vector="sse9"))
    monkeypatch.setattr(compilers, "cpu_text", lambda: "flags : avx2 fma bmi2")
    assert compilers.vector_level(knobs) == "avx2"
    with pytest.raises(DeviceError, match="no avx512"):
        compilers.vector_level(dataclasses.replace(knobs, vector="avx512"))


def test_flags_keep_ieee_arithmetic(knobs: Knobs) -> None:
    flags = compilers.flags(knobs)
    assert "-ffp-contract=off" in flags and not any("fast-math" in f for f in flags)
