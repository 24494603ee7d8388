"""What is written in place must overlap nothing else that the launch touches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interfuse.base.errors import LaunchError
from interfuse.run.apart import checker


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.booleans()), min_size=1, max_size=8))
def test_overlaps_are_found(parts: list[tuple[int, int, bool]]) -> None:
    touched = [set(range(start, start + length)) for start, length, _ in parts]
    clash = any(
        i != j and written and mine & other
        for i, (mine, (_, _, written)) in enumerate(zip(touched, parts, strict=True))
        for j, other in enumerate(touched)
    )
    check = checker([w for *_, w in parts])
    for _ in range(2):
        try:
            check([s for s, *_ in parts], [n for _, n, _ in parts])
            assert not clash
        except LaunchError:
            # A part without bytes inside another one may be taken for an overlap: that costs a fallback, no result.
            assert clash or any(n == 0 for _, n, _ in parts)


def test_good_addresses_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check = checker([True, False])
    check([0, 8], [8, 8])
    monkeypatch.setattr(np, "argsort", lambda *_, **__: pytest.fail("looked at again"))
    check([0, 8], [8, 8])
    with pytest.raises(pytest.fail.Exception):
        check([0, 16], [8, 8])
