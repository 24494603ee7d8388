"""Workspaces of routines. In: a decided plan, and what its candidates were measured to need. Out: the plan, within
eager's memory.

oneDNN packs a share of the weight a thread while it multiplies, some hundred KiB where MKL may need nothing; MKL keeps
what it once had. Both are nothing beside the tensors of a large model, and may be more than all of a small one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from interfuse.plan.flow import analyse
from interfuse.plan.memory import Need, eager_peak, peak
from interfuse.plan.plan import Plan, Region

MOST_PACKED = 512 << 10
"""Bytes that no routine's workspace was seen to pass for each thread, with as much again on top."""


def has_room(plan: Plan, threads: int) -> bool:
    """True where eager holds so much more at once than the plan that no workspace matters."""
    flow = analyse(plan.graph)
    held = peak([frozenset(r.calls) for r in plan.regions], flow).bytes
    return held + threads * MOST_PACKED <= eager_peak(flow)


def keep_to_eagers_workspaces(plan: Plan, needs: Sequence[Mapping[str, Need]]) -> Plan:
    """The plan with regions taken back to their captured calls, the one at the peak first, until it needs no more
    memory at once than the calls one by one.

    needs  of each region, by the labels of its candidates; nothing is known of those that are missing, and what they
           keep is taken to be the same whichever way the others run
    """
    if not any(needs):
        return plan
    flow, regions = analyse(plan.graph), list(plan.regions)

    def need(k: int, of: Region) -> Need:
        return needs[k].get(of.choice.label, Need(0))

    plain = [replace(r, chosen=r.candidates.index(r.library)) for r in regions]
    eager = eager_peak(flow, {frozenset((min(r.calls),)): need(k, r).once for k, r in enumerate(plain)})
    eager += max(need(k, r).kept for k, r in enumerate(plain))
    order = [frozenset(r.calls) for r in regions]
    while True:
        found = peak(order, flow, {calls: need(k, regions[k]).once for k, calls in enumerate(order)})
        total = found.bytes + max(need(k, r).kept for k, r in enumerate(regions))
        k = order.index(found.calls) if found.calls else 0
        if total <= eager or need(k, regions[k]).once <= need(k, plain[k]).once:
            return replace(plan, regions=tuple(regions))
        why = f"{regions[k].choice.label} and its workspace would have {total} bytes held at once, eager holds {eager}"
        regions[k] = replace(plain[k], reason=why)
