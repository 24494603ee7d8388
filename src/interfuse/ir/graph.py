"""The graph: what capture hands on and passes rewrite. In: captured calls with nodes. Out: one frozen value that
prints.

A graph keeps two things side by side. `calls` are what eager PyTorch would run, in order: they are the library path,
the "before" of the ledger, and the unit of planning. The nodes that calls read and give are the meaning: expressions
over the graph's inputs that passes rewrite. A call whose results are `library` or `item` nodes is opaque and only runs
as itself; any other call is lowered, and its results are expressions that a kernel may compute instead.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from interfuse.ir.layout import Layout
from interfuse.ir.node import Node, with_inputs


@dataclass(frozen=True)
class Ref:
    """The k-th operand of a call, inside its argument template."""

    k: int


@dataclass(frozen=True)
class Literal:
    """A torch object in an argument template, by kind and text: ("dtype", "torch.float32"), ("device", "cpu"), ...

    kind "opaque" holds an index into Graph.opaque: objects that have no text, such as a subgraph.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Call:
    """One library call of the captured model.

    target   "aten.addmm.default"; `args` and `kwargs` are templates: nested tuples of plain values, Ref and Literal
    operands the nodes that Refs stand for; `outs` the nodes that it gives (None for a result that is not a tensor)
    layouts  of outs, as PyTorch lays them out; `view_of` k where out 0 is a view of operand k (no launch)
    launches kernels that eager runs for it; `effect` "" or random, mutation, collective
    reason   "" where lowered, else why not; `source` file.py:line
    joined   True where another call counts the launch that eager runs for both
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    operands: tuple[Node, ...]
    outs: tuple[Node | None, ...]
    layouts: tuple[Layout | None, ...]
    launches: int = 1
    view_of: int | None = None
    effect: str = ""
    reason: str = ""
    source: str = ""
    joined: bool = False

    @property
    def opaque(self) -> bool:
        """True where the call only runs as itself; a lowered one may hand an operand on that is a library node."""
        return bool(self.reason)


@dataclass(frozen=True)
class Input:
    """A graph input: its node, layout, and whether it is a parameter or buffer of the model or the user's tensor."""

    node: Node
    layout: Layout
    kind: str = "user"
    name: str = ""


@dataclass(frozen=True)
class Output:
    """A graph output: its node with the layout PyTorch would give it, or a plain value (int, None) where node is
    None.
    """

    node: Node | None
    layout: Layout | None = None
    value: Any = None


@dataclass(frozen=True)
class Graph:
    """One captured graph. `symbols` names the size symbols that are graph inputs (dynamic shapes), `hints` the values
    that some of them had in the example that was captured, `device` its device.
    """

    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Output, ...]
    device: str = "cpu"
    name: str = "graph"
    symbols: tuple[str, ...] = ()
    opaque: tuple[Any, ...] = ()
    hints: tuple[tuple[str, int], ...] = ()

    def roots(self) -> tuple[Node, ...]:
        """Every node that inputs, calls and outputs name, in order, without repeats."""
        seen: dict[Node, None] = {i.node: None for i in self.inputs}
        for call in self.calls:
            seen.update(dict.fromkeys((*call.operands, *(o for o in call.outs if o is not None))))
        seen.update(dict.fromkeys(o.node for o in self.outputs if o.node is not None))
        return tuple(seen)

    def layouts(self) -> Mapping[Node, Layout]:
        """How PyTorch lays each value out, seen from its own first element; the first to give a value decides."""
        return self._layouts

    @functools.cached_property
    def _layouts(self) -> Mapping[Node, Layout]:
        found: dict[Node, Layout] = {i.node: Layout(i.layout.strides) for i in self.inputs}
        for call in self.calls:
            for out, layout in zip(call.outs, call.layouts, strict=True):
                if out is not None and layout is not None:
                    found.setdefault(out, Layout(layout.strides))
        return found

    def replaced(self, to: Mapping[Node, Node]) -> Graph:
        """This graph with nodes replaced (keys and everything computed from them), calls and outputs following."""
        memo: dict[Node, Node] = dict(to)

        def new(node: Node) -> Node:
            stack = [node]
            while stack:
                n = stack[-1]
                if n in memo:
                    stack.pop()
                    continue
                missing = [i for i in n.inputs if i not in memo]
                if missing:
                    stack.extend(missing)
                    continue
                inputs = tuple(memo[i] for i in n.inputs)
                memo[n] = with_inputs(n, inputs)
                stack.pop()
            return memo[node]

        calls = tuple(
            replace(c, operands=tuple(map(new, c.operands)), outs=tuple(o and new(o) for o in c.outs))
            for c in self.calls
        )
        outputs = tuple(replace(o, node=o.node and new(o.node)) for o in self.outputs)
        return replace(self, calls=calls, outputs=outputs)
