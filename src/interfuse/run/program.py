"""The program: a plan made ready to run. In: a Plan, launchers of its kernels, the record. Out: a callable on tensors.

Everything is decided when the program is built: a run walks a flat list of closures over numbered slots and drops each
value after its last use. A region that runs kernels or providers keeps its captured calls as a backup (run/guarded.py);
kernels that follow each other are joined into one C call where that takes no more memory (run/burst.py). Besides one
flag a region, runs share nothing, so any number of threads may run one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from interfuse.base.errors import GraphError, UnsupportedError
from interfuse.base.record import Record
from interfuse.capture.template import decode
from interfuse.ir.graph import Graph, Literal, Output
from interfuse.ir.index import Dim, Expr, evaluate, symbols
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES
from interfuse.plan.plan import Candidate, KernelStep, LibraryStep, Plan, ProviderStep, Region
from interfuse.plan.plan import Step as PlanStep
from interfuse.plan.planner import library_plan
from interfuse.run.assemble import Assembler, Held, Op, Scope
from interfuse.run.burst import Burst, join
from interfuse.run.guarded import Ready, walk
from interfuse.run.launch import Launcher, Pages
from interfuse.run.library import mutated, symbol_reader
from interfuse.run.outputs import output_storages
from interfuse.run.units import Meter, Parts, Unit, paged
from interfuse.run.views import copied, relaid, sized, static


class Program:
    """A plan that runs: `program(*inputs)` gives the graph's outputs as a list, in order.

    Inputs are what plan.graph.inputs says: tensors, and integers for size symbols. `guarded=False` leaves the backups
    away, so that a failing step raises. `pool_bytes`: what the pool may keep of large outputs on the CPU (run/pool.py).
    GraphError where the plan reads what nothing gives.
    """

    def __init__(
        self,
        plan: Plan,
        launchers: Mapping[str, Launcher],
        record: Record,
        guarded: bool = True,
        pool_bytes: int = 0,
    ) -> None:
        graph = plan.graph
        build = _Builder(plan, launchers, record, guarded, pool_bytes)
        self._steps, self._outputs, self._initial = build.steps, build.outputs, build.assembler.slots.initial
        self._count = len(graph.inputs)
        self._sizes = symbol_reader(graph.inputs, 1)
        self._initial[0] = {}
        self._dynamic = bool(self._sizes_needed(graph))
        self.plan = plan

    @property
    def bursts(self) -> tuple[int, ...]:
        """How many kernels each of its bursts runs."""
        return tuple(step.count for step, _ in self._steps if isinstance(step, Burst))

    @staticmethod
    def _sizes_needed(graph: Graph) -> bool:
        return bool(graph.symbols) or any(i.node.attr("symbol") is not None for i in graph.inputs)

    @staticmethod
    def library(graph: Graph, record: Record) -> Program:
        """The program that runs every call the outputs need (and every one with an effect) as captured."""
        return Program(library_plan(graph), {}, record)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run on these inputs; the caller keeps them alive."""
        return self.run(list(inputs))

    def run(self, inputs: list[Any]) -> list[Any]:
        """Run on these inputs and empty the list, so that each is freed after its last use unless held elsewhere."""
        if len(inputs) != self._count:
            raise GraphError(
                f"the program takes {self._count} inputs and was given {len(inputs)}; pass them in the "
                "order of graph.inputs."
            )
        slots = self._initial.copy()
        slots[1 : 1 + self._count] = inputs
        inputs.clear()
        if self._dynamic:
            slots[0] = self._sizes(slots)
        walk(self._steps, slots)
        return [give(slots) for give in self._outputs]


Program.run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of functions that empty their list


def subject(plan: Plan, position: int) -> str:
    """What the record calls the region at `position`."""
    return f"{position}:{plan.regions[position].name}"


class _Builder:
    """Assembles a plan's regions into `steps` and its outputs into `outputs`.

    `regions` are the plan's, a product and the kernel behind it as two; `names` what the record calls each.
    """

    def __init__(
        self, plan: Plan, launchers: Mapping[str, Launcher], record: Record, guarded: bool, pool_bytes: int
    ) -> None:
        self.plan, self.record, self.guarded = plan, record, guarded
        pieces = [(i, piece) for i, region in enumerate(plan.regions) for piece in _pieces(region, plan.graph)]
        self.regions = [piece for _, piece in pieces]
        self.names = [subject(plan, i) for i, _ in pieces]
        self.assembler = Assembler(plan.graph, launchers)
        self.blocks: list[list[Op] | tuple[str, list[Op], list[Op]]] = []
        for position in range(len(self.regions)):
            self._region(position)
        self.kept: set[int] = set()
        self.outputs = self._finish()
        self.steps = self._steps(self._units(), pool_bytes)

    # --- Regions

    def _region(self, position: int) -> None:
        region, scope = self.regions[position], self.assembler.scope
        choice = region.choice
        plain = choice.family == "library" or all(isinstance(s, LibraryStep) for s in choice.steps)
        if not plain and self.guarded:
            effects = sum(self.plan.graph.calls[c].effect in ("mutation", "collective") for c in region.calls)
            if effects != len(choice.over) or (effects and len(choice.steps) > 1):
                raise GraphError(
                    f"region {region.name} writes its inputs or talks to other processes, so it cannot be "
                    "run again; the plan must leave such calls to the library, or to the one launch of the region."
                )
            self._keep_old(position)
            tried = self._candidate(position, choice)
            if tried is not None:
                backup = self._candidate(position, region.library)
                assert backup is not None, region.name
                self._meet(position, tried, backup)
                return
            choice = region.library
        self._run_in(scope, position, choice)
        self.blocks.append(scope.ops)
        scope.ops = []

    def _candidate(self, position: int, candidate: Candidate) -> Scope | None:
        """The candidate assembled in a scope of its own; None, with the reason recorded, where it cannot run here."""
        scope = Scope(self.assembler.scope)
        for _, place in self.regions[position].choice.over:
            scope.add(place, self.assembler.buffers[place])
        try:
            self._run_in(scope, position, candidate)
        except UnsupportedError as error:
            self.record.add("fallback", self.names[position], error=str(error))
            return None
        return scope

    def _keep_old(self, position: int) -> None:
        """Before a region writes inputs of the graph: save what later regions still want of them."""
        choice, scope = self.regions[position].choice, self.assembler.scope
        for _, place in choice.over:
            roots = self.assembler.buffers[place].roots
            self.assembler.save(scope, roots, lambda node: self._last.get(node, -1) > position)
        if scope.ops:
            self.blocks.append(scope.ops)
            scope.ops = []

    def _run_in(self, scope: Scope, position: int, candidate: Candidate) -> None:
        inside: dict[Node, int] = {}  # each node and the last step of the candidate that reads it
        for k, step in enumerate(candidate.steps):
            inside.update(dict.fromkeys(self._reads(step), k))
        for k, step in enumerate(candidate.steps):

            def later(node: Node, k: int = k) -> bool:
                return inside.get(node, -1) > k or self._last.get(node, -1) > position

            self.assembler.step(scope, step, later)

    def _meet(self, position: int, tried: Scope, backup: Scope) -> None:
        """Hand each output of the region over in one slot, laid out alike, whichever way it was computed."""
        assembler, region = self.assembler, self.regions[position]
        who = f"region {region.name}"
        for node in region.outputs:
            ours = assembler.find(tried, node, who)
            theirs = assembler.find(backup, node, who)
            made_here = any(ours.slot in op.writes for op in tried.ops)
            slot = ours.slot if made_here else assembler.slots.new()
            target = Held(slot, ours.layout, ours.roots | theirs.roots)
            assembler.roots_of[slot] = ours.roots
            same = ours.layout is not None and theirs.layout == ours.layout
            wanted = static(ours.layout.strides) if ours.layout is not None and not same else None
            if not made_here:
                assembler.put(tried, ours, slot, None)
            assembler.put(backup, theirs, slot, wanted)
            assembler.scope.add(node, target)
        self.blocks.append((self.names[position], tried.ops, backup.ops))

    def _reads(self, step: PlanStep) -> Iterator[Node]:
        """The nodes that a step reads, and what they are movements of."""
        nodes: Sequence[Node]
        if isinstance(step, LibraryStep):
            call = self.plan.graph.calls[step.call]
            written = mutated(call)
            nodes = [n for i, n in enumerate(call.operands) if i not in written]
        else:
            nodes = step.operands if isinstance(step, ProviderStep) else step.inputs
        return _with_bases(nodes)

    @functools.cached_property
    def _last(self) -> dict[Node, int]:
        """Each node and the position of the last region that may read it; behind all of them for outputs."""
        found: dict[Node, int] = {}
        for position, region in enumerate(self.regions):
            for step in (*region.choice.steps, *region.library.steps):
                found.update(dict.fromkeys(self._reads(step), position))
        outputs = [o.node for o in self.plan.graph.outputs if o.node is not None]
        found.update(dict.fromkeys(_with_bases(outputs), len(self.regions)))
        return found

    # --- Outputs

    def _finish(self) -> list[Callable[[list[Any]], Any]]:
        """One function an output from the slots to its value; the views that they need become a last block."""
        graph, scope = self.plan.graph, self.assembler.scope
        owners: dict[int, Any] = {min(self.assembler.buffers[i.node].roots): ("input", i.node) for i in graph.inputs}
        gives = []
        for output, storage in zip(graph.outputs, output_storages(graph), strict=True):
            if output.node is None:
                gives.append(_plain(output, graph))
                continue
            strides = self._known(output)
            held = self.assembler.find(scope, output.node, "an output of the graph", strides)
            self.kept.add(held.slot)
            shared = any(owners.get(root, storage) != storage for root in held.roots)
            if not shared:
                owners.update(dict.fromkeys(held.roots, storage))
            own = isinstance(storage, tuple) and storage[0] == "input"
            gives.append(_give(held.slot, strides, shared, as_it_is=own and not shared))
        self.blocks.append(scope.ops)
        scope.ops = []
        return gives

    def _known(self, output: Output) -> tuple[Dim, ...] | None:
        """The strides that an output must have; None where the inputs do not tell: then the library's are eager's."""
        strides = output.layout.strides if output.layout is not None else ()
        known = set(self.plan.graph.symbols)
        used = {s.name for d in strides if isinstance(d, Expr) for s in symbols(d)}
        return strides if output.layout is not None and used <= known else None

    # --- Lifetimes

    def _units(self) -> list[Unit]:
        """The blocks as units; each slot is dropped after its last use, inputs of a region with a backup at its end."""
        last: dict[int, int] = {1 + k: -1 for k in range(len(self.plan.graph.inputs))}
        for number, block in enumerate(self.blocks):
            for op in block if isinstance(block, list) else (*block[1], *block[2]):
                last.update(dict.fromkeys((*op.reads, *op.writes), number))
        constants = {i for i, value in enumerate(self.assembler.slots.initial) if value is not None}
        never = self.kept | constants | {0}
        units: list[Unit] = []
        for number, block in enumerate(self.blocks):
            ending = {s for s, n in last.items() if n == number} - never
            if isinstance(block, list):
                units += [Unit((part,), frozenset(part[1])) for part in _parts(block, ending)]
                continue
            name, choice, backup = block
            ours, theirs = _inner(choice), _inner(backup)
            both = (ours | theirs) & ending - (ours & theirs)
            parts, second = _parts(choice, ours & both), _parts(backup, theirs & both)
            clears, drops = tuple(sorted(ours)), tuple(sorted(ending - both))
            units.append(Unit(parts, frozenset(ending), name, second, drops, clears))
        return units

    def _steps(self, units: list[Unit], pool_bytes: int) -> Ready:
        graph, assembler = self.plan.graph, self.assembler

        def meter(pages: Iterable[int] = ()) -> Meter:
            """A meter of what lives when the program begins."""
            new = Meter(assembler.roots_of, assembler.storage_bytes, pages)
            new.add(range(1, 1 + len(graph.inputs)))
            return new

        hints = dict(graph.hints)
        on_cpu = assembler.device.type == "cpu"
        pages = Pages(pool_bytes, paged(units, meter, hints) if pool_bytes and on_cpu else frozenset())
        return join(units, pages, meter, hints, self.record)


def _pieces(region: Region, graph: Graph) -> tuple[Region, ...]:
    """The region; or, where a matrix product and a kernel follow each other in it, each as a region of its own.

    Each then falls back by itself, and what the product reads need not outlive it.
    """
    steps, calls = region.choice.steps, [s for s in region.library.steps if isinstance(s, LibraryStep)]
    if len(calls) != 2 or [isinstance(s, KernelStep) for s in steps] != [False, True]:
        return (region,)
    outs = tuple(n for n in graph.calls[calls[0].call].outs if n is not None)
    if isinstance(steps[0], ProviderStep) and outs != (steps[0].output,):
        return (region,)

    def piece(k: int, outputs: tuple[Node, ...]) -> Region:
        ways = replace(region.choice, steps=(steps[k],)), replace(region.library, steps=(calls[k],))
        return replace(region, outputs=outputs, candidates=ways, chosen=0)

    return piece(0, outs), piece(1, region.outputs)


def _with_bases(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and what they are movements of."""
    for node in nodes:
        yield node
        while node.op in MOVES:
            node = node.inputs[0]
            yield node


def _inner(ops: Sequence[Op]) -> set[int]:
    return {s for op in ops for s in op.writes}


def _parts(ops: Sequence[Op], ending: set[int]) -> Parts:
    """The operations, each with those of the slots `ending` that it is the last to use."""
    left, out = set(ending), []
    for op in reversed(ops):
        drops = left & {*op.reads, *op.writes}
        left -= drops
        out.append((op, tuple(sorted(drops))))
    return tuple(reversed(out))


def _plain(output: Output, graph: Graph) -> Callable[[list[Any]], Any]:
    value = output.value
    if isinstance(value, Expr):
        return lambda slots: evaluate(value, slots[0])
    if isinstance(value, (Literal, tuple)):
        return lambda slots: decode(value, (), graph.opaque, slots[0])
    return lambda slots: value


def _give(slot: int, strides: tuple[Dim, ...] | None, shared: bool, as_it_is: bool) -> Callable[[list[Any]], Any]:
    """The output in `slot`: as it is, laid out as eager lays it out, or as a tensor of its own where `shared`."""
    fixed, strides_at = (None, sized(())) if strides is None else (static(strides), sized(strides))

    def give(slots: list[Any]) -> Any:
        value = slots[slot]
        if as_it_is or not isinstance(value, torch.Tensor):
            return value
        if fixed is not None and not shared and value.stride() == fixed:
            return value
        wanted = value.stride() if strides is None else fixed if fixed is not None else strides_at(slots[0])
        return copied(value, wanted) if shared else relaid(value, wanted)

    return give
