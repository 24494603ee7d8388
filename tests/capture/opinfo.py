"""PyTorch's own operators, captured and judged. In: an operator, its arguments. Out: eager's results and ours."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from interfuse.capture import template
from interfuse.capture.fx import import_graph
from interfuse.ir.evaluate import evaluate
from interfuse.ir.graph import Call, Graph
from interfuse.ir.node import Node
from interfuse.ir.ops import MOVES
from interfuse.ir.verify import verify


def to_numpy(t: torch.Tensor) -> np.ndarray:
    """The tensor's values in the NumPy type of its element type."""
    t = t.detach().resolve_conj().resolve_neg()
    narrow = {
        torch.bfloat16: ml_dtypes.bfloat16,
        torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
        torch.float8_e5m2: ml_dtypes.float8_e5m2,
    }
    if t.dtype in narrow:
        return t.float().numpy().astype(narrow[t.dtype])
    return t.numpy()


def trace(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The ATen graph of function(*args, **kwargs) with every tensor in them an input, and those tensors."""
    leaves, spec = tree_flatten((args, kwargs))
    tensors = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        full = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        a, k = tree_unflatten(full, spec)
        return function(*a, **k)

    return make_fx(call, tracing_mode="fake")(*tensors), tensors


def trace_call(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph of one operator called by itself, composite or not, written by hand with fake metadata."""
    leaves, spec = tree_flatten((args, kwargs))
    tensors = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
    graph = torch.fx.Graph()
    mode = next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), None) or FakeTensorMode()
    nodes = []
    for k, t in enumerate(tensors):
        nodes.append(graph.placeholder(f"x{k}"))
        nodes[-1].meta["val"] = t if isinstance(t, FakeTensor) else mode.from_tensor(t)

    def filled(values: list[Any]) -> Any:
        rest = iter(values)
        return tree_unflatten([next(rest) if isinstance(x, torch.Tensor) else x for x in leaves], spec)

    fakes = [n.meta["val"] for n in nodes]
    with mode:
        a, k = filled(fakes)
        val = target(*a, **k)
    call = graph.call_function(target, *filled(nodes))
    call.meta["val"] = val
    results = [call]
    if isinstance(val, (tuple, list)):
        results = [graph.call_function(operator.getitem, (call, i)) for i in range(len(val))]
        for r, v in zip(results, val, strict=True):
            r.meta["val"] = v
    graph.output(tuple(results))
    return torch.fx.GraphModule(torch.nn.Module(), graph), tensors


def capture(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, list[torch.Tensor]]:
    """The Graph of function(*args, **kwargs), and its inputs."""
    gm, tensors = trace(function, args, kwargs)
    return import_graph(gm), tensors


def root(node: Node) -> Node:
    """The node behind movements."""
    return root(node.inputs[0]) if node.op in MOVES else node


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def run_lowered(graph: Graph, inputs: list[torch.Tensor]) -> Iterator[tuple[Call, list[np.ndarray], list[np.ndarray]]]:
    """For each lowered call: (call, eager's results, what its nodes mean), each from eager's operands of that very
    call.
    """
    env: dict[Node, Any] = {given.node: value for given, value in zip(graph.inputs, inputs, strict=True)}
    for call in graph.calls:
        operands = [env[o] for o in call.operands]
        with contextlib.suppress(RuntimeError):
            operands = [o.clone() if call.effect else o for o in operands]
        results = template.flatten(
            template.resolve(call.target)(
                *template.decode(call.args, operands, graph.opaque),
                **template.decode_kwargs(call.kwargs, operands, graph.opaque),
            )
        )
        if not call.reason:
            own = set(call.outs) - set(map(root, call.operands))
            known = {n: to_numpy(_tensor(v)) for n, v in env.items() if n not in own}
            yield call, [to_numpy(r) for r in results], evaluate([o for o in call.outs if o is not None], known)
        for out, value in zip(call.outs, results, strict=True):
            if out is not None:
                env[out] = value


def tolerance(dtype: np.dtype) -> tuple[float, float]:
    """(relative, absolute) difference allowed between two ways of computing in one type."""
    name = str(dtype)
    return {
        "float64": (1e-9, 1e-11),
        "float32": (2e-5, 2e-5),
        "float16": (2e-3, 2e-3),
        "bfloat16": (1.6e-2, 1.6e-2),
    }.get(name, (0.0, 0.0))


def check(graph: Graph, inputs: list[torch.Tensor]) -> tuple[set[str], dict[str, str]]:
    """Compare every lowered call; the targets that were lowered, and of the others the reasons."""
    verify(graph)
    lowered: set[str] = set()
    for call, wanted, found in run_lowered(graph, inputs):
        lowered.add(call.target)
        for w, f in zip(wanted, found, strict=True):
            assert w.dtype == f.dtype and w.shape == f.shape, (call.target, w.dtype, w.shape, f.dtype, f.shape)
            rtol, atol = tolerance(w.dtype)
            if w.dtype.kind not in "biu":
                w, f = w.astype(np.float64), f.astype(np.float64)
            np.testing.assert_allclose(
                f, w, rtol=rtol, atol=atol, equal_nan=True, err_msg=f"{call.target} {call.args} {call.kwargs}"
            )
    assert all(call.reason for call in graph.calls if call.target not in lowered)
    return lowered, {call.target: call.reason for call in graph.calls if call.reason}
