"""Argument templates of calls. In: a call's arguments with nodes in them. Out: templates, and real arguments again.

A template is nested tuples of plain values, Ref and Literal. A plain tuple stands for a list (what ATen takes); other
containers are a tuple that begins with Literal("container", "tuple" | "dict" | "slice"). Literal kinds: dtype,
device, layout, memory_format ("torch.float32", "cuda:0", ...), symint (an index expression over size symbols), and
opaque (the position of an object in Graph.opaque). `decode` and `resolve` run a call exactly as captured:

resolve(call.target)(*decode(call.args, values, opaque, symbols), **decode_kwargs(call.kwargs, values, opaque,
symbols))
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from interfuse.base.errors import UnsupportedError
from interfuse.ir import index
from interfuse.ir.graph import Graph, Literal, Ref
from interfuse.ir.index import Expr
from interfuse.ir.node import Node

CONSTANT = "interfuse.constant"
"""Target of a call that gives a tensor kept in Graph.opaque: its one argument."""
OBJECT_CALL = "interfuse.call"
"""Target of a call whose function has no text name: argument 0 is the function, kept in Graph.opaque."""

_NAMED: dict[type, str] = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
_MODULES: dict[str, Any] = {"operator": operator, "builtins": builtins, "math": math, "torch": torch}
_PLAIN = (bool, int, float, complex, str, type(None))


class Encoder:
    """Turns the arguments of one call into templates. `leaf` gives what a graph node stands for: a node or a value."""

    def __init__(self, leaf: Callable[[torch.fx.Node], Any], opaque: list[Any]) -> None:
        self.operands: list[Node] = []
        self._leaf, self._opaque = leaf, opaque

    def encode(self, value: Any) -> Any:
        """The template of `value`."""
        if isinstance(value, torch.fx.Node):
            value = self._leaf(value)
        if isinstance(value, Node):
            if value not in self.operands:
                self.operands.append(value)
            return Ref(self.operands.index(value))
        if isinstance(value, (Literal, *_PLAIN)):
            return value
        if isinstance(value, torch.device):
            return Literal("device", str(value))
        if type(value) in _NAMED:
            return Literal(_NAMED[type(value)], str(value))
        if isinstance(value, slice):
            return (Literal("container", "slice"), *map(self.encode, (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            return (Literal("container", "dict"), *((k, self.encode(v)) for k, v in value.items()))
        if isinstance(value, list):
            return tuple(map(self.encode, value))
        if type(value) is tuple:
            return (Literal("container", "tuple"), *map(self.encode, value))
        return keep(value, self._opaque)


def keep(value: Any, opaque: list[Any]) -> Literal:
    """Store `value` in `opaque` (once by identity) and give the literal that stands for it."""
    for k, other in enumerate(opaque):
        if other is value:
            return Literal("opaque", str(k))
    opaque.append(value)
    return Literal("opaque", str(len(opaque) - 1))


def size_literal(dim: Expr) -> Literal:
    """The literal of a size expression."""
    return Literal("symint", index.text(dim))


_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_parse = functools.lru_cache(maxsize=4096)(lambda text: ast.parse(text, mode="eval").body)


def _size(tree: Any, symbols: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return symbols[tree.id]
    if isinstance(tree, ast.UnaryOp):
        return -_size(tree.operand, symbols)
    if isinstance(tree, ast.BinOp):
        return _ARITHMETIC[type(tree.op)](_size(tree.left, symbols), _size(tree.right, symbols))
    return {"min": min, "max": max}[tree.func.id](*(_size(a, symbols) for a in tree.args))


def _literal(value: Literal, opaque: Sequence[Any], symbols: Mapping[str, int]) -> Any:
    if value.kind == "symint":
        return _size(_parse(value.text), symbols)
    if value.kind == "opaque":
        return opaque[int(value.text)]
    if value.kind == "device":
        return torch.device(value.text)
    return getattr(torch, value.text.removeprefix("torch."))


def decode(
    template: Any, operands: Sequence[Any], opaque: Sequence[Any] = (), symbols: Mapping[str, int] | None = None
) -> Any:
    """The arguments that `template` stands for; Ref k becomes operands[k], nested tuples become lists.

    `symbols` gives each size symbol's value by name (see `symbol_values`). The outermost tuple, a call's args, is a
    list too.
    """
    if isinstance(template, Ref):
        return operands[template.k]
    if isinstance(template, Literal):
        return _literal(template, opaque, symbols or {})
    if not isinstance(template, tuple):
        return template
    if template and isinstance(template[0], Literal) and template[0].kind == "container":
        return _container(template[0].text, template[1:], operands, opaque, symbols)
    return [decode(t, operands, opaque, symbols) for t in template]


def _container(
    kind: str, parts: tuple[Any, ...], operands: Sequence[Any], opaque: Sequence[Any], symbols: Mapping[str, int] | None
) -> Any:
    if kind == "dict":
        return {k: decode(v, operands, opaque, symbols) for k, v in parts}
    items = [decode(p, operands, opaque, symbols) for p in parts]
    return slice(*items) if kind == "slice" else tuple(items)


def decode_kwargs(
    kwargs: tuple[tuple[str, Any], ...],
    operands: Sequence[Any],
    opaque: Sequence[Any] = (),
    symbols: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The keyword arguments that a call's `kwargs` template stands for."""
    return {k: decode(v, operands, opaque, symbols) for k, v in kwargs}


def target_name(target: Any) -> str | None:
    """The text from which `resolve` finds `target` again, or None where there is none."""
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
    elif isinstance(target, torch._ops.HigherOrderOperator):
        name = f"higher_order.{target.name()}"
    else:
        module = getattr(target, "__module__", None) or ""
        name = f"{module.removeprefix('_')}.{getattr(target, '__name__', '')}"
    try:
        return name if resolve(name) is target else None
    except UnsupportedError:
        return None


@functools.cache
def resolve(target: str) -> Callable[..., Any]:
    """The function that a call's target names. UnsupportedError where this torch does not have it."""
    if target == CONSTANT:
        return lambda tensor: tensor
    if target == OBJECT_CALL:
        return lambda function, *args, **kwargs: function(*args, **kwargs)
    space, _, rest = target.partition(".")
    try:
        found = _MODULES[space] if space in _MODULES else getattr(torch.ops, space)
        for part in rest.split("."):
            found = getattr(found, part)
    except (AttributeError, RuntimeError):
        raise UnsupportedError(
            f"this torch has no operator {target}; import the package that registers it first."
        ) from None
    return found  # type: ignore[no-any-return]


def flatten(result: Any) -> list[Any]:
    """A call's result as the flat list that lines up with Call.outs: nested tuples and lists opened, None kept."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flatten(part)]
    return [result]


def symbol_values(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of each of the graph's size symbols, by name, from actual inputs (tensors and ints, in input order)."""
    found: dict[str, int] = {}
    for given, value in zip(graph.inputs, inputs, strict=True):
        name = given.node.attr("symbol")
        if name is not None:
            found.setdefault(name, int(value))
        elif isinstance(value, torch.Tensor):
            pairs = (
                *zip(given.node.shape, value.shape, strict=True),
                *zip(given.layout.strides, value.stride(), strict=True),
            )
            for dim, size in pairs:
                if isinstance(dim, Expr) and dim.op == "sym":
                    found.setdefault(dim.name, int(size))
    return found
