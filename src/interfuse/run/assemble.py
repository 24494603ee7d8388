"""From plan steps to closures over slots. In: a graph and the steps of a candidate. Out: operations in order.

A node may be held more than once: x and x.clone() are one value in two buffers, laid out or owned differently. Library
calls read the newest, as in the captured order; kernels read the one laid out as they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from interfuse.base.errors import GraphError, UnsupportedError
from interfuse.capture.torch_types import to_torch
from interfuse.ir.graph import Call, Graph, Ref
from interfuse.ir.index import Dim, at_sizes, sym, unwrap, wrap
from interfuse.ir.layout import Layout, contiguous, extent, reach
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES
from interfuse.lower.kernel import Param
from interfuse.plan.plan import KernelStep, LibraryStep, PackStep, ProviderStep
from interfuse.plan.plan import Step as PlanStep
from interfuse.run.launch import Launch, Launcher, Operand, Over, Pages, Part, PartsLaunch, Result
from interfuse.run.library import FILLS, IN_PLACE, Slots, call_step, mutated, refs_of
from interfuse.run.providers import PROVIDERS, available
from interfuse.run.views import (
    Step,
    Strides,
    chain_to,
    copied,
    layout_through,
    relaid,
    sized,
    view_step,
)


@dataclass(frozen=True)
class Held:
    """A slot with a value in it: its layout as far as known, and the storages that it may lie in."""

    slot: int
    layout: Layout | None
    roots: frozenset[int]


@dataclass
class Op:
    """One step of the program, or the launch that it will be, with the slots that it reads and fills."""

    run: Step | Launch | PartsLaunch
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def made(self) -> tuple[Result, ...]:
        """What a kernel writes in it."""
        return self.run.outs if isinstance(self.run, (Launch, PartsLaunch)) else ()

    def step(self, pages: Pages) -> Step:
        """The step; `pages` says which results of launches come from the pool."""
        return self.run.step(pages) if isinstance(self.run, (Launch, PartsLaunch)) else self.run


@dataclass
class Scope:
    """Values at hand while steps are assembled, newest last, and the operations so far. `outer` is looked at second."""

    outer: Scope | None = None
    held: dict[Node, list[Held]] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    within: dict[int, dict[Node, None]] = field(default_factory=dict)  # the nodes that were ever held in a storage

    def versions(self, node: Node) -> list[Held]:
        """Everything that holds `node`, oldest first."""
        outer = self.outer.versions(node) if self.outer is not None else []
        return outer + self.held.get(node, [])

    def __contains__(self, node: Node) -> bool:
        return node in self.held or (self.outer is not None and node in self.outer)

    def add(self, node: Node, held: Held) -> None:
        """Note that `held` now has the value of `node`."""
        self.held.setdefault(node, []).append(held)
        for root in held.roots:
            self.within.setdefault(root, {})[node] = None


class Assembler:
    """Turns steps into operations. `launchers` gives each kernel's by the kernel's name."""

    def __init__(self, graph: Graph, launchers: Mapping[str, Launcher]) -> None:
        self.graph, self.launchers = graph, launchers
        self.results = results_of(graph)
        self.device = torch.device(graph.device)
        self.slots = Slots()
        self.scope = Scope()
        self.storage_bytes: list[int] = []  # by root, at the example's sizes
        self.roots_of: dict[int, frozenset[int]] = {}  # by slot
        self.filled: set[int] = set()  # roots that the program fills with a number
        for given in graph.inputs:
            # What a forward graph is given lives on outside of it; a backward graph is given its inputs for good.
            counts = graph.name == "backward" and given.kind == "user"
            root = self.new_root(given.node if counts else None, given.layout)
            self.scope.add(given.node, self.hold(given.layout, root))
        self.buffers = {node: held[0] for node, held in self.scope.held.items()}

    def new_root(self, node: Node | None, layout: Layout | None = None) -> frozenset[int]:
        """A storage that nothing else lies in, as large as `node` is where it lies so."""
        size: Dim = 0
        if node is not None:
            size = extent(node.shape, (layout or contiguous(node.shape)).strides, node.dtype.bytes)
        self.storage_bytes.append(at_sizes(size, dict(self.graph.hints)))
        return frozenset((len(self.storage_bytes) - 1,))

    def hold(self, layout: Layout | None, roots: frozenset[int]) -> Held:
        """A new slot for a value that lies in the storages `roots`."""
        held = Held(self.slots.new(), layout, roots)
        self.roots_of[held.slot] = roots
        return held

    def find(self, scope: Scope, node: Node, who: str, strides: tuple[Dim, ...] | None = None) -> Held:
        """Where `node` stands, newest first but for one laid out as `strides`; a view is made where it is a movement.

        GraphError where nothing at hand gives it.
        """
        versions = scope.versions(node)
        for held in reversed(versions):
            if strides is None or (held.layout is not None and held.layout.strides == strides):
                return held
        if versions:
            return versions[-1]
        found = chain_to(node, scope)  # type: ignore[arg-type]
        if found is None:
            raise GraphError(
                f"{who} reads {node!r} ({node.hint or node.op}), which no earlier step gives; the plan "
                "must let a region before it put that value out."
            )
        base, chain = found
        options = [(h, h.layout and layout_through(h.layout, chain)) for h in reversed(scope.versions(base))]
        held, layout = next(((h, lay) for h, lay in options if lay is not None), options[0])
        # A reshape that copies at run time is still counted as sharing storage: the safe side for outputs and mutation.
        view = self.hold(layout and Layout(layout.strides), held.roots)
        scope.ops.append(Op(view_step(held.slot, view.slot, held.layout, chain), (held.slot,), (view.slot,)))
        scope.add(node, view)
        return view

    def step(self, scope: Scope, step: PlanStep, later: Callable[[Node], bool]) -> None:
        """Add the operations of one step. `later` tells which nodes are read after it.

        UnsupportedError where a kernel has no launcher, or a provider or operator is missing here.
        """
        if isinstance(step, LibraryStep):
            self._library(scope, step.call, later)
        elif isinstance(step, KernelStep):
            self._kernel(scope, step)
        elif isinstance(step, PackStep):
            self._parts(scope, step, step.members, tuple(d for row in step.sizes for d in row))
        else:
            self._provider(scope, step)

    def _library(self, scope: Scope, position: int, later: Callable[[Node], bool]) -> None:
        call = self.graph.calls[position]
        who = f"call {position} ({call.target})"
        written = mutated(call)
        operands = [
            self.buffers[node] if k in written and node in self.buffers else self.find(scope, node, who)
            for k, node in enumerate(call.operands)
        ]
        for k in written:
            self.save(scope, operands[k].roots, later)
        over = self._may_write_into(scope, call, operands, later)
        if over is not None:
            call = replace(call, target=IN_PLACE[call.target])
        outs: list[int | None] = []
        for node, layout in zip(call.outs, call.layouts, strict=True):
            if node is None:
                outs.append(None)
                continue
            if over is not None:
                roots = over.roots
            else:
                roots = self.new_root(node, layout) if call.view_of is None else operands[call.view_of].roots
            self.filled |= roots if call.target in FILLS else set()
            held = self.hold(layout and Layout(layout.strides), roots)
            scope.add(node, held)
            outs.append(held.slot)
        run, dirty = call_step(call, self.graph, [o.slot for o in operands], outs, self.slots)
        scope.ops.append(Op(run, tuple(o.slot for o in operands), (*(o for o in outs if o is not None), *dirty)))

    def _may_write_into(
        self, scope: Scope, call: Call, operands: Sequence[Held], later: Callable[[Node], bool]
    ) -> Held | None:
        """The first operand, where the call may write into it instead of into a copy: a fill that nothing reads later,
        as in the backward pass of an index.
        """
        if call.target not in IN_PLACE or call.effect or not isinstance(call.args[0], Ref):
            return None
        if refs_of((call.args, call.kwargs)).count(call.args[0]) > 1:
            return None  # it is the source, too
        held = operands[call.args[0].k]
        others = [o for k, o in enumerate(operands) if k != call.args[0].k]
        laid = (
            call.layouts[0] is not None and held.layout is not None and held.layout.strides == call.layouts[0].strides
        )
        if not laid or not held.roots <= self.filled or any(held.roots & o.roots for o in others):
            return None
        return None if any(later(n) for root in held.roots for n in scope.within.get(root, ())) else held

    def save(self, scope: Scope, roots: frozenset[int], later: Callable[[Node], bool]) -> None:
        """Before a buffer is overwritten: keep a copy of each value in it that is read later, and forget the buffer."""
        for node in dict.fromkeys(n for root in roots for n in scope.within.get(root, ())):
            versions = scope.held.pop(node, [])
            safe = [h for h in versions if not h.roots & roots]
            if versions and not safe and later(node):
                old = versions[-1]
                safe = [self.hold(old.layout, self.new_root(node, old.layout))]
                scope.ops.append(Op(_copy_step(old.slot, safe[0].slot), (old.slot,), (safe[0].slot,)))
            for held in safe:
                scope.add(node, held)

    def _kernel(self, scope: Scope, step: KernelStep) -> None:
        if step.over:
            self._parts(scope, step, (step,), tuple(sym(name) for name in step.kernel.symbols))
            return
        launcher = self._launcher(step.kernel.name)
        parts = self._bound(scope, step, step.kernel.name, {})
        reads = tuple(p for p in parts if isinstance(p, Operand))
        outs = tuple(p for p in parts if isinstance(p, Result))
        launch = Launch(step.kernel, launcher, reads, outs)
        scope.ops.append(Op(launch, tuple(o.slot for o in reads), tuple(r.slot for r in outs)))

    def _parts(
        self, scope: Scope, step: KernelStep | PackStep, members: Sequence[KernelStep], sizes: tuple[Dim, ...]
    ) -> None:
        launcher = self._launcher(step.kernel.name)
        shared: dict[Node, Result] = {}
        parts = tuple(p for member in members for p in self._bound(scope, member, step.kernel.name, shared))
        reads = dict.fromkeys(p.slot for p in parts if not isinstance(p, Result))
        writes = [p.slot if isinstance(p, Result) else p.result for p in parts if not isinstance(p, Operand)]
        params = [p for m in members for p in m.kernel.params if p.mode != "scratch"]
        lengths = tuple(
            unwrap(wrap(part.length) * p.dtype.bytes)
            if isinstance(part, Operand)
            else reach(p.shape, p.strides, p.dtype.bytes)
            for part, p in zip(parts, params, strict=True)
        )
        scope.ops.append(Op(PartsLaunch(launcher, parts, sizes, lengths), tuple(reads), tuple(writes)))

    def _launcher(self, name: str) -> Launcher:
        if name not in self.launchers:
            raise UnsupportedError(f"kernel {name} was not built; its region runs the library path.")
        return self.launchers[name]

    def _bound(self, scope: Scope, step: KernelStep, name: str, shared: dict[Node, Result]) -> tuple[Part, ...]:
        """What stands behind the parameters of the step's kernel, which is launched as part of kernel `name`. `shared`
        are the results of the launch so far: members of a pack may write parts of one.
        """
        params = [p for p in step.kernel.params if p.mode != "scratch"]
        if len(params) != len(step.inputs) + len(step.outputs):
            raise GraphError(
                f"kernel {name} has {len(params)} parameters for {len(step.inputs)} inputs and "
                f"{len(step.outputs)} outputs; the plan must name one node each."
            )
        ins, outs = params[: len(step.inputs)], params[len(step.inputs) :]
        who, parts = f"kernel {name}", list[Part]()
        over = {value: self.buffers[place] for value, place in step.over}
        roots = frozenset[int]().union(*(h.roots for h in over.values()))
        for node, param, start in zip(step.inputs, ins, step.skipped or (0,) * len(ins), strict=True):
            held = self.find(scope, node, who, param.strides)
            if held.roots & roots and held not in over.values():
                raise UnsupportedError(f"{who} would read another view of what it writes; the captured calls run.")
            length = unwrap(wrap(reach(param.shape, param.strides, 1)) - start)
            parts.append(Operand(held.slot, param.strides, to_torch(param.dtype), start, length))
        for node, param in zip(step.outputs, outs, strict=True):
            if node in shared:
                parts.append(shared[node])
                continue
            place = over.get(node)
            layout = Layout(param.strides)
            held = self.hold(layout, self.new_root(node, layout) if place is None else place.roots)
            scope.add(node, held)
            if place is None:
                shared[node] = self._result(held.slot, node, param)
                parts.append(shared[node])
            else:
                parts.append(Over(place.slot, held.slot, param.strides, to_torch(param.dtype)))
        return tuple(parts)

    def _result(self, slot: int, node: Node, param: Param) -> Result:
        return Result(slot, node.shape, param.strides, to_torch(node.dtype), self.device, node in self.results)

    def _provider(self, scope: Scope, step: ProviderStep) -> None:
        reason = available(step.provider, step.operands[0].dtype, self.graph.device)
        if reason is not None:
            raise UnsupportedError(f"{reason}; its region runs the library path.")
        reads = [self.find(scope, node, f"provider {step.provider}").slot for node in step.operands]
        held = self.hold(step.layout or contiguous(step.output.shape), self.new_root(step.output))
        scope.add(step.output, held)
        routine, attrs, out = PROVIDERS[step.provider].run, dict(step.attrs), held.slot
        shape_at, rank = sized(step.output.shape), len(step.output.shape)

        def run(slots: list[Any]) -> None:
            result = routine([slots[i] for i in reads], attrs)
            slots[out] = result if result.dim() == rank else result.reshape(shape_at(slots[0]))

        scope.ops.append(Op(run, tuple(reads), (out,)))

    def put(self, scope: Scope, held: Held, target: int, strides: Strides | None) -> None:
        """Add an operation that hands the value of `held` to slot `target`, laid out as `strides` where given."""
        source = held.slot

        def run(slots: list[Any]) -> None:
            value = slots[source]
            slots[target] = value if strides is None else relaid(value, strides)

        scope.ops.append(Op(run, (source,), (target,)))


def results_of(graph: Graph) -> set[Node]:
    """The outputs of the graph, and what they are movements of."""
    found: set[Node] = set()
    for output in graph.outputs:
        node = output.node
        while node is not None:
            found.add(node)
            node = node.inputs[0] if node.op in MOVES else None
    return found


def _copy_step(source: int, target: int) -> Step:
    def run(slots: list[Any]) -> None:
        tensor = slots[source]
        slots[target] = copied(tensor, tensor.stride())

    return run
