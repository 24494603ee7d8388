"""What an accuracy bisection found. In: regions with their errors. Out: values that print as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from interfuse.report.figures import counted

SCHEMA = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class Suspect:
    """One region with the error that it makes alone, on the values that reach it in the model.

    rms     root mean square error against float64, relative to the values; None where the region could not be judged
    share   error as a share of what the contract allows: above 1 breaks it
    """

    graph: str
    subject: str
    name: str
    label: str
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    rms: float | None = None
    share: float | None = None
    reproducer: str = ""
    note: str = ""

    def line(self) -> str:
        """One line: which region, what ran for it, how far it is off."""
        alone = "not judged alone" if self.share is None else f"rms {self.rms:.1e}, {self.share:.3g} of what is allowed"
        return f"{self.graph} {self.subject} ({self.label}): {alone}"


@dataclass(frozen=True)
class Bisection:
    """The compiled model's error as a share of what is allowed, and the regions whose kernels are to blame.

    judged   what results were compared with: "float64", or "eager" where the model has no float64 run
    ranking  every region that runs kernels, worst first; empty unless it was asked for
    tries    how often the compiled model ran
    note     what to make of a broken contract that is no region's fault, or ""
    """

    rms: float
    share: float
    judged: str
    regions: int
    tries: int
    at_fault: tuple[Suspect, ...] = ()
    ranking: tuple[Suspect, ...] = ()
    note: str = ""

    @property
    def ok(self) -> bool:
        """True where the compiled model keeps the accuracy contract."""
        return self.share <= 1.0

    def to_json(self) -> str:
        """One JSON object: schema, then the fields."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        verdict = "keeps the accuracy contract" if self.ok else "breaks the accuracy contract"
        lines = [
            f"The compiled model {verdict}: rms error {self.rms:.1e} against {self.judged}, "
            f"{self.share:.3g} times what is allowed.",
            f"kernels run for {counted(self.regions, 'region')}; the model ran {counted(self.tries, 'time')}.",
        ]
        lines += [self.note] if self.note else []
        for s in self.at_fault:
            lines += [f"at fault: {s.line()}", f"  calls: {', '.join(s.targets)}"]
            lines += [f"  from: {', '.join(s.sources)}"] if s.sources else []
            lines += [f"  to see it again: python {s.reproducer}"] if s.reproducer else []
            lines += [f"  {s.note}"] if s.note else []
            lines += [f"  until it is mended: INTERFUSE_OFF={s.name!r} keeps the region on the library path"]
        lines += ["regions, worst first:"] if self.ranking else []
        return "\n".join([*lines, *(f"  {s.line()}" for s in self.ranking)]) + "\n"
