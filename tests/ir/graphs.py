"""Hand-written graphs for the IR's own tests. In: nothing. Out: a graph of each sort that the verifier and printer
meet.
"""

from __future__ import annotations

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, F32, I64
from interfuse.ir.graph import Call, Graph, Input, Literal, Output, Ref
from interfuse.ir.index import sym
from interfuse.ir.layout import Layout, contiguous
from interfuse.ir.node import Node, make

S = sym("s0", 2, 512)


def residual_norm() -> Graph:
    """Residual add in bf16, then a row's mean, as capture would give it, with a dynamic number of rows."""
    x, y = (b.placeholder(n, BF16, (S, 8)) for n in "xy")
    total = b.apply("add", b.cast(x, F32), b.cast(y, F32), source="model.py:3", hint="residual")
    stored = b.cast(b.rounded(total, BF16), BF16)
    mean = b.cast(b.rounded(b.reduce("mean", b.cast(stored, F32), (1,), keepdims=True), BF16), BF16)
    calls = (
        Call("aten.add.Tensor", (Ref(0), Ref(1)), (), (x, y), (stored,), (contiguous((S, 8)),), source="model.py:3"),
        Call(
            "aten.mean.dim",
            (Ref(0), (-1,), True),
            (("dtype", Literal("dtype", "torch.bfloat16")),),
            (stored,),
            (mean,),
            (contiguous((S, 1)),),
            source="model.py:4",
        ),
        Call(
            "aten.view.default",
            (Ref(0), (Ref(1),)),
            (),
            (mean, mean),
            (b.reshape(mean, (S,)),),
            (contiguous((S,)),),
            launches=0,
            view_of=0,
        ),
    )
    inputs = Input(x, Layout((1, S))), Input(y, contiguous((S, 8)), "parameter", "block.y")
    outputs = (Output(stored, contiguous((S, 8))), Output(b.reshape(mean, (S,)), Layout((1,))), Output(None, value=3))
    return Graph(inputs, calls, outputs, name="residual_norm", symbols=("s0",))


def library_node(token: int, *inputs: Node, shape: tuple = (4,), index: int = 0) -> Node:
    """One result of a call that only runs as itself."""
    return make("library", inputs, F32, shape, token=token, target="aten.sort.default", index=index)


def opaque_calls() -> Graph:
    """A library call with two results, one of them no tensor, and a random one; an item; work on top."""
    x = b.placeholder("x", F32, (4,))
    shifted = b.apply("add", x, b.broadcast(b.constant(1.5, F32), (4,)))
    ordered, noise = library_node(0, shifted), library_node(1)
    number = make("item", (b.reduce("sum", ordered, (0,)),), I64, (), token=2)
    doubled = b.apply("add", ordered, noise)
    calls = (
        Call(
            "aten.sort.default",
            (Ref(0),),
            (),
            (shifted,),
            (ordered, None),
            (Layout((1,)), None),
            2,
            reason="sort has no family",
            source="model.py:7",
        ),
        Call(
            "aten.randn.default",
            ((4,),),
            (("generator", Literal("opaque", "0")),),
            (),
            (noise,),
            (Layout((1,)),),
            effect="random",
            reason="random numbers come from PyTorch's stream",
        ),
        Call(
            "aten.item.default",
            (Ref(0),),
            (),
            (b.reduce("sum", ordered, (0,)),),
            (number,),
            (Layout(()),),
            0,
            reason="it gives a number to Python",
        ),
        Call("aten.add.Tensor", (Ref(0), Ref(1)), (), (ordered, noise), (doubled,), (Layout((1,)),)),
    )
    outputs = Output(doubled, Layout((1,))), Output(number, Layout(()))
    return Graph((Input(x, Layout((1,), 2)),), calls, outputs, name="opaque", opaque=(object(),))
