"""Counted traffic. In: hand-made calls and kernels. Out: the worked examples add up, and each counting rule holds."""

from __future__ import annotations

from interfuse.cost.traffic import call_bytes, kernel_bytes, moved_bytes
from interfuse.ir import build as b
from interfuse.ir.dtypes import F16, F32, I64, DType
from interfuse.ir.graph import Call
from interfuse.ir.index import Dim, const, sym
from interfuse.ir.layout import contiguous
from interfuse.ir.node import Node
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Param, Reduce, Role, Scope, Store, Value

MIB, MB = 2**20, 10**6


def call(target: str, operands: tuple[Node, ...], out: Node, **facts: object) -> Call:
    return Call(target, (), (), operands, (out,), (contiguous(out.shape),), **facts)  # type: ignore[arg-type]


def result(name: str, dtype: DType, shape: tuple[Dim, ...]) -> Node:
    return b.placeholder(name, dtype, shape)


def residual_layer_norm(rows: int, cols: int) -> Kernel:
    """y = layer_norm(x + r) * weight + bias: one row a program, held at once."""
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.TILE, 4096)
    at, both = row.symbol * cols + col.symbol, ("row", "col")
    big = [Param(n, F16, (rows, cols), (cols, 1), mode) for n, mode in (("x", "in"), ("r", "in"), ("y", "out"))]
    small = [Param(n, F16, (cols,), (1,)) for n in ("weight", "bias")]
    value = {n: Value(n, F32, both) for n in ("x", "r", "s", "centred", "y")}
    mean = Value("mean", F32, ("row",))
    weights = [Value(n, F32, ("col",)) for n in ("weight", "bias")]
    return Kernel(
        "add_layer_norm",
        (*big[:2], *small, big[2]),
        (row, col),
        (
            Loop(
                "col",
                (
                    Load(value["x"], "x", at),
                    Load(value["r"], "r", at),
                    Let(value["s"], "add", (value["x"], value["r"])),
                    Reduce(mean, "sum", value["s"], "col", Scope.LANE),
                ),
            ),
            Loop(
                "col",
                (
                    Let(value["centred"], "sub", (value["s"], mean)),
                    Load(weights[0], "weight", col.symbol),
                    Load(weights[1], "bias", col.symbol),
                    Store("y", at, value["centred"]),
                ),
            ),
        ),
        family="row",
    )


def test_residual_and_layer_norm_of_16_mib_goes_from_80_to_48_mib_and_parameters() -> None:
    shape = (1, 2048, 4096)
    x, r, s, y = (result(n, F16, shape) for n in "xrsy")
    weight, bias = (result(n, F16, (4096,)) for n in ("weight", "bias"))
    add = call("aten.add.Tensor", (x, r), s)
    norm = call("aten.layer_norm.default", (s, weight, bias), y)
    parameters = 16 * 1024
    assert call_bytes(add) == 48 * MIB
    assert call_bytes(norm) == 32 * MIB + parameters
    assert kernel_bytes(residual_layer_norm(2048, 4096)) == 48 * MIB + parameters


def test_bias_gelu_residual_on_8_mb_tensors_goes_from_56_to_24_mb_and_the_bias() -> None:
    rows, cols = 2000, 2000
    x, h, g, r, y = (result(n, F16, (rows, cols)) for n in "xhgry")
    bias = result("bias", F16, (cols,))
    calls = (
        call("aten.add.Tensor", (x, bias), h),
        call("aten.gelu.default", (h,), g),
        call("aten.add.Tensor", (g, r), y),
    )
    assert sum(map(call_bytes, calls)) == 56 * MB + 2 * cols
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.GRID, 1024)
    at = row.symbol * cols + col.symbol
    v = {n: Value(n, F32, ("row", "col")) for n in ("x", "bias", "r", "y")}
    big = [Param(n, F16, (rows, cols), (cols, 1), mode) for n, mode in (("x", "in"), ("r", "in"), ("y", "out"))]
    kernel = Kernel(
        "bias_gelu_residual",
        (big[0], Param("bias", F16, (cols,), (1,)), *big[1:]),
        (row, col),
        (Load(v["x"], "x", at), Load(v["bias"], "bias", col.symbol), Load(v["r"], "r", at), Store("y", at, v["y"])),
    )
    assert kernel_bytes(kernel) == 24 * MB + 2 * cols


def test_views_and_calls_that_launch_nothing_move_nothing() -> None:
    x = result("x", F32, (4, 8))
    assert call_bytes(call("aten.view.default", (x,), b.reshape(x, (32,)), view_of=0, launches=0)) == 0
    assert call_bytes(call("aten.empty.memory_format", (), x, launches=0)) == 0


def test_an_operand_given_twice_counts_once() -> None:
    x, y = result("x", F32, (4, 8)), result("y", F32, (4, 8))
    assert call_bytes(call("aten.mul.Tensor", (x, x), y)) == 2 * 4 * 32


def test_an_expanded_operand_counts_what_it_really_has() -> None:
    x, mask, y = result("x", F32, (16, 8)), result("m", F32, (8,)), result("y", F32, (16, 8))
    wide = b.broadcast(mask, (16, 8))
    assert call_bytes(call("aten.add.Tensor", (x, wide), y)) == 4 * (128 + 8 + 128)
    # Half of a value that repeats along the other axis, seen through a slice and a permutation.
    half = b.permute(b.take_slice(wide, (0, 0), (16, 4)), (1, 0))
    assert moved_bytes((half,), ()) == 4 * 4
    # A reshape across the repeated axis needs a copy, which is a buffer of its own.
    assert moved_bytes((b.reshape(wide, (128,)),), ()) == 4 * 128


def test_a_gather_reads_what_it_picks() -> None:
    table, ids, out = result("t", F32, (30000, 64)), result("i", I64, (2, 5)), result("o", F32, (2, 5, 64))
    assert call_bytes(call("aten.embedding.default", (table, ids), out)) == 4 * 640 + 8 * 10 + 4 * 640
    scores, labels, mean = result("s", F32, (32, 1000)), result("l", I64, (32,)), result("m", F32, ())
    assert call_bytes(call("aten.nll_loss_forward.default", (scores, labels), mean)) == 4 * 32 + 8 * 32 + 4


def test_sizes_of_dynamic_shapes_come_from_the_caller() -> None:
    n = sym("n", 2, 100)
    x, y = result("x", F32, (n, 8)), result("y", F32, (n, 8))
    relu = call("aten.relu.default", (x,), y)
    assert call_bytes(relu, {"n": 10}) == 2 * 4 * 80
    assert call_bytes(relu) == 2 * 4 * 16


def test_a_kernel_counts_what_it_reaches_and_no_scratch() -> None:
    i = Axis("i", 10, Role.GRID)
    params = (
        Param("x", F32, (100,), (1,)),
        Param("seed", I64, (1,), (1,)),
        Param("keep", F32, (50,), (1,), "scratch"),
        Param("y", F32, (10,), (1,), "out"),
    )
    v = Value("v", F32, ("i",))
    body = (
        Load(v, "x", i.symbol),
        Load(v, "x", i.symbol + 40),
        Load(v, "x", i.symbol),
        Load(v, "seed", const(0)),
        Store("keep", i.symbol, v),
        Load(v, "keep", i.symbol),
        Store("y", i.symbol, v),
    )
    assert kernel_bytes(Kernel("k", params, (i,), body)) == 4 * 20 + 8 + 4 * 10


def test_a_part_whose_launch_another_counts_moves_its_bytes() -> None:
    x, y = result("x", F32, (8,)), result("y", F32, (8,))
    assert call_bytes(call("aten.neg.default", (x,), y, launches=0, joined=True)) == 64
    assert call_bytes(call("aten.neg.default", (x,), y, launches=0)) == 0
