"""How rows lie that are read or written across. In: a trace of rows and columns. Out: what lies so, and the rows by
several axes where that brings neighbours together.
"""

from __future__ import annotations

from interfuse.ir.index import symbols
from interfuse.lower.accesses import accesses
from interfuse.lower.axes import Rows, neighbouring_rows, shared_rows
from interfuse.lower.domain import Domain
from interfuse.lower.kernel import Load, first_step
from interfuse.lower.order import position
from interfuse.lower.traced import Trace


def is_across(trace: Trace, domain: Domain) -> bool:
    """True where an access of the whole domain has its neighbours along the rows: a transpose before or behind."""
    row, col = position("row", domain.rows), position("col", domain.cols)
    wide = [a for a in accesses(trace) if col in symbols(a.index)]
    places = (row, col)
    return any(first_step(a, row, places) == 1 and first_step(a, col, places) not in (0, 1, -1) for a in wide)


def across(trace: Trace, domain: Domain) -> Rows | None:
    """The rows as several axes where rows far apart are neighbours in something whose columns are not: heads behind
    them, say.
    """
    row, col = position("row", domain.rows), position("col", domain.cols)
    wide = [a for a in accesses(trace) if {row, col} <= symbols(a.index)]
    turned = [a for a in wide if first_step(a, col, (row, col)) not in (0, 1, -1)]
    sizes = [(a.out if isinstance(a, Load) else a.arg).dtype.bytes for a in turned]
    return neighbouring_rows([(a.index, n) for a, n in zip(turned, sizes, strict=True)], row, domain.rows)


def shared(trace: Trace, domain: Domain) -> Rows | None:
    """The rows as several axes where rows far apart share one of something that is read."""
    row, col = position("row", domain.rows), position("col", domain.cols)
    read = [m.index for m in trace.made if isinstance(m, Load) and {row, col} <= symbols(m.index)]
    return shared_rows(sorted(read, key=lambda e: -e.hi), row, domain.rows)
