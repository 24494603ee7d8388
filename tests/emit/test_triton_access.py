"""What kernels say of their accesses. In: rows read twice, rows of odd widths. Out: hints to caches, hidden places."""

from __future__ import annotations

import pytest

from interfuse.emit.triton import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32
from tests.emit import triton_cases as cases


def test_a_row_that_is_read_twice_stays_in_the_cache() -> None:
    text = emit(cases.lowered(*cases.odd_region(F16, 512, 131072))[0]).text
    first, last = text.index('eviction_policy="evict_last"'), text.index('eviction_policy="evict_first"')
    assert first < last < text.index('cache_modifier=".cs"')
    assert "eviction_policy" not in emit(cases.lowered(*cases.odd_region(F16, 512, 4096))[0]).text


@pytest.mark.parametrize(("cols", "hidden"), ((769, 1), (768, 0), (3001, 1), (4093, 0)))
def test_weights_lie_as_rows_of_odd_widths_do(cols: int, hidden: int) -> None:
    text = emit(cases.lowered(*cases.normed_region(F16, 512, cols))[0]).text
    assert text.count("nothing = tl.program_id(1)") == hidden
    assert text.count("+ nothing") == hidden and ("w_ptr + nothing + col" in text) == bool(hidden)


@pytest.mark.parametrize(("cols", "added"), ((3001, True), (4096, False), (40003, False), (100, False)))
def test_a_row_of_an_odd_width_is_found_before_its_elements(cols: int, added: bool) -> None:
    text = emit(cases.lowered(*cases.normed_region(F16, 4096, cols))[0]).text
    assert ("x_ptr + row * COLS + col" in text) is added and ("x_ptr + at" in text) is not added


def test_a_row_that_is_held_in_vectors_is_read_by_these_and_what_rows_share_by_its_elements() -> None:
    text = emit(cases.lowered(*cases.normed_region(F16, 4096, 4093))[0]).text
    assert text.count("row * 4093 // 4 * 4 + lane, mask=near)") == 2 and "tl.load(w_ptr + col, mask=inside)" in text
    assert [text.count(f"mask={m})") for m in ("whole", "inside & (whole == 0)")] == [1, 1]


@pytest.mark.parametrize(("rows", "passes"), ((4096, True), (128, False)))
def test_what_a_scan_down_columns_writes_passes_by_where_no_cache_holds_it(rows: int, passes: bool) -> None:
    x = b.placeholder("x", F16, (8, rows, 4096))
    kernel, _ = cases.lowered([x], [b.cast(b.scan("cumsum", b.cast(x, F32), 1), F16)])
    assert kernel.family == "column, streamed"
    assert emit(kernel).text.count('cache_modifier=".cs"') == passes
