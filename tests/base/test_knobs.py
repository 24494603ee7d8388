"""Knobs. In: environments and overrides. Out: typed settings, or OptionError with a sentence that says what is
allowed.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from interfuse.base import knobs
from interfuse.base.errors import OptionError

FIELDS = dataclasses.fields(knobs.Knobs)


def test_nothing_set_gives_the_defaults():
    assert knobs.from_environment({}) == knobs.Knobs()


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.name)
def test_every_knob_is_documented_and_read(field):
    assert field.metadata["env"].startswith("INTERFUSE_")
    assert len(field.metadata["doc"]) > 10
    word = "avx2" if field.name == "vector" else "word"
    number, folder = 3 if field.name == "debug" else 7, "/some/folder"
    text = {"bool": "1", "int": str(number), "float": "2.5", "str": word, "Path": folder}[str(field.type)]
    value = getattr(knobs.from_environment({field.metadata["env"]: text}), field.name)
    assert value == {"bool": True, "int": number, "float": 2.5, "str": word, "Path": Path(folder)}[str(field.type)]


def test_no_two_knobs_share_a_variable():
    assert len({f.metadata["env"] for f in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("TRUE", True),
        (" yes ", True),
        ("on", True),
        ("0", False),
        ("no", False),
        ("off", False),
        ("False", False),
        ("", False),
    ],
)
def test_truth_is_spelled_in_the_usual_ways(text, value):
    assert knobs.from_environment({"INTERFUSE_DISABLE": text}).disable is value


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("INTERFUSE_FUSE", "maybe", "1 or 0, true or false, yes or no, on or off"),
        ("INTERFUSE_DEBUG", "loud", "a whole number"),
        ("INTERFUSE_WORKERS", "1.5", "a whole number"),
        ("INTERFUSE_DEBUG", "7", "0, 1, 2, 3"),
        ("INTERFUSE_RACE_SECONDS", "soon", "a number of seconds"),
        ("INTERFUSE_RACE_SECONDS", "nan", "a number of seconds"),
        ("INTERFUSE_VECTOR", "sse", "native, avx512, avx2, portable"),
    ],
)
def test_a_bad_value_is_named(name, text, kind):
    with pytest.raises(OptionError, match=rf"^{name}='{text}' is not allowed; unset it or give {kind}\.$"):
        knobs.from_environment({name: text})


@pytest.mark.parametrize(("name", "text"), [("INTERFUSE_WORKERS", "-1"), ("INTERFUSE_RACE_SECONDS", "-0.5")])
def test_a_number_below_zero_is_named(name, text):
    with pytest.raises(OptionError, match=rf"^{name}='{text}' is below 0; unset it or give 0 or more\.$"):
        knobs.from_environment({name: text})


def test_the_environment_is_read_anew_each_time(monkeypatch):
    monkeypatch.setenv("INTERFUSE_DEBUG", "2")
    assert knobs.current().debug == 2
    monkeypatch.setenv("INTERFUSE_DEBUG", "3")
    assert knobs.current().debug == 3


def test_overrides_nest_and_end_also_after_an_error(monkeypatch):
    monkeypatch.setenv("INTERFUSE_DEBUG", "1")
    with knobs.override(debug=2, fuse=False) as outer:
        assert (outer.debug, outer.fuse) == (2, False)
        with pytest.raises(RuntimeError), knobs.override(debug=3):
            assert (knobs.current().debug, knobs.current().fuse) == (3, False)
            raise RuntimeError
        assert knobs.current().debug == 2
    assert knobs.current().debug == 1


def test_an_override_stays_in_its_thread():
    seen = []
    with knobs.override(debug=9):
        thread = threading.Thread(target=lambda: seen.append(knobs.current().debug))
        thread.start()
        thread.join()
    assert seen == [knobs.current().debug]


def test_an_unknown_knob_is_named_with_the_known_ones():
    known = r"^there is no knob 'fusee'; the knobs are .*fuse.*\.$"
    with pytest.raises(OptionError, match=known), knobs.override(fusee=True):
        pass


def test_knobs_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        knobs.Knobs().debug = 3


def test_the_cache_folder_follows_the_desktop_standard(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert knobs.Knobs().cache_dir == tmp_path / "interfuse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert knobs.Knobs().cache_dir == tmp_path / "home" / ".cache" / "interfuse"


def test_a_user_without_a_home_gets_a_temporary_folder(monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert knobs.Knobs().cache_dir.name.startswith("interfuse-")


def test_an_empty_variable_is_not_set() -> None:
    assert knobs.from_environment(
        {"INTERFUSE_CACHE": "", "INTERFUSE_RACE": " ", "INTERFUSE_WORKERS": ""}
    ) == knobs.from_environment({})
