"""Content keys. In: parts. Out: stable digests that tell different parts apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interfuse.base.keys import digest, short


def test_the_digest_never_changes():
    """It names files on users' disks: another value would orphan them all."""
    assert digest() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest("kernel", 3) == digest("kernel", "3")
    assert short("kernel", 3) == digest("kernel", 3)[:12]


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_where_parts_begin_matters(a, b):
    assert (digest(*a) == digest(*b)) == (a == b)


def test_bytes_and_text_of_the_same_content_agree():
    assert digest(b"abc") == digest("abc")
    assert digest("ab", "c") != digest("a", "bc")
