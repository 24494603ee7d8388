"""From records to figures. In: the compile records of a model's graphs. Out: one Account; nothing is measured here.

The records are the only source. A region that equals a raced one (same name, bytes and candidates) was chosen by that
race and takes its times; where nothing was raced the figure stays None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from interfuse.base.record import Event, Record
from interfuse.report.values import (
    FREE_VIEWS,
    Account,
    Candidate,
    Change,
    Kernel,
    Measure,
    Model,
    Region,
    Rejected,
    Row,
    Stage,
    Totals,
    Unfused,
)

T = TypeVar("T")


def gather(records: Sequence[Record]) -> Account:
    """The account of one model from the records of its graphs (one a captured graph, in any order)."""
    regions = tuple(region for record in records for region in _regions(record))
    calls = [e.facts for r in records for ours in (_replaced(r),) for e in r.of("call") if int(e.subject) not in ours]
    measures = _ordered([_from(Measure, e.facts, name=e.subject) for r in records for e in r.of("measure")])
    built = [_from(Kernel, e.facts, name=e.subject) for r in records for e in r.of("kernel")]
    cached = bool(built) and all(k.cached for k in built)
    seconds: Counter[str] = Counter()
    for event in (e for r in records for e in r.of("stage")):
        seconds[event.subject] += event.facts["seconds"]
    return Account(
        model=replace(_model([e for r in records for e in r.of("model")]), cached=cached),
        totals=_totals(records, regions, measures),
        rows=_rows(regions),
        unfused=_unfused(calls),
        fallbacks=tuple(f"{e.subject}: {e.facts.get('error', '')}" for r in records for e in r.of("fallback")),
        warnings=warnings_of(records),
        measures=measures,
        regions=regions,
        kernels=tuple({k.name: k for k in built}.values()),
        stages=tuple(Stage(name, took) for name, took in seconds.items()),
    )


def warnings_of(records: Sequence[Record]) -> tuple[str, ...]:
    """One sentence for each thing that was asked for and could not be had, each once, in order."""
    found: dict[str, None] = {}
    for event in (e for r in records for e in r.events):
        if event.stage == "warning":
            found[str(event.facts.get("error", ""))] = None
        elif event.stage == "store":
            found[f"the file of race results, {event.subject}, {event.facts['warning']}."] = None
    return tuple(found)


def _from(kind: type[T], facts: dict[str, Any], **given: Any) -> T:
    """A value of `kind` from the facts that it has fields for."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{k: v for k, v in facts.items() if k in names}, **given})


def _model(events: Sequence[Event]) -> Model:
    """What the events say together: the last to state a fact decides, so a measured model names its graphs."""
    facts: dict[str, Any] = {}
    for event in events:
        facts.update({k: v for k, v in {**event.facts, "name": event.subject}.items() if v not in ("", None)})
    return _from(Model, facts)


def _ordered(measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Eager, interfuse, then the peers as they were measured; the last measure of a name counts."""
    last = {m.name: m for m in measures}
    first = [last.pop(name) for name in ("eager", "interfuse") if name in last]
    return (*first, *last.values())


def _regions(record: Record) -> list[Region]:
    races = {e.subject: e.facts for e in record.of("race")}
    failed = {e.subject: str(e.facts.get("error", "unknown error")) for e in record.of("fallback")}
    # A region is told again where building it changed it: the last telling counts.
    events = list({e.subject: e for e in record.of("region")}.values())
    # An equal region shares the race that was run for the first of its kind.
    shared = {_kind(e): races[e.subject] for e in reversed(events) if e.subject in races}
    counted: dict[Any, dict[str, dict[str, Any]]] = {}
    kinds = {e.subject: _kind(e) for e in events}
    for e in record.of("counters"):
        counted.setdefault(kinds.get(e.subject), {})[e.facts["label"]] = e.facts
    return [
        _region(e, races.get(e.subject) or shared.get(_kind(e)) or {}, failed, counted.get(_kind(e), {}))
        for e in events
    ]


def _kind(event: Event) -> tuple[Any, ...]:
    facts = event.facts
    return (
        facts["name"],
        facts["before_bytes"],
        tuple(facts["targets"]),
        tuple((c["label"], c["launches"], c["bytes"]) for c in facts["candidates"]),
    )


def _region(event: Event, race: dict[str, Any], failed: dict[str, str], counted: dict[str, dict[str, Any]]) -> Region:
    facts = event.facts
    candidates = tuple(_candidate(c, race, counted.get(c["label"], {})) for c in facts["candidates"])
    labels = [c.label for c in candidates]
    chosen, reason = facts["chosen"], facts.get("reason", "")
    if race.get("chosen") in labels:
        chosen, reason = labels.index(race["chosen"]), race.get("reason") or reason
    fallback = failed.get(event.subject) or failed.get(facts["name"], "")
    if fallback:
        chosen = next((k for k, c in enumerate(candidates) if c.family == "library"), chosen)
        reason = f"fell back: {fallback}"
    rejected = tuple(Rejected(r["with"], r["reason"]) for r in facts.get("rejected", ()))
    return Region(
        event.subject,
        facts["name"],
        tuple(facts["calls"]),
        tuple(facts["targets"]),
        tuple(facts.get("sources", ())),
        facts["before_launches"],
        facts["before_bytes"],
        candidates,
        chosen,
        reason,
        rejected,
        fallback,
        bool(race.get("busy")),
    )


def _candidate(facts: dict[str, Any], race: dict[str, Any], counted: dict[str, Any]) -> Candidate:
    time = race.get("times", {}).get(facts["label"], {})
    error = race.get("errors", {}).get(facts["label"], {})
    return _from(
        Candidate,
        {**facts, **time, **{k: v for k, v in counted.items() if k != "label"}},
        error_rms=error.get("rms"),
        error_share=error.get("share"),
        parts=tuple((name, us) for name, us in facts.get("parts", ())),
        kernels=tuple(facts.get("kernels", ())),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, or None where one is missing or there are none."""
    known = list(values)
    return None if not known or any(v is None for v in known) else sum(v for v in known if v is not None)


def _worst(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _rows(regions: Sequence[Region]) -> tuple[Row, ...]:
    """Regions that run something, grouped by name, decision and candidate; the ones that move most bytes first."""
    groups: dict[tuple[str, str, str], list[Region]] = {}
    for region in regions:
        if region.before_launches or region.choice.launches:
            groups.setdefault((region.name, region.decision, region.choice.label), []).append(region)
    rows = [_row(group) for group in groups.values()]
    return tuple(sorted(rows, key=lambda row: -(row.bytes.before or 0)))


def _row(group: Sequence[Region]) -> Row:
    def change(before: Callable[[Region], float | None], after: Callable[[Region], float | None]) -> Change:
        return Change(_sum(map(before, group)), _sum(map(after, group)))

    first = group[0]
    return Row(
        first.name,
        len(group),
        launches=change(lambda r: r.before_launches, lambda r: r.choice.launches),
        bytes=change(lambda r: r.before_bytes, lambda r: r.choice.bytes),
        predicted_us=_sum(r.choice.predicted_us for r in group),
        measured_us=change(lambda r: r.library.median_us, lambda r: r.choice.median_us),
        error_ratio=_worst(Change(r.library.error_rms, r.choice.error_rms).ratio for r in group),
        decision=first.decision,
        label=first.choice.label,
        reason=first.reason,
        ceiling_us=_sum(r.ceiling_us for r in group),
        dram_bytes=change(lambda r: r.library.dram_bytes, lambda r: r.choice.dram_bytes),
    )


def _totals(records: Sequence[Record], regions: Sequence[Region], measures: Sequence[Measure]) -> Totals:
    by_name = {m.name: m for m in measures}
    eager, ours = (by_name.get(n, Measure(n)) for n in ("eager", "interfuse"))
    return Totals(
        launches=_counted(records, "launches"),
        profiled_launches=Change(eager.launches, ours.launches),
        bytes=_counted(records, "bytes"),
        predicted_us=Change(
            _sum(r.library.predicted_us for r in regions), _sum(r.choice.predicted_us for r in regions)
        ),
        time_ms=Change(eager.median_ms, ours.median_ms),
        error_rms=Change(eager.error_rms, ours.error_rms),
        peak_bytes=Change(eager.peak_bytes, ours.peak_bytes),
        dram_bytes=_from_counters(regions),
    )


def _from_counters(regions: Sequence[Region]) -> Change:
    """Of the regions for which both ways were counted; nothing where none was."""
    pairs = [(r.library.dram_bytes, r.choice.dram_bytes) for r in regions]
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    return Change(_sum(before for before, _ in known), _sum(after for _, after in known))


def _counted(records: Sequence[Record], what: str) -> Change:
    """Before: every captured call, also those that the outputs turned out not to need. After: the chosen candidates.

    A graph without regions runs as it was captured.
    """
    before, after = [], []
    for record in records:
        calls = [e.facts[what] for e in record.of("call")]
        regions = _regions(record)
        if calls or regions:
            before.append(sum(calls or (getattr(r, f"before_{what}") for r in regions)))
            after.append(sum(getattr(r.choice, what) for r in regions) if regions else before[-1])
    return Change(_sum(before), _sum(after))


def _replaced(record: Record) -> set[int]:
    """The opaque calls that run as something else: a routine of our own."""
    opaque = {int(e.subject) for e in record.of("call") if e.facts.get("opaque")}
    return {k for r in _regions(record) if r.choice.family != "library" for k in r.calls} & opaque if opaque else set()


def _unfused(calls: Sequence[dict[str, Any]]) -> tuple[Unfused, ...]:
    """Views, then opaque calls by their reason, the most frequent first."""
    reasons: dict[str, Counter[str]] = {}
    for call in calls:
        if call.get("view"):
            reasons.setdefault(FREE_VIEWS, Counter())[call["target"]] += 1
        elif call.get("opaque") or call.get("reason"):
            reasons.setdefault(call.get("reason") or "no reason recorded", Counter())[call["target"]] += 1
    found = [Unfused(reason, tuple(targets.most_common())) for reason, targets in reasons.items()]
    return tuple(sorted(found, key=lambda u: (u.reason != FREE_VIEWS, -sum(n for _, n in u.targets))))
