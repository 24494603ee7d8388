"""The record. In: facts. Out: the same facts in order, through JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interfuse.base.record import Event, Record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text("abcdef", min_size=1, max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES, st.dictionaries(NAMES, JSON, max_size=3)), max_size=5))
def test_a_record_survives_json(rows):
    record = Record()
    for stage, subject, facts in rows:
        record.add(stage, subject, **facts)
    back = Record.from_json(record.to_json())
    assert back.events == record.events == [Event(*row) for row in rows]
    assert back.to_json() == record.to_json()


def test_events_keep_their_order_and_are_found_by_stage():
    record = Record()
    for k, stage in enumerate(("plan", "build", "plan")):
        record.add(stage, f"region{k}", number=k)
    assert [e.subject for e in record.of("plan")] == ["region0", "region2"]
    assert record.of("tune") == []


def test_facts_are_json_values():
    record = Record()
    record.add("plan", "r", what=object())
    with pytest.raises(TypeError, match="not JSON serializable"):
        record.to_json()


def test_the_text_is_plain_json():
    record = Record()
    record.add("plan", "r", b=1, a=[True, None])
    assert json.loads(record.to_json()) == [["plan", "r", {"a": [True, None], "b": 1}]]
