"""Captured calls as steps of a program. In: calls and the slots of their operands. Out: closures that run them.

A call's argument template is decoded once: constants get slots of their own, so that running a call is one gather of
slots and one call of PyTorch's operator. Only arguments that hold operands inside lists, or sizes that change from call
to call, are decoded each time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from interfuse.capture.template import decode, flatten, resolve
from interfuse.ir.graph import Call, Graph, Input, Literal, Ref
from interfuse.ir.index import Expr
from interfuse.run.views import Step

VIEWS_NEED_STRIDES = ("aten.view.default", "aten._unsafe_view.default")
"""Targets that fail where their operand lies otherwise than captured; reshape means the same and copies then."""

FILLS = frozenset(
    f"aten.{name}.default" for name in ("full", "full_like", "new_full", "new_zeros", "zeros", "zeros_like")
)
"""Targets that give memory of their own, whatever they are given."""

_SCATTERS = """index_add.default index_copy.default index_put.default scatter.src scatter.value scatter_add.default
scatter_reduce.two""".split()
IN_PLACE = {f"aten.{t}": f"aten.{t.replace('.', '_.')}" for t in _SCATTERS}
"""Targets that copy their first operand and write into the copy, and those that write into the operand itself."""


class Slots:
    """Hands out slot numbers and remembers the constants that stand in some of them. Slot 0 is for the size symbols."""

    def __init__(self) -> None:
        self.initial: list[Any] = [None]

    def new(self, value: Any = None) -> int:
        """A slot of its own, holding `value` when a run begins."""
        self.initial.append(value)
        return len(self.initial) - 1


def _is_fixed(template: Any) -> bool:
    """True where the template has no operand and no size symbol in it."""
    if isinstance(template, Literal):
        return template.kind != "symint"
    if isinstance(template, tuple):
        return all(map(_is_fixed, template))
    return not isinstance(template, (Ref, Expr))


def _argument(template: Any, operands: Sequence[int], graph: Graph, slots: Slots, prepare: list[Step]) -> int:
    """The slot in which an argument will stand; `prepare` gets a step where it must be made anew at each run."""
    if isinstance(template, Ref):
        return operands[template.k]
    if _is_fixed(template):
        return slots.new(decode(template, (), graph.opaque))
    at, opaque = slots.new(), graph.opaque

    def make(values: list[Any]) -> None:
        values[at] = decode(template, [values[i] for i in operands], opaque, values[0])

    prepare.append(make)
    return at


def _reshape_instead(view: Callable[..., Any]) -> Callable[..., Any]:
    def run(tensor: torch.Tensor, shape: Any) -> Any:
        try:
            return view(tensor, shape)
        except RuntimeError:
            return tensor.reshape(shape)

    return run


def _callable(target: str) -> Callable[..., Any]:
    """The function behind a target, without the Python frame that PyTorch puts around an operator."""
    found = resolve(target)
    inner = getattr(found, "_op", None) if isinstance(found, torch._ops.OpOverload) else None
    function = inner if callable(inner) else found
    return _reshape_instead(function) if target in VIEWS_NEED_STRIDES else function


def call_step(
    call: Call, graph: Graph, operands: Sequence[int], outs: Sequence[int | None], slots: Slots
) -> tuple[Step, tuple[int, ...]]:
    """A step that runs `call` on the slots `operands` and fills `outs` (None: not wanted), and the slots it dirties.

    UnsupportedError where this PyTorch lacks the operator.
    """
    prepare: list[Step] = []
    function = _callable(call.target)
    positional = [_argument(a, operands, graph, slots, prepare) for a in call.args]
    named = [(k, _argument(v, operands, graph, slots, prepare)) for k, v in call.kwargs]
    gather = _gather(positional)
    if named:
        names, gather_named = tuple(k for k, _ in named), _gather([i for _, i in named])

        def run(values: list[Any]) -> Any:
            return function(*gather(values), **dict(zip(names, gather_named(values), strict=True)))
    else:

        def run(values: list[Any]) -> Any:
            return function(*gather(values))

    step = _storing(run, outs)
    dirty = tuple(i for i in (*positional, *(i for _, i in named)) if i not in operands and slots.initial[i] is None)
    if not prepare:
        return step, ()

    def prepared(values: list[Any]) -> None:
        for make in prepare:
            make(values)
        step(values)

    return prepared, dirty


def _gather(indices: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function from the slots to the tuple of those at `indices`."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    if indices:
        only = indices[0]
        return lambda values: (values[only],)
    return lambda values: ()


def _storing(run: Callable[[list[Any]], Any], outs: Sequence[int | None]) -> Step:
    """`run` with its results, opened as Call.outs is, put into the slots `outs`."""
    if len(outs) == 1 and outs[0] is not None:
        only = outs[0]

        def store(values: list[Any]) -> None:
            result = run(values)
            values[only] = flatten(result)[0] if isinstance(result, (tuple, list)) else result

        return store
    wanted = tuple((k, i) for k, i in enumerate(outs) if i is not None)

    def store_all(values: list[Any]) -> None:
        result = run(values)
        if wanted:
            parts = flatten(result)
            for k, i in wanted:
                values[i] = parts[k]

    return store_all


def mutated(call: Call) -> tuple[int, ...]:
    """The operands (positions in call.operands) that the call writes, by its schema; all of them where it has none."""
    if call.effect != "mutation":
        return ()
    schema = getattr(resolve(call.target), "_schema", None)
    if schema is None:
        return tuple(range(len(call.operands)))
    given = dict(zip((a.name for a in schema.arguments), call.args, strict=False)) | dict(call.kwargs)
    written = [
        given[a.name]
        for a in schema.arguments
        if a.name in given and a.alias_info is not None and a.alias_info.is_write
    ]
    return tuple(sorted({ref.k for template in written for ref in refs_of(template)}))


def refs_of(template: Any) -> list[Ref]:
    """The operands that a template names, each as often as it does."""
    if isinstance(template, tuple):
        return [r for part in template for r in refs_of(part)]
    return [template] if isinstance(template, Ref) else []


def symbol_reader(inputs: Sequence[Input], first: int) -> Callable[[list[Any]], dict[str, int]]:
    """A function from the slots to the value of each size symbol, read from the inputs in slots first, first + 1, ...

    A symbol is an integer input, or a size or stride of a tensor input.
    """
    found: dict[str, Callable[[list[Any]], int]] = {}
    for slot, given in enumerate(inputs, first):
        name = given.node.attr("symbol")
        if name is not None:
            found.setdefault(name, lambda values, i=slot: int(values[i]))  # type: ignore[misc]
            continue
        for k, dim in enumerate(given.node.shape):
            if isinstance(dim, Expr) and dim.op == "sym":
                found.setdefault(dim.name, lambda values, i=slot, k=k: values[i].shape[k])  # type: ignore[misc]
        for k, dim in enumerate(given.layout.strides):
            if isinstance(dim, Expr) and dim.op == "sym":
                found.setdefault(dim.name, lambda values, i=slot, k=k: values[i].stride(k))  # type: ignore[misc]
    readers = tuple(found.items())
    return lambda values: {name: read(values) for name, read in readers}
