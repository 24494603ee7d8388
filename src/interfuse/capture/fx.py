"""The importer. In: an ATen graph from AOTAutograd or make_fx, with FakeTensor metadata. Out: a Graph.

One Call for each call_function node, in order, with `getitem` of several results folded into it. A call whose
operator has a lowering (capture/aten.py) gives expressions; any other gives `library` nodes, with the reason on the
call.

What is not a tensor: a number that the inputs' sizes determine becomes a Literal("symint", ...) where it is used, and
the calls that computed it are not kept. Any other number (a data-dependent size, `.item()`) is a 0-d node whose run-
time value is a Python number, referred to by Ref like a tensor. A graph input that is no tensor is a 0-d input node
with the attribute python=True (and symbol="s0" for a plain size symbol): its run-time value is the number or object
given, so inputs and placeholders always line up. Constant tensors become calls of "interfuse.constant".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from interfuse.base.errors import UnsupportedError
from interfuse.capture import aten, foreach, launches, stated, template
from interfuse.capture.symbols import Symbols
from interfuse.capture.torch_types import from_torch, has_kernels, to_torch
from interfuse.capture.values import expand
from interfuse.ir import build
from interfuse.ir.dtypes import BOOL, F64, I64, DType
from interfuse.ir.graph import Call, Graph, Input, Literal, Output
from interfuse.ir.index import Expr
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node, make

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBER_TYPE: dict[type, DType] = {torch.SymFloat: F64, torch.SymBool: BOOL, float: F64, bool: BOOL}


@dataclass(frozen=True)
class _Object:
    """What a graph node stands for where it is neither a tensor nor a number: a subgraph, say."""

    value: Any


def import_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), name: str = "graph") -> Graph:
    """The Graph of an ATen graph `gm` (functional; every node with meta["val"], as AOTAutograd and make_fx leave it).

    `example_inputs`, where given, are what the placeholders stand for: they tell parameters from other tensors.
    """
    return _Importer(gm, tuple(example_inputs), name).run()


class _Importer:
    """Walks one graph. `env` maps each FX node to what it stands for: a node, a value, a Literal or nested tuples."""

    def __init__(self, gm: torch.fx.GraphModule, example_inputs: tuple[Any, ...], name: str) -> None:
        self.gm, self.examples, self.name = gm, example_inputs, name
        self.env: dict[torch.fx.Node, Any] = {}
        self.symbols = Symbols()
        self.inputs: list[Input] = []
        self.calls: list[Call] = []
        self.outputs: list[Output] = []
        self.opaque: list[Any] = []
        self.device = _main_device(gm)

    def run(self) -> Graph:
        """Import every node in order."""
        foreach.split(self.gm)
        stated.correct(self.gm)
        places = self.gm.graph.find_nodes(op="placeholder")
        for p in places:
            val = p.meta.get("val")
            self.symbols.bind(_sizes(val) if isinstance(val, torch.Tensor) else [val] if _is_size(val) else [])
        kinds = _input_kinds(places, self.examples)
        for p, kind in zip(places, kinds, strict=True):
            self._placeholder(p, kind)
        for n in self.gm.graph.nodes:
            if n.op == "get_attr":
                self._attribute(n)
            elif n.op == "call_function":
                self._call(n)
            elif n.op == "output":
                self._output(n)
            elif n.op != "placeholder":
                raise UnsupportedError(
                    f"a captured graph has a {n.op} node {n.name}; hand over an ATen graph from AOTAutograd."
                )
        return Graph(
            tuple(self.inputs),
            tuple(self.calls),
            tuple(self.outputs),
            self.device,
            self.name,
            tuple(self.symbols.bound),
            tuple(self.opaque),
            tuple(self.symbols.hints.items()),
        )

    def _placeholder(self, n: torch.fx.Node, kind: str) -> None:
        val = n.meta.get("val")
        if isinstance(val, torch.Tensor):
            node = make("input", (), from_torch(val.dtype), self.symbols.dims(val.shape), name=n.name, hint=n.name)
            self.inputs.append(Input(node, self._layout(val) or contiguous(node.shape), kind, n.name))
            self.env[n] = node
            return
        dim = self.symbols.dim(val) if _is_size(val) else None
        bound = isinstance(dim, Expr) and self.symbols.is_bound([dim])
        symbol: dict[str, Any] = {"symbol": dim.name} if isinstance(dim, Expr) and dim.op == "sym" and bound else {}
        node = make("input", (), _NUMBER_TYPE.get(type(val), I64), (), name=n.name, hint=n.name, python=True, **symbol)
        self.inputs.append(Input(node, contiguous(()), kind, n.name))
        self.env[n] = template.size_literal(dim) if isinstance(dim, Expr) and bound else node

    def _attribute(self, n: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(n.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.env[n] = _Object(value)
            return
        fake = n.meta.get("val")
        seen = fake if isinstance(fake, torch.Tensor) else value
        dtype, shape, reason = from_torch(seen.dtype), self.symbols.dims(seen.shape), "a constant kept by the model"
        number = _only_number(value) if has_kernels(dtype) and str(seen.device) == self.device else None
        if number is None:
            out = make("library", (), dtype, shape, token=len(self.calls), target=template.CONSTANT, hint=n.name)
        else:
            out, reason = expand(build.constant(number, dtype), shape), ""
        self.calls.append(
            Call(
                template.CONSTANT,
                (template.keep(value, self.opaque),),
                (),
                (),
                (out,),
                (self._layout(seen),),
                launches=0,
                reason=reason,
            )
        )
        self.env[n] = out

    def _leaf(self, n: torch.fx.Node) -> Any:
        value = self.env[n]
        if isinstance(value, _Object):
            return value.value
        return value

    def _call(self, n: torch.fx.Node) -> None:
        if template.target_name(n.target) == "operator.getitem" and isinstance(n.args[0], torch.fx.Node):
            source = self.env[n.args[0]]
            if isinstance(source, tuple):
                self.env[n] = source[n.args[1]]  # type: ignore[index]
                return
        val = n.meta.get("val")
        if type(val) in (int, float, bool) or (isinstance(val, _SYMBOLIC) and self._size(val) is not None):
            self.env[n] = self._size(val) if isinstance(val, _SYMBOLIC) else val
            return
        target = template.target_name(n.target)
        if val is None and n.users:
            raise UnsupportedError(f"{target or n.target} does not state what it gives, which later calls read.")
        encoder = template.Encoder(self._leaf, self.opaque)
        args = tuple(encoder.encode(a) for a in n.args)
        if target is None:
            target, args = template.OBJECT_CALL, (template.keep(n.target, self.opaque), *args)
        kwargs = tuple((k, encoder.encode(v)) for k, v in n.kwargs.items())
        call = Call(
            target,
            args,
            kwargs,
            tuple(encoder.operands),
            (),
            (),
            launches.count(n, target),
            launches.viewed(n, encoder.operands, self._leaf),
            launches.effect(n),
            source=_source(n),
            joined=launches.is_joined(n),
        )
        self._results(n, call, val)

    def _results(self, n: torch.fx.Node, call: Call, val: Any) -> None:
        """Lower the call, or give it library nodes; then append it and set what its FX node stands for."""
        flat = template.flatten(val)
        try:
            self._check(n, call, flat)
            outs: tuple[Node | None, ...] = aten.lower(n, call, self._leaf, self.symbols)
            call = dataclasses.replace(call, outs=outs)
        except UnsupportedError as error:
            call = dataclasses.replace(call, outs=self._library(n, call, flat), reason=str(error))
        layouts = tuple(self._layout(v) if isinstance(v, torch.Tensor) else None for v in flat)
        self.calls.append(_as_fill(dataclasses.replace(call, layouts=layouts), self.device))
        stands = iter([out if out is not None else self._value(v) for out, v in zip(call.outs, flat, strict=True)])
        self.env[n] = _nested(val, stands)

    def _check(self, n: torch.fx.Node, call: Call, flat: list[Any]) -> None:
        """UnsupportedError, with the reason to record, where nothing about the call could be lowered."""
        if call.effect:
            raise UnsupportedError(call.effect)
        if call.target.startswith("higher_order."):
            raise UnsupportedError(aten.why_not(call.target))
        tensors = [v for v in flat if isinstance(v, torch.Tensor)]
        for a in n.all_input_nodes:
            tensors.extend(v for v in template.flatten(a.meta.get("val")) if isinstance(v, torch.Tensor))
        for t in tensors:
            if t.layout is not torch.strided or t.is_nested:
                raise UnsupportedError("not a strided tensor")
            if not has_kernels(from_torch(t.dtype)):
                raise UnsupportedError(f"no kernels for {'complex numbers' if t.dtype.is_complex else t.dtype}")
            if str(t.device) != self.device:
                raise UnsupportedError("not on one device")
            if not self.symbols.is_bound(self.symbols.dims(_sizes(t))):
                raise UnsupportedError("data-dependent size")
        if not flat or not all(isinstance(v, torch.Tensor) for v in flat):
            raise UnsupportedError("a result that is not a tensor")

    def _library(self, n: torch.fx.Node, call: Call, flat: list[Any]) -> tuple[Node | None, ...]:
        """One `library` node for each result, told apart by `index` where there are several; None for known numbers."""
        several = isinstance(n.meta.get("val"), (tuple, list))
        outs: list[Node | None] = []
        for k, kind in enumerate(map(self._kind, flat)):
            index, hint = ({"index": k}, f"{n.name}_{k}") if several else ({}, n.name)
            outs.append(
                None
                if kind is None
                else make(
                    "library",
                    call.operands,
                    kind[0],
                    kind[1],
                    token=len(self.calls),
                    source=call.source,
                    hint=hint,
                    target=call.target,
                    **index,
                )
            )
        return tuple(outs)

    def _kind(self, value: Any) -> tuple[DType, tuple[Any, ...]] | None:
        if isinstance(value, torch.Tensor):
            return from_torch(value.dtype), self.symbols.dims(value.shape)
        if isinstance(value, _SYMBOLIC) and self._size(value) is None:
            return _NUMBER_TYPE.get(type(value), I64), ()
        return None

    def _size(self, value: Any) -> Any:
        """The number or Literal that a symbolic value is known as, or None where only running gives it."""
        if not isinstance(value, torch.SymInt):
            constant = value.node.maybe_as_bool() if isinstance(value, torch.SymBool) else value.node.maybe_as_float()
            return constant
        dim = self.symbols.dim(value)
        if isinstance(dim, int):
            return dim
        return template.size_literal(dim) if self.symbols.is_bound([dim]) else None

    def _value(self, value: Any) -> Any:
        return self._size(value) if isinstance(value, _SYMBOLIC) else value

    def _layout(self, t: torch.Tensor) -> Layout | None:
        if t.layout is not torch.strided or t.is_nested:
            return None
        return Layout(self.symbols.dims(t.stride()), self.symbols.dim(t.storage_offset()))

    def _written(self, node: Node) -> Node:
        """The graph's input where `node` is what a copy into that gives, as it is where the model returns what it wrote
        in place: then no step needs to make it.
        """
        place = node.inputs[0] if node.op == "library" and node.attr("target") == "aten.copy_.default" else None
        return place if place is not None and any(place is i.node for i in self.inputs) else node

    def _output(self, n: torch.fx.Node) -> None:
        for a in template.flatten(n.args[0]):
            value = self.env[a] if isinstance(a, torch.fx.Node) else a
            for leaf, val in zip(
                template.flatten(value),
                template.flatten(a.meta.get("val") if isinstance(a, torch.fx.Node) else a),
                strict=True,
            ):
                if isinstance(leaf, Node):
                    leaf = self._written(leaf)
                    layout = self._layout(val) if isinstance(val, torch.Tensor) else None
                    self.outputs.append(Output(leaf, layout))
                else:
                    self.outputs.append(
                        Output(
                            None, None, template.keep(leaf.value, self.opaque) if isinstance(leaf, _Object) else leaf
                        )
                    )


def _as_fill(call: Call, device: str) -> Call:
    """A call that gives one number everywhere, as the fill that reads no operand; any other call as it is.

    Operands of full_like and kin lend a shape only: they need not be computed for it, nor live that long.
    """
    if not call.operands or call.reason or call.view_of is not None or len(call.outs) != 1:
        return call
    out = base = cast(Node, call.outs[0])
    while base.op in ("expand", "reshape"):
        base = base.inputs[0]
    if base.op != "const" or call.layouts[0] != contiguous(out.shape):
        return call
    shape = tuple(template.size_literal(d) if isinstance(d, Expr) else d for d in out.shape)
    named = (("dtype", Literal("dtype", str(to_torch(out.dtype)))), ("device", Literal("device", device)))
    return dataclasses.replace(
        call, target="aten.full.default", args=(shape, base.attr("value")), kwargs=named, operands=()
    )


def _only_number(value: torch.Tensor) -> bool | int | float | None:
    """The number that a tensor of one element holds; None for any other tensor, or one without data."""
    if (
        value.numel() != 1
        or isinstance(value, FakeTensor)
        or value.device.type == "meta"
        or value.layout is not torch.strided
    ):
        return None
    with unset_fake_temporarily():
        return value.item()


def _nested(val: Any, stands: Any) -> Any:
    if isinstance(val, (tuple, list)):
        return tuple(_nested(v, stands) for v in val)
    return next(stands)


def _is_size(value: Any) -> bool:
    """True for a size that is a number: the ragged size of a nested tensor is a name without one."""
    return isinstance(value, torch.SymInt) and not value.node.is_nested_int()


def _sizes(t: torch.Tensor) -> tuple[Any, ...]:
    """Every size, stride and offset of a tensor."""
    return (
        (*t.shape, *t.stride(), t.storage_offset()) if t.layout is torch.strided and not t.is_nested else tuple(t.shape)
    )


def _main_device(gm: torch.fx.GraphModule) -> str:
    """The first device that is not the CPU, of any value in the graph; else "cpu"."""
    for n in gm.graph.nodes:
        for v in template.flatten(n.meta.get("val")):
            if isinstance(v, torch.Tensor) and v.device.type not in ("cpu", "meta"):
                return str(v.device)
    return "cpu"


def _input_kinds(places: Sequence[torch.fx.Node], examples: Sequence[Any]) -> list[str]:
    """parameter, buffer or user for each placeholder; a parameter that takes no gradient may count as a buffer.

    AOTAutograd's descriptors and static indices tell, and where Dynamo lifted the module's tensors, gradients do.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = set(getattr(metadata, "static_input_indices", None) or ())
    kinds = []
    for k, p in enumerate(places):
        described = p.meta.get("desc")
        kind = {"ParamAOTInput": "parameter", "BufferAOTInput": "buffer"}.get(type(described).__name__, "user")
        position = getattr(described, "idx", None)
        if kind == "user" and metadata is not None and position is not None and position in static:
            kind = "parameter" if metadata.input_info[position].requires_grad else "buffer"
        elif k < len(examples) and isinstance(examples[k], torch.nn.Parameter):
            kind = "parameter"
        kinds.append(kind)
    return kinds


_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _source(n: torch.fx.Node) -> str:
    """file.py:line of the innermost frame outside torch that made the node; "" where the trace does not say."""
    frames = _FRAME.findall(n.meta.get("stack_trace") or "")
    outside = [f for f in frames if not f[0].startswith(_TORCH)] or frames
    return f"{Path(outside[-1][0]).name}:{outside[-1][1]}" if outside else ""
