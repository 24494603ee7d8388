"""Options at every front door. In: values, keywords, mappings, modes. Out: what is in force, or an error."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import interfuse
from interfuse.base.errors import ModelError, OptionError
from interfuse.base.knobs import override
from interfuse.driver.backend import Backend
from interfuse.driver.options import MODES, read
from interfuse.report.ledger import ledger


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    with override(cache_dir=Path(tmp_path_factory.getbasetemp()) / "cache", race=False):
        yield


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


@pytest.mark.parametrize("off", ["softmax, gelu", ["softmax", "gelu"], ("softmax", " gelu ", "")])
def test_off_is_a_tuple_of_names(off: Any) -> None:
    assert interfuse.Options(off=off).off == ("softmax", "gelu")
    assert interfuse.Options(off=off).knobs().off == "softmax,gelu"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fuse": 1}, "fuse=1 must be bool"),
        ({"race": "no"}, "race='no' must be bool"),
        ({"race_seconds": True}, "race_seconds=True must be int or float"),
        ({"race_seconds": -1}, "0 or more"),
        ({"race_seconds": float("nan")}, "0 or more"),
        ({"off": 3}, "off=3 must be str or tuple or list"),
        ({"off": [3]}, "names of regions as text"),
    ],
)
def test_a_value_that_is_wrong_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        interfuse.Options(**options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope", "there is no option 'nope'; the options are fuse, race, race_seconds, off, lock."),
        ("raceseconds", "there is no option 'raceseconds'; race_seconds or race may be meant; the options are fuse, "),
        ("locks", "there is no option 'locks'; lock may be meant; the options are fuse, "),
    ],
)
def test_an_option_that_is_not_there_is_one_sentence(name: str, words: str) -> None:
    for make in (interfuse.Options, interfuse.compile):
        with pytest.raises(OptionError, match=words):
            make(**{name: 1})
    kept = interfuse.Options(race=False, off="softmax")
    assert pickle.loads(pickle.dumps(kept)) == copy.deepcopy(kept) == kept


def test_none_leaves_the_knob() -> None:
    with override(race_seconds=3.5, off="gelu"):
        knobs = interfuse.Options(race=True).knobs()
    assert (knobs.race, knobs.race_seconds, knobs.off) == (True, 3.5, "gelu")


def test_options_win_over_the_mode_and_keywords_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("no-race").race is False
    assert read("no-race", {"race": True}).race is True
    seen: list[interfuse.Options] = []
    monkeypatch.setattr("interfuse.driver.api.Backend", lambda options, watch, warn: seen.append(options) or "eager")
    for options in ({"race": True, "race_seconds": 2}, interfuse.Options(race=True, race_seconds=2)):
        interfuse.compile(f, mode="max-autotune", options=options, race_seconds=1)
        interfuse.compile(f, mode="max-autotune", options=options)
        interfuse.compile(f, mode="max-autotune")
    assert [o.race_seconds for o in seen] == [1, 2, 120] * 2
    assert set(MODES) == {"default", "max-autotune", "no-race"}
    with pytest.raises(OptionError, match="takes a mapping"):
        interfuse.compile(f, options="race")  # type: ignore[arg-type]


def test_options_may_stand_behind_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[interfuse.Options] = []
    monkeypatch.setattr("interfuse.driver.api.Backend", lambda options, watch, warn: seen.append(options) or "eager")
    for options in ({"race": True, "race_seconds": 2}, interfuse.Options(race=True, race_seconds=2)):
        interfuse.compile(f, options)
        interfuse.compile(f, options, race_seconds=1)
    assert [(o.race, o.race_seconds) for o in seen] == [(True, 2), (True, 1)] * 2
    for no_options in (True, "max-autotune"):
        with pytest.raises(OptionError, match=r"options= takes a mapping or interfuse\.Options, not"):
            interfuse.compile(f, no_options)  # type: ignore[arg-type]
    for no_model in ({"race": False}, interfuse.Options(race=False)):
        with pytest.raises(OptionError, match=r"takes a model or a function, not .*; for a decorator, write options="):
            interfuse.compile(no_model)  # type: ignore[arg-type]


def regions(show: str) -> list[str]:
    """The label of what runs in each region, from the text of the program."""
    return [line.split(": ", 1)[1] for line in show.splitlines() if line.startswith("  ") and line[2].isdigit()]


def test_a_region_is_switched_off_from_options() -> None:
    x = torch.randn(4, 40)
    assert regions(interfuse.show(f, (x,), stage="program")) == ["fused: row, resident"]
    assert regions(interfuse.show(f, (x,), stage="program", off=("softmax",))) == ["library: mul+softmax"]
    with pytest.raises(OptionError, match="no region 'gelu' to switch off; the regions are: mul\\+softmax"):
        interfuse.show(f, x, stage="plan", off=("softmax", "gelu"))
    fast = torch.compile(f, backend="interfuse", options={"off": "softmax"})
    assert torch.equal(fast(x), f(x))


def test_the_decorator_with_and_without_options() -> None:
    @interfuse.compile
    def plain(x: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        return x * 2 + 1

    @interfuse.compile(race=False, fullgraph=True)
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = torch.randn(5)
    assert torch.equal(plain(x), chosen(x))
    assert torch.equal(plain(x), x * 2 + 1)
    assert (plain.__name__, plain.__doc__) == ("plain", "Doubles.")
    with pytest.raises(OptionError, match="no option 'racing'"):
        interfuse.compile(racing=True)
    with pytest.raises(OptionError, match="takes a model or a function, not int"):
        interfuse.compile(race=False)(3)


def test_fullgraph_refuses_a_graph_break() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(3)
    assert torch.equal(interfuse.compile(broken)(x), broken(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        interfuse.compile(broken, fullgraph=True)(x)


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 1), (False, 3)])
def test_dynamic_decides_how_often_it_compiles(dynamic: bool, graphs: int) -> None:
    stages: list[str] = []
    fast = interfuse.compile(f, dynamic=dynamic, watch=lambda stage, done=0, total=0: stages.append(stage))
    for batch in (3, 4, 5):
        x = torch.randn(batch, 40)
        torch.testing.assert_close(fast(x), f(x))
    assert stages.count("capture") == graphs


def test_every_public_name_is_there() -> None:
    assert all(getattr(interfuse, name) for name in interfuse.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        interfuse.absent  # noqa: B018


def regions_off(off: str, *shape: int, training: bool = False, **more: Any) -> list[str]:
    """The warnings of a compile with `off`, and that its results are right."""
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = torch.randn(*shape, requires_grad=training)
        out = interfuse.compile(f, off=off, **more)(x)
        torch.testing.assert_close(out, f(x))
        if training:
            out.sum().backward()
    return [str(w.message) for w in seen if "to switch off" in str(w.message)]


def test_a_name_that_is_no_regions_gives_a_warning() -> None:
    assert regions_off("softmax", 4, 8) == []
    (said,) = regions_off("nonsuch,softmax", 4, 9)
    assert said == (
        "there is no region 'nonsuch' to switch off; the regions are: mul+softmax "
        "(interfuse.explain(model, inputs) lists them)."
    )


def test_what_the_machine_lacks_is_warned_of_once_a_process(tmp_path: Path) -> None:
    """At both doors: results are right without, so that nobody would look for the reason."""
    (tmp_path / "file").write_text("")
    for lacking, words in (
        ({"cxx": "no-such-c++"}, "Interfuse: There is no C++ compiler 'no-such-c++': install g++"),
        ({"cache_dir": tmp_path / "file" / "cache"}, f"Interfuse: The cache folder {tmp_path}/file/cache cannot be us"),
    ):
        with override(**lacking), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                torch._dynamo.reset()
                torch.compile(f, backend="interfuse")(torch.randn(4, 15))
                interfuse.compile(f)(torch.randn(4, 16))
            assert len([w for w in seen if str(w.message).startswith(words)]) == 1
            assert len([w for w in seen if str(w.message).startswith("Interfuse: ")]) == 1


def test_no_compiler_is_nothing_to_warn_of_where_nothing_is_to_be_fused() -> None:
    with override(cxx="no-such-c++-either", fuse=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._dynamo.reset()
        interfuse.compile(f)(torch.randn(4, 17))


def test_in_training_a_name_may_be_of_the_backward_graph() -> None:
    assert regions_off("softmax_backward", 4, 10, training=True) == []
    (said,) = regions_off("nonsuch", 4, 11, training=True)
    assert said.endswith("; a backward graph that is still to come may have it.")
    (said,) = regions_off("no_backward", 4, 11, training=True)
    assert "softmax_backward" in said


def test_the_record_has_what_could_not_be_switched_off() -> None:
    backend = Backend(read(None, {"race": False}))
    with override(off="nonsuch"), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(f, backend=backend)(torch.randn(4, 12))
    (said,) = [e.facts["error"] for r in backend.records for e in r.of("warning")]
    assert "no region 'nonsuch'" in said
    assert said in str(ledger(backend.records)).replace("\n    ", " ")


def test_options_as_a_value_at_pytorchs_door() -> None:
    x = torch.randn(4, 13)
    fast = torch.compile(f, backend="interfuse", options=interfuse.Options(off="softmax", race=False))
    assert torch.equal(fast(x), f(x))
    for more, words in (
        ({"options": {"fusion": 1}}, "there is no option 'fusion'; fuse may be meant; the options are fuse, race"),
        ({"options": {"race": "no"}}, "option race='no' must be bool"),
        ({"mode": "fastest"}, "no mode 'fastest' for the interfuse backend; the modes are default, max-autotune, no-r"),
    ):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=words):
            torch.compile(f, backend="interfuse", **more)(x)  # type: ignore[arg-type]
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="interfuse", mode="no-race")(x), f(x))


def test_the_kill_switch_is_said() -> None:
    x = torch.randn(4, 14)
    with override(disable=True):
        account = interfuse.explain(f, (x,), measure=False)
        assert account.warnings == (
            "INTERFUSE_DISABLE is set, so PyTorch runs the model unchanged: unset it to compile.",
        )
        with pytest.raises(OptionError, match="INTERFUSE_DISABLE is set"):
            interfuse.show(f, (x,))
        assert torch.equal(interfuse.compile(f, fullgraph=True)(x), f(x))


def test_a_model_that_fails_by_itself_says_its_own_error() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) @ torch.ones(3)

    doors = interfuse.explain, interfuse.once, interfuse.bench, interfuse.show, interfuse.bisect
    for door in doors:
        with pytest.raises(
            ModelError, match=r"it raised RuntimeError: size mismatch, got input .*; call it uncompiled"
        ):
            door(broken, (torch.ones(4, 5),))  # type: ignore[operator]
