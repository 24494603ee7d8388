"""Forming regions. In: a flow and a judge of merges. Out: sets of calls that run as one unit, in an order that works.

Greedy, in program order: a call joins the regions that feed it where one kernel can hold the union, the merged kernel
is predicted to be no slower, and no path leaves the union and comes back. Siblings that read the same buffers are
tried after. A region that has as many calls as may be ends where the fewest bytes are handed on.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable

from interfuse.base.errors import GraphError
from interfuse.ir.index import at_sizes
from interfuse.ir.node import Node
from interfuse.plan.flow import OUTPUT, Flow

Judge = Callable[[frozenset[int]], "float | None"]
"""Predicted seconds of one kernel for a set of calls; None where there is no such kernel."""

MOST_CALLS = 64
"""Calls in one region at most: compile time and registers grow with it."""


class Grouping:
    """Regions under construction: which call is in which group, and the edges between groups.

    An edge leads from the maker of a value to its reader, from one call with an effect to the next of its kind, and
    from the readers of an input to the call that writes it.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.group_of: dict[int, int] = {k: k for k in flow.needed}
        self.members: dict[int, frozenset[int]] = {k: frozenset((k,)) for k in flow.needed}
        self.edges: dict[int, set[int]] = {k: set() for k in flow.needed}
        for reader in flow.needed:
            for leaf in flow.leaves[reader]:
                maker = flow.producer.get(leaf)
                if maker is not None and maker != reader:
                    self.edges[maker].add(reader)
        for kinds in (("random",), ("mutation", "collective")):
            # Their order is part of what they do: which numbers are drawn, what is written last, who waits for whom.
            kept = [k for k in flow.needed if flow.graph.calls[k].effect in kinds and k not in flow.writes]
            for first, second in itertools.pairwise(kept):
                self.edges[first].add(second)
        for write, (place, _) in flow.writes.items():
            for reader in flow.readers.get(place, ()):
                if reader != OUTPUT and reader < write:
                    self.edges[reader].add(write)

    def successors(self, group: int) -> set[int]:
        """The groups that must run after `group`."""
        out = {self.group_of[s] for k in self.members[group] for s in self.edges[k] if s in self.group_of}
        out.discard(group)
        return out

    def would_loop(self, first: int, second: int) -> bool:
        """True where a path from one group to the other passes through a third: merging them would close a circle."""
        return self._around(first, second) or self._around(second, first)

    def _around(self, start: int, end: int) -> bool:
        highest = max(self.members[end])
        stack = [s for s in self.successors(start) if s != end]
        seen = set(stack)
        while stack:
            for s in self.successors(stack.pop()):
                if s == end:
                    return True
                # Program order only grows along edges, so a group that starts behind `end` cannot come back to it.
                if s not in seen and min(self.members[s]) <= highest:
                    seen.add(s)
                    stack.append(s)
        return False

    def merge(self, first: int, second: int) -> int:
        """Join two groups; the name of the joint one."""
        joint = self.members.pop(first) | self.members.pop(second)
        for k in joint:
            self.group_of[k] = first
        self.members[first] = joint
        return first

    def merge_all(self, calls: frozenset[int]) -> None:
        """Make one group of calls that are groups of their own."""
        for first, second in itertools.pairwise(sorted(calls)):
            self.merge(self.group_of[first], self.group_of[second])

    def move(self, k: int, target: int) -> None:
        """Put call k, one of several of its group, into the group `target`."""
        rest = self.members.pop(self.group_of[k]) - {k}
        self.members[min(rest)] = rest  # a group is named after one of its own
        for r in rest:
            self.group_of[r] = min(rest)
        self.members[target] |= {k}
        self.group_of[k] = target

    def split(self, calls: frozenset[int]) -> None:
        """Undo the merges that made the group of `calls`."""
        del self.members[self.group_of[min(calls)]]
        for k in calls:
            self.group_of[k] = k
            self.members[k] = frozenset((k,))

    def copy(self) -> Grouping:
        """Another grouping with the same groups, to try things on."""
        other = copy.copy(self)
        other.group_of, other.members = dict(self.group_of), dict(self.members)
        return other

    def without(self, *groups: frozenset[int]) -> Grouping:
        """Another grouping in which these groups are split."""
        other = self.copy()
        for calls in groups:
            other.split(calls)
        return other

    def ordered(self) -> list[frozenset[int]]:
        """The groups, each after what it reads, otherwise in program order, so that buffers live as long as eager's."""
        waits: dict[int, int] = dict.fromkeys(self.members, 0)
        for g in self.members:
            for s in self.successors(g):
                waits[s] += 1
        ready = [(max(self.members[g]), g) for g, n in waits.items() if n == 0]
        heapq.heapify(ready)
        out: list[frozenset[int]] = []
        while ready:
            _, g = heapq.heappop(ready)
            out.append(self.members[g])
            for s in self.successors(g):
                waits[s] -= 1
                if waits[s] == 0:
                    heapq.heappush(ready, (max(self.members[s]), s))
        if len(out) < len(self.members):
            raise GraphError("regions wait for each other in a circle; please report the model.")
        return out


class Former:
    """Forms groups of calls. `fusable(call)` tells what may go into a kernel, `reject(union, why)` notes each
    refusal.
    """

    def __init__(
        self, flow: Flow, fusable: Callable[[int], bool], judge: Judge, reject: Callable[[frozenset[int], str], None]
    ) -> None:
        self.flow, self.groups = flow, Grouping(flow)
        self._fusable, self._judge, self._reject = fusable, judge, reject
        self._seconds: dict[frozenset[int], float | None] = {}
        self._closed: set[frozenset[int]] = set()
        self._values: dict[int, list[Node]] = defaultdict(list)
        for value, k in flow.producer.items():
            self._values[k].append(value)

    def run(self) -> Grouping:
        """Join makers with readers, then readers of one buffer."""
        self.join_makers(self.flow.needed)
        self._join_sole_readers()
        self._hand_over()
        for k in filter(self._fusable, self.flow.needed):
            for sibling in filter(self._fusable, _siblings(self.flow, k)):
                self._attempt(sibling, k)
        return self.groups

    def join_makers(self, calls: Iterable[int]) -> None:
        """Join each of `calls`, in program order, with the ones among them that make what it reads."""
        among = frozenset(filter(self._fusable, calls))
        for k in sorted(among):
            for maker in _makers(self.flow, k):
                if maker in among and not self._is_closed(maker, k):
                    self._attempt(maker, k)
            self._join_read_alone(k, among)

    def _join_read_alone(self, k: int, among: frozenset[int]) -> None:
        """Join the group of call k, where it has grown, with those `among` the calls whose values it has become the one
        to read.
        """
        groups = self.groups
        home = groups.group_of[k]
        if len(groups.members[home]) > 1:
            read = {leaf for c in groups.members[home] for leaf in self.flow.leaves[c] if leaf in self.flow.producer}
            made = {groups.group_of.get(self.flow.producer[leaf], home) for leaf in read} - {home}
            for calls in [groups.members[g] for g in sorted(made, reverse=True)]:
                if calls <= among:
                    self._join_sole_reader(calls)

    def break_up(self, calls: frozenset[int]) -> None:
        """Make several regions of one, as large as may be: what had been joined for a common operand stays apart; if
        all parts read each other, two that hand on little.
        """
        self.groups.split(calls)
        self.join_makers(calls)
        if calls in self.groups.members.values():
            self.groups.split(calls)
            order = sorted(calls)
            middle, reach = len(order) // 2, len(order) // 4
            cuts = sorted(range(middle - reach, middle + reach + 1), key=lambda n: abs(n - middle))
            best = min((n for n in cuts if n), key=lambda n: self._handed_on(frozenset(order[:n])))
            self.join_makers(order[:best])
            self.join_makers(order[best:])

    def _is_closed(self, maker: int, k: int) -> bool:
        """True where the group of `maker` takes no more readers. A full one is closed where the next call comes, behind
        the call from which the fewest bytes are handed on; the calls after that one begin the next group.
        """
        groups = self.groups
        full = groups.members[groups.group_of[maker]]
        if len(full) == MOST_CALLS and full not in self._closed and k > max(full):
            order = sorted(full)
            best = min(range(len(order), len(order) // 2, -1), key=lambda n: self._handed_on(frozenset(order[:n])))
            kept = frozenset(order[:best])
            if kept != full and self._cost(kept) is None:
                kept = full
            self._closed.add(kept)
            if kept != full:
                groups.split(full)
                groups.merge_all(frozenset(order[:best]))
                self.join_makers(full - kept)
        return groups.members[groups.group_of[maker]] in self._closed

    def _handed_on(self, calls: frozenset[int]) -> int:
        """Bytes of the values of `calls` that only other calls read: results of the graph are kept wherever it ends."""
        sizes, total = dict(self.flow.graph.hints), 0
        for value in (v for k in calls for v in self._values[k]):
            readers = self.flow.readers.get(value, ())
            if OUTPUT not in readers and not calls.issuperset(readers):
                total += value.dtype.bytes * at_sizes(value.size, sizes)
        return total

    def _join_sole_readers(self) -> None:
        """Join a group with the one group that reads all that it gives: a value of several readers was tried with each
        of them before they were one group, when it would have been a buffer still.
        """
        for calls in reversed(self.groups.ordered()):
            self._join_sole_reader(calls)

    def _join_sole_reader(self, calls: frozenset[int]) -> None:
        groups = self.groups
        values = [v for k in calls for v in self._values[k]]
        readers = {r for v in values for r in self.flow.readers.get(v, ())} - calls
        there = {OUTPUT if r == OUTPUT else groups.group_of[r] for r in readers}
        if len(there) != 1 or len(readers) == 1 or OUTPUT in there:
            return
        if all(map(self._fusable, (*calls, *readers))) and calls | groups.members[min(there)] not in self._seconds:
            self._attempt(min(calls), min(readers))

    def _hand_over(self) -> None:
        """Move a call into the one group that reads it, where that needs no new buffer and both are predicted faster.

        The call joined its makers before its readers were a group: there its result is no buffer at all.
        """
        groups = self.groups
        for k in reversed(self.flow.needed):
            home = groups.group_of[k]
            if not self._fusable(k) or len(groups.members[home]) == 1 or not self._reads_buffers(k):
                continue
            readers = {r for v in self._values[k] for r in self.flow.readers.get(v, ())}
            there = {OUTPUT if r == OUTPUT else groups.group_of[r] for r in readers}
            if len(there) != 1 or there & {OUTPUT, home}:
                continue
            a, b = groups.members[home], groups.members[there.pop()]
            costs = [self._cost(calls) for calls in (a - {k}, b | {k}, a, b)] if len(b) < MOST_CALLS else [None]
            found = [c for c in costs if c is not None]
            if len(found) == 4 and found[0] + found[1] < found[2] + found[3]:
                groups.move(k, groups.group_of[min(b)])

    def _reads_buffers(self, k: int) -> bool:
        """True where all that call k reads is in memory even if its group does not compute it."""
        home = self.groups.group_of[k]
        for leaf in self.flow.leaves[k]:
            maker = self.flow.producer.get(leaf)
            others = {r for r in self.flow.readers.get(leaf, ()) if r == OUTPUT or self.groups.group_of[r] != home}
            if maker is not None and self.groups.group_of.get(maker) == home and not others:
                return False
        return True

    def _attempt(self, first: int, second: int) -> None:
        """Merge the groups of two calls where that is legal and pays."""
        groups = self.groups
        a, b = groups.members[groups.group_of[first]], groups.members[groups.group_of[second]]
        union = a | b
        if a == b:
            return
        if len(union) > MOST_CALLS:
            self._reject(union, f"more than {MOST_CALLS} calls")
        elif groups.would_loop(groups.group_of[first], groups.group_of[second]):
            self._reject(union, "something between them runs elsewhere")
        else:
            joint, one, other = self._cost(union), self._cost(a), self._cost(b)
            if joint is None or one is None or other is None:
                return
            if joint <= one + other:
                groups.merge(groups.group_of[first], groups.group_of[second])
            else:
                self._reject(union, f"predicted {joint * 1e6:.1f} us together, {(one + other) * 1e6:.1f} us apart")

    def _cost(self, calls: frozenset[int]) -> float | None:
        if calls not in self._seconds:
            self._seconds[calls] = self._judge(calls)
        return self._seconds[calls]


def _makers(flow: Flow, k: int) -> Iterable[int]:
    """The calls that make what call k reads, latest first: the nearest is the likeliest to still be in a register."""
    found = {flow.producer[leaf] for leaf in flow.leaves[k] if leaf in flow.producer}
    return sorted(found - {k}, reverse=True)


def _siblings(flow: Flow, k: int) -> Iterable[int]:
    """Earlier calls that read a large buffer that call k reads too."""
    sizes = dict(flow.graph.hints)
    count = {leaf: at_sizes(leaf.size, sizes) for leaf in flow.leaves[k]}
    shared = [leaf for leaf, n in count.items() if n == max(count.values())]
    found = {r for leaf in shared for r in flow.readers.get(leaf, ()) if r != OUTPUT and r < k}
    return sorted(found, reverse=True)[:4]
