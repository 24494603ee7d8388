"""The compile record. In: facts from every stage. Out: an append-only list that reports read and the cache stores.

A stage writes `record.add(stage, subject, **facts)`; nothing is ever changed or taken out. Facts are plain JSON values.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One fact: the stage that wrote it, what it is about (a region, a call, a pass), and the facts themselves."""

    stage: str
    subject: str
    facts: dict[str, Any]


@dataclass
class Record:
    """An append-only list of events with the seconds that each stage took."""

    events: list[Event] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def add(self, stage: str, subject: str, **facts: Any) -> None:
        """Append one event. Facts must be JSON values (str, int, float, bool, None, lists and dicts of these)."""
        self.events.append(Event(stage, subject, facts))

    def of(self, stage: str) -> list[Event]:
        """The events that `stage` wrote, in order."""
        return [e for e in self.events if e.stage == stage]

    def to_json(self) -> str:
        """One JSON list of [stage, subject, facts]."""
        return json.dumps([[e.stage, e.subject, e.facts] for e in self.events], sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Record:
        """The record that `to_json` wrote."""
        return Record([Event(*row) for row in json.loads(text)])
