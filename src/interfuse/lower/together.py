"""Kernels of teams. In: a work for teams of programs (`lower/team.py`). Out: its axes, and a tracer that meets.

The row of a program is its share: the domain is rows of shares, a share's index is that of its row and of the program
within the team. What a share gives becomes what every share gives, along the axis of parts, by a `Meet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interfuse.base.errors import UnsupportedError
from interfuse.ir.index import const, substitute, symbols
from interfuse.ir.node import Node
from interfuse.lower.axes import Rows, power
from interfuse.lower.domain import Domain, find
from interfuse.lower.kernel import MATE, Axis, Meet, Role, Value
from interfuse.lower.trace import Key, Tracer
from interfuse.lower.work import Work


def shares_of(work: Work) -> tuple[Domain, Rows]:
    """The shares of a team's rows, each a row of the domain, and what makes up the index of one."""
    domain = find(tuple(share for _, share in work.met), work.inputs)
    (part,) = work.joined
    mate = Axis(MATE, part.extent, Role.TEAM)
    rows = Axis("row", domain.rows // part.extent, Role.GRID)  # type: ignore[operator]
    index = row * part.extent + mate.symbol if (row := rows.symbol).op == "sym" else mate.symbol
    return domain, Rows(index, (rows, mate))


def team_axes(domain: Domain, rows: Rows) -> tuple[Axis, ...]:
    """Rows, the programs of a team, and the columns of a share, held at once."""
    return (*rows.axes, Axis("col", domain.cols, Role.TILE, power(domain.longest)))


class TeamTracer(Tracer):
    """Traces a region for a team. `met` says how the share of each value that is met is computed."""

    def __init__(self, *args: Any, met: tuple[tuple[Node, Node], ...], **options: Any) -> None:
        super().__init__(*args, **options)
        self._met: Mapping[Node, Node] = dict(met)
        self._mate = next(s for s in self._walked if s.name == MATE)
        self._kept_row = next((s for s in self._walked if s.name == "row"), const(0))

    def _meets(self, key: Key) -> bool:
        """True where what every share gives is asked for."""
        return key[0] in self._met and any(self._part in symbols(i) for i in key[1])

    def _find_operands(self, key: Key) -> list[Key]:
        node, index, _ = key
        if not self._meets(key):
            return super()._find_operands(key)
        own = tuple(substitute(i, {self._part: self._mate}) for i in index)
        # All of what is met is there before any of it is asked for, so that a team meets once.
        return [(share, own, ()) for share in (self._met[node], *self._met.values())]

    def _reduced_ahead(self, node: Node, part: Value) -> Value:
        """What joins the shares: it is there once they have met."""
        return self._over(node, part, self._part)

    def _make(self, key: Key) -> Value:
        node, _, _ = key
        if not self._meets(key):
            return super()._make(key)
        shares = [self._memo[k] for k in self._operands(key)]
        axes = tuple(self._part.name if a == MATE else a for a in shares[0].axes)
        if MATE not in shares[0].axes:
            raise UnsupportedError("shares of a row that are all the same")
        depth = max(self.trace.depth[s] for s in shares)
        return self._add(Meet(self._new(f"{shares[0].name}_met", node, axes), shares[0]), depth)
