"""A script that shows one region's error by itself. In: a region, the captured graph. Out: a Python file.

The script holds the region's captured calls as PyTorch code, inputs (made up from a seed, or saved beside it where only
the model's own values show the error), and the comparison. It needs PyTorch and Interfuse, not the model.
"""

from __future__ import annotations

import keyword
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from interfuse.base.errors import OptionError, UnsupportedError
from interfuse.base.record import Record
from interfuse.capture.template import resolve
from interfuse.capture.torch_types import to_torch
from interfuse.ir.graph import Call, Graph, Input, Literal, Output, Ref
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node
from interfuse.plan.plan import Region
from interfuse.report.bisection import Suspect
from interfuse.run.program import Program
from interfuse.run.views import static
from interfuse.tune import trial

HEAD = '''"""Region {name}: {state}. Run this file to see it again.

Written by `interfuse bisect` with torch {torch}. Exit status 1 means that the compiled calls are less accurate than the
contract allows.{sources}
"""

import sys
{path}
import torch

import interfuse
from interfuse.tune.judge import judge, moved


def flat(result):
    """Nested results as one list."""
    return [leaf for part in result for leaf in flat(part)] if isinstance(result, (tuple, list)) else [result]


def laid(tensor, strides):
    """A copy of the tensor with these strides."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


'''
TAIL = """

def main():
    given = inputs()
    with torch.no_grad():
        eager = region(*given)
        {exact}
        {nearby}
        got = interfuse.compile(region, race=False, dynamic=False)(*given)
    error = judge(got, eager, exact, nearby{codes})
    verdict = "kept" if error.ok else "broken"
    print(f"contract {{verdict}}: rms error {{error.rms:.2e}}, {{error.share:.3g}} times what is allowed")
    return 0 if error.ok else 1


if __name__ == "__main__":
    sys.exit(main())
"""
EXACT = "exact = region(*[t.double() if t.is_floating_point() else t for t in given], to=lambda dtype: torch.float64)"
NEARBY = "nearby = region(*moved(given), to=lambda dtype: torch.float64)"


@dataclass(frozen=True)
class _Part:
    """Calls of the region with the views they read through, what they take and what they give, by captured node."""

    calls: tuple[int, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def values_of(graph: Graph, wanted: Sequence[Input], given: Sequence[Any]) -> list[Any]:
    """The values of nodes, laid out as `wanted` says, that a library run of the graph on `given` makes.

    What the graph copies into its inputs at its end is left out: they are needed as they are.
    """
    outputs = tuple(Output(i.node, i.layout) for i in wanted)
    calls = tuple(c for c in graph.calls if c.effect != "mutation" or c.target != "aten.copy_.default")
    return Program.library(replace(graph, outputs=outputs, calls=calls), Record())(*given)


def write(
    found: Suspect, graph: Graph, region: Region, given: Sequence[Any] | None, has_exact: bool, folder: Path
) -> Suspect:
    """Write the script of `region` into `folder`; the suspect with its path, or with the reason why there is none.

    `given` are the captured graph's inputs where the script needs the model's own values, which go into a file beside.
    OptionError where the folder cannot be written.
    """
    path = folder / f"bisect_{re.sub(r'[^A-Za-z0-9]+', '_', found.name).strip('_')}_{found.subject.split(':')[0]}.py"
    part = _part(graph, region)
    layouts = graph.layouts()
    wanted = [Input(n, layouts.get(n) or contiguous(n.shape)) for n in part.inputs]
    try:
        text = script(found, graph, part, wanted, given is not None, has_exact)
    except UnsupportedError as error:
        return replace(found, note=f"no script: {error}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if given is not None:
            _whole(path.with_suffix(".pt"), lambda p: torch.save(values_of(graph, wanted, given), p))
        _whole(path, lambda p: p.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}): name another folder.") from error
    return replace(found, reproducer=str(path))


def _whole(path: Path, make: Any) -> None:
    """Make the file under another name first, so that it is there whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        make(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _part(graph: Graph, region: Region) -> _Part:
    """The region's captured calls; views that feed them are taken in, down to a value that lives in a buffer."""
    makers: dict[Node, list[int]] = {}
    for k, call in enumerate(graph.calls):
        for out in call.outs:
            if out is not None:
                makers.setdefault(out, []).append(k)
    taken, todo, inputs = set(region.calls), list(region.calls), dict[Node, None]()
    while todo:
        k = todo.pop()
        for node in graph.calls[k].operands:
            maker = max((m for m in makers.get(node, ()) if m < k), default=None)
            if maker in taken:
                continue
            if maker is not None and graph.calls[maker].view_of is not None and not graph.calls[maker].effect:
                taken.add(maker)
                todo.append(maker)
            else:
                inputs[node] = None
    outside = [n for k, c in enumerate(graph.calls) if k not in taken for n in c.operands]
    read = {*outside, *(o.node for o in graph.outputs)}
    mine = [o for k in sorted(region.calls) for o in graph.calls[k].outs if o is not None]
    outputs = tuple(dict.fromkeys(o for o in mine if o in read)) or tuple(mine[-1:])
    return _Part(tuple(sorted(taken)), tuple(inputs), outputs)


def _codes(graph: Graph, part: _Part, wanted: Sequence[Input]) -> str:
    """The argument that tells the judge which of the part's results are codes; nothing where none is."""
    alone = replace(graph, inputs=tuple(wanted), outputs=tuple(Output(n, None) for n in part.outputs))
    found = sorted(trial.codes(alone))
    return f", codes={found}" if found else ""


def script(found: Suspect, graph: Graph, part: _Part, wanted: Sequence[Input], saved: bool, has_exact: bool) -> str:
    """The text of the script. UnsupportedError where an argument has no text."""
    state = "could not be judged alone" if found.share is None else f"{found.share:.3g} times the error that is allowed"
    head = HEAD.format(
        name=found.name,
        state=state,
        torch=torch.__version__,
        sources=f"\nFrom {', '.join(found.sources)}." if found.sources else "",
        path="from pathlib import Path\n" if saved else "",
    )
    names: dict[Node, str] = {}
    for i in wanted:
        names[i.node] = _fresh(i.name or str(i.node.attr("name") or i.node.hint or "x"), names.values())
    lines = [f"def region({', '.join([*names.values(), 'to=lambda dtype: dtype'])}):"]
    for k in part.calls:
        call = graph.calls[k]
        lines.append(f"    v{k} = {_call(call, names)}")
        plain = _gives_one(call)
        for n, out in enumerate(call.outs):
            if out is not None:
                names[out] = f"v{k}" if plain else f"flat(v{k})[{n}]"
    lines.append(f"    return [{', '.join(names[o] for o in part.outputs)}]")
    lines += ["", "", "def inputs():"]
    if saved:
        lines.append(f'    return torch.load(Path(__file__).with_suffix(".pt"), map_location="{graph.device}")')
    else:
        lines.append("    torch.manual_seed(20)")
        lines += ["    return [", *(f"        {_made(i.node, i.layout, graph.device)}," for i in wanted), "    ]"]
    wide = (EXACT, NEARBY) if has_exact else ("exact = None", "nearby = None")
    return (
        head + "\n".join(lines) + "\n" + TAIL.format(exact=wide[0], nearby=wide[1], codes=_codes(graph, part, wanted))
    )


def _fresh(wish: str, taken: Any) -> str:
    """An identifier like `wish` that is not taken."""
    name = re.sub(r"\W+", "_", wish.rpartition(".")[2]).strip("_") or "x"
    name = name if name.isidentifier() else f"x_{name}"
    used, number, fresh = {*taken, *keyword.kwlist, "to", "torch", "flat", "region"}, 1, name
    while fresh in used or re.fullmatch(r"v\d+", fresh):
        number += 1
        fresh = f"{name}_{number}"
    return fresh


def _call(call: Call, names: Mapping[Node, str]) -> str:
    space = call.target.partition(".")[0]
    if space in ("interfuse", "higher_order", "operator", "builtins", "math"):
        raise UnsupportedError(f"{call.target} has no text of its own.")
    function = call.target if space == "torch" else f"torch.ops.{call.target}"
    given = [_argument(a, call, names) for a in call.args]
    given += [f"{name}={_argument(v, call, names)}" for name, v in call.kwargs]
    return f"{function}({', '.join(given)})"


def _argument(value: Any, call: Call, names: Mapping[Node, str]) -> str:
    if isinstance(value, Ref):
        return names[call.operands[value.k]]
    if isinstance(value, Literal):
        return _literal(value)
    if isinstance(value, tuple):
        kind = value[0].text if value and isinstance(value[0], Literal) and value[0].kind == "container" else ""
        if kind in ("dict", "slice"):
            raise UnsupportedError(f"an argument of {call.target} is a {kind}.")
        parts = [_argument(v, call, names) for v in (value[1:] if kind else value)]
        return f"({', '.join(parts)},)" if kind else f"[{', '.join(parts)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _literal(value: Literal) -> str:
    if value.kind == "dtype":
        wide = value.text in ("torch.float16", "torch.bfloat16", "torch.float32")
        return f"to({value.text})" if wide else value.text
    if value.kind == "device":
        return f'torch.device("{value.text}")'
    if value.kind in ("layout", "memory_format"):
        return value.text
    raise UnsupportedError(f"an argument is an object without text ({value.kind}).")


def _gives_one(call: Call) -> bool:
    """True where the call gives one tensor and not a list of them."""
    schema = getattr(resolve(call.target), "_schema", None)
    return schema is not None and len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"


def _made(node: Node, layout: Layout, device: str) -> str:
    """An expression for a made-up tensor: normal numbers, numbers around one for vectors, 0 or 1 for integers."""
    shape, strides, dtype = static(node.shape), static(layout.strides), to_torch(node.dtype)
    if shape is None or strides is None:
        raise UnsupportedError("its sizes change from call to call.")
    size = f"({''.join(f'{d}, ' for d in shape).strip()})"
    if not (dtype.is_floating_point or dtype.is_complex):
        text = f"torch.randint(0, 2, {size})"
    else:
        text = f"torch.randn({size})" if len(shape) > 1 else f"(0.5 + torch.rand({size}))"
    if dtype != torch.float32:
        text += f".to({dtype})"
    if device != "cpu":
        text += f'.to("{device}")'
    return text if layout.is_contiguous(node.shape) else f"laid({text}, {tuple(strides)})"
