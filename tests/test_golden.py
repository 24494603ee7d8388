"""The golden helper itself. In: kept, changed and missing texts. Out: it passes, or fails saying what to do."""

from __future__ import annotations

import pytest

from tests import golden


def test_the_file_is_found_from_the_tests_name(request):
    assert golden.path_of(request) == golden.FOLDER / "test_golden" / "test_the_file_is_found_from_the_tests_name.txt"
    assert golden.path_of("emit/add") == golden.FOLDER / "emit" / "add.txt"


def test_kept_changed_and_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(golden, "HERE", tmp_path / "tests")
    monkeypatch.setattr(golden, "FOLDER", tmp_path / "tests" / "golden")
    monkeypatch.setattr(golden, "SETTINGS", golden.Settings(renew=False))
    with pytest.raises(pytest.fail.Exception, match=r"missing: run pytest --renew-golden"):
        golden.check("a/b", "one\n")
    golden.SETTINGS.renew = True
    golden.check("a/b", "one\n")
    golden.SETTINGS.renew = False
    golden.check("a/b", "one\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)differs.*-one.*\+two"):
        golden.check("a/b", "two\n")
