"""What the plan leaves in the record. In: regions and what was refused. Out: an event a region, and its name."""

from __future__ import annotations

from interfuse.base.record import Record
from interfuse.ir.graph import Graph
from interfuse.plan.candidates import short_name
from interfuse.plan.plan import KernelStep, PackStep, Region

MOST_REFUSALS = 8
"""Refusals that a region's event lists."""


def region_name(calls: frozenset[int], graph: Graph) -> str:
    """The calls' short names in order, joined by +, with repeats and views left out."""
    names = [short_name(graph.calls[k].target) for k in sorted(calls)]
    short = [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]
    return "+".join(short) if len(short) <= 6 else "+".join((*short[:3], f"{len(short) - 4} more", short[-1]))


def note(graph: Graph, regions: tuple[Region, ...], rejected: list[tuple[frozenset[int], str]], record: Record) -> None:
    """Write each region and every refusal that concerns it into the record."""
    of_call: dict[int, list[int]] = {}
    for number, (union, _) in enumerate(rejected):
        for k in union:
            of_call.setdefault(k, []).append(number)
    for i, region in enumerate(regions):
        inside = set(region.calls)
        near = sorted({number for k in region.calls for number in of_call.get(k, ())})
        beyond = [rejected[number] for number in near if not rejected[number][0] <= inside]
        refused = [{"with": region_name(union, graph), "reason": why} for union, why in beyond[:MOST_REFUSALS]]
        record.add(
            "region",
            f"{i}:{region.name}",
            name=region.name,
            calls=list(region.calls),
            targets=[graph.calls[k].target for k in region.calls],
            sources=list(dict.fromkeys(graph.calls[k].source for k in region.calls if graph.calls[k].source)),
            before_launches=region.library.launches,
            before_bytes=region.library.bytes,
            candidates=[
                {
                    "label": c.label,
                    "family": c.family,
                    "launches": c.launches,
                    "bytes": c.bytes,
                    "predicted_us": c.estimate.seconds * 1e6,
                    "error_bar": c.estimate.error,
                    "factor": c.estimate.factor,
                    "parts": [[name, seconds * 1e6] for name, seconds in c.estimate.parts],
                    "ceiling_us": c.estimate.floor * 1e6,
                    "flops": c.estimate.flops,
                    "kernels": [s.kernel.name for s in c.steps if isinstance(s, (KernelStep, PackStep))],
                }
                for c in region.candidates
            ],
            chosen=region.chosen,
            reason=region.reason,
            rejected=refused,
        )
