"""The plan. In: what the planner decided. Out: a frozen value: regions in order, each with ranked candidates.

A region covers whole captured calls, so its library path is always exactly what eager would run. A candidate is a list
of steps that compute the region's outputs from its inputs; candidate 0 of the finished plan is not special: `chosen`
is. Region inputs and outputs are nodes that live in buffers. Steps may also read a movement (reshape, permute, slice,
expand) of such a node: the runtime makes the view.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from interfuse.cost.estimate import Estimate
from interfuse.ir.graph import Graph
from interfuse.ir.index import Dim
from interfuse.ir.layout import Layout
from interfuse.ir.node import Node
from interfuse.lower.kernel import Kernel
from interfuse.lower.work import Work


@dataclass(frozen=True)
class LibraryStep:
    """Run graph.calls[call] as captured."""

    call: int


@dataclass(frozen=True)
class KernelStep:
    """Launch a generated kernel: `inputs`, then `outputs` are the nodes behind its parameters that are not scratch.

    `over` names outputs that are written over an input of the graph instead of into memory of their own. `work` is what
    the kernel was asked for, so that it may be had in another schedule. `skipped` are the elements of each input that
    lie before the address that the kernel is given; none of any where it is empty.
    """

    kernel: Kernel
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    over: tuple[tuple[Node, Node], ...] = ()
    work: Work | None = field(default=None, compare=False, repr=False)
    skipped: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class PackStep:
    """Launch a packed kernel once for all `members`, each the step of its kernel alone; `sizes[k]` are the values of
    the packed kernel's symbols for member k.
    """

    kernel: Kernel
    members: tuple[KernelStep, ...]
    sizes: tuple[tuple[Dim, ...], ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What all members read."""
        return tuple(dict.fromkeys(n for m in self.members for n in m.inputs))

    @property
    def over(self) -> tuple[tuple[Node, Node], ...]:
        """What all members write over inputs of the graph."""
        return tuple(pair for m in self.members for pair in m.over)


@dataclass(frozen=True)
class ProviderStep:
    """Run a routine that stands for IR nodes, such as oneDNN's linear with an activation: one output, which lies as
    `layout`, row-major without.
    """

    provider: str
    operands: tuple[Node, ...]
    output: Node
    attrs: tuple[tuple[str, Any], ...] = ()
    layout: Layout | None = None


Step = Union[LibraryStep, KernelStep, PackStep, ProviderStep]


@dataclass(frozen=True)
class Candidate:
    """One way to run a region. `label` is what the ledger prints, `bytes` what its steps read and write, in bytes."""

    label: str
    steps: tuple[Step, ...]
    estimate: Estimate
    bytes: int
    launches: int
    family: str = "library"

    @property
    def over(self) -> tuple[tuple[Node, Node], ...]:
        """What the candidate writes over inputs of the graph, (value, input) each; the library's calls do not count."""
        return tuple(pair for s in self.steps if isinstance(s, (KernelStep, PackStep)) for pair in s.over)

    @property
    def note(self) -> str:
        """What the reason for the choice says of a pack; "" for anything else."""
        members = next((len(s.members) for s in self.steps if isinstance(s, PackStep)), 0)
        return f"packed {members} like regions" if members else ""


@dataclass(frozen=True)
class Region:
    """Calls that run as one unit. `inputs` and `outputs` live in buffers; `reason` says why the choice is as it is,
    `settled` that it is not to be measured, `key` under what its measurements are kept ("" where that is not worked
    out yet).
    """

    name: str
    calls: tuple[int, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    candidates: tuple[Candidate, ...]
    chosen: int = 0
    reason: str = ""
    settled: bool = False
    key: str = field(default="", compare=False)

    @property
    def choice(self) -> Candidate:
        """The candidate that runs."""
        return self.candidates[self.chosen]

    @property
    def library(self) -> Candidate:
        """The candidate that runs the captured calls; every region has it."""
        return next(c for c in self.candidates if c.family == "library")


@dataclass(frozen=True)
class Plan:
    """Regions in an order that respects data and effects; together they cover every call that the outputs need."""

    graph: Graph
    regions: tuple[Region, ...]
    dropped: tuple[tuple[int, str], ...] = field(default=())
