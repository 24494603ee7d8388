"""The catalogue of errors. In: its classes. Out: one root, and a docstring each."""

from __future__ import annotations

import inspect

import pytest

from interfuse.base import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_the_one_root_and_says_what_it_means(kind):
    assert issubclass(kind, errors.InterfuseError)
    assert kind.__doc__
    with pytest.raises(errors.InterfuseError, match=r"do this\."):
        raise kind("do this.")
