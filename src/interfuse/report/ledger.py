"""The ledger. In: the records that compiling and measuring a model wrote. Out: what fusing saved, as text and JSON.

It reads the records alone, so a record that was kept explains itself as well as a fresh one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from rich.console import Console, ConsoleOptions, RenderResult

from interfuse.base.errors import OptionError
from interfuse.base.record import Record
from interfuse.report.figures import WIDTH, to_text
from interfuse.report.gather import gather
from interfuse.report.table import ledger_parts, region_parts
from interfuse.report.values import SCHEMA, Account


@dataclass(frozen=True)
class Ledger(Account):
    """An account that prints: `print(ledger)`, Rich's `print`, `.table(width)`, `.to_json()`, `.region(name)`."""

    def to_json(self) -> str:
        """The account as one JSON object with "schema": 1; docs/ledger.md describes it. Not measured is null."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    def table(self, width: int = WIDTH) -> str:
        """The ledger as plain text of at most `width` columns."""
        return to_text(ledger_parts(self, width), width)

    def region(self, name: str, width: int = WIDTH) -> str:
        """Every region of that name in full, as plain text. OptionError lists the names where there is none."""
        found = [r for r in self.regions if name in (r.name, r.subject)]
        if not found:
            known = ", ".join(dict.fromkeys(r.name for r in self.regions)) or "none"
            raise OptionError(f"there is no region {name!r}; the regions are: {known}.")
        return to_text(region_parts(found, self), width)

    def __str__(self) -> str:
        return self.table()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What Rich prints: the same parts, with the terminal's width and styles."""
        yield from ledger_parts(self, options.max_width)


def ledger(records: Sequence[Record]) -> Ledger:
    """The ledger of one model from the records of its graphs."""
    account = gather(records)
    return Ledger(**{f.name: getattr(account, f.name) for f in fields(account)})
