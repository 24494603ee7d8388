"""Hand-built Kernel values for the emitters' tests. In: rows, cols, element type, style. Out: kernels, their meanings.

Style "tile" is how GPU lowering writes a row (the column axis held at once); "serial" how CPU lowering does (a loop in
steps of 16, values that cross phases going through scratch). Each kernel has a reference in float64 under its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from interfuse.ir.dtypes import DType, compute_type
from interfuse.ir.index import Expr
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Param, Reduce, Role, Scope, Stmt, Store, Value

EPS = 1e-5
LANES = 16


@dataclass
class Body:
    """Writes statements of one element type: values are computed in f32 (or f64), loads of narrow types widen."""

    dtype: DType
    statements: list[Stmt] = field(default_factory=list)

    @property
    def wide(self) -> DType:
        return compute_type(self.dtype)

    def load(self, name: str, param: str, index: Expr, *axes: str) -> Value:
        out = Value(name, self.wide, axes)
        if self.dtype is self.wide:
            self.statements.append(Load(out, param, index))
        else:
            stored = Value(f"{name}_{self.dtype}", self.dtype, axes)
            self.statements += [Load(stored, param, index), Let(out, "cast", (stored,))]
        return out

    def scratch(self, name: str, param: str, index: Expr, *axes: str) -> Value:
        out = Value(name, self.wide, axes)
        self.statements.append(Load(out, param, index))
        return out

    def const(self, name: str, value: float) -> Value:
        out = Value(name, self.wide)
        self.statements.append(Let(out, "const", (), (("value", value),)))
        return out

    def let(self, name: str, op: str, *args: Value, note: str = "") -> Value:
        axes = tuple(dict.fromkeys(a for arg in args for a in arg.axes))
        out = Value(name, self.wide, axes)
        self.statements.append(Let(out, op, args, (), note))
        return out

    def reduce(self, name: str, op: str, arg: Value, axis: str, scope: Scope) -> Value:
        out = Value(name, self.wide, tuple(a for a in arg.axes if a != axis))
        self.statements.append(Reduce(out, op, arg, axis, scope))
        return out

    def store(self, param: str, index: Expr, arg: Value) -> None:
        self.statements.append(Store(param, index, arg))

    def phase(self, axis: str) -> Loop:
        """What was written since the last phase, as a loop over `axis`."""
        done, self.statements = tuple(self.statements), []
        return Loop(axis, done)


def _axes(rows: int, cols: int, style: str) -> tuple[Axis, Axis]:
    if style == "tile":
        return Axis("row", rows, Role.GRID), Axis("col", cols, Role.TILE, 1 << (cols - 1).bit_length())
    return Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, LANES)


def _matrix(name: str, rows: int, cols: int, dtype: DType, mode: str = "in") -> Param:
    return Param(name, dtype, (rows, cols), (cols, 1), mode)


def _scope(style: str) -> Scope:
    return Scope.LANE if style == "tile" else Scope.CARRY


def relu_half(rows: int, cols: int, dtype: DType, style: str) -> Kernel:
    """y = relu(x) * 0.5, flat over rows * cols elements."""
    n = rows * cols
    axis = Axis("i", n, Role.GRID, 1024 if style == "tile" else LANES)
    b = Body(dtype)
    x = b.load("x", "x", axis.symbol, "i")
    positive = b.let("positive", "maximum", x, b.const("zero", 0.0), note="relu")
    b.store("y", axis.symbol, b.let("y", "mul", positive, b.const("half", 0.5)))
    return Kernel(
        "relu_half",
        (Param("x", dtype, (n,), (1,)), Param("y", dtype, (n,), (1,), "out")),
        (axis,),
        tuple(b.statements),
        ("relu_half: y = relu(x) * 0.5", f"x, y: [{n}] {dtype}."),
    )


def bias_gelu_residual(rows: int, cols: int, dtype: DType, style: str) -> Kernel:
    """y = gelu(x + bias) + residual, gelu by erf."""
    row, col = _axes(rows, cols, style)
    at = row.symbol * cols + col.symbol
    b = Body(dtype)
    x = b.load("x", "x", at, "row", "col")
    bias = b.load("bias", "bias", col.symbol, "col")
    residual = b.load("residual", "residual", at, "row", "col")
    shifted = b.let("shifted", "add", x, bias)
    scaled = b.let("scaled", "mul", shifted, b.const("root_half", 0.7071067811865476))
    phi = b.let("phi", "add", b.let("erf_scaled", "erf", scaled), b.const("one", 1.0))
    gelu = b.let("gelu", "mul", b.let("half_shifted", "mul", shifted, b.const("half", 0.5)), phi, note="gelu")
    b.store("y", at, b.let("y", "add", gelu, residual))
    params = (
        _matrix("x", rows, cols, dtype),
        Param("bias", dtype, (cols,), (1,)),
        _matrix("residual", rows, cols, dtype),
        _matrix("y", rows, cols, dtype, "out"),
    )
    return Kernel(
        "bias_gelu_residual",
        params,
        (row, col),
        (b.phase("col"),),
        (
            "bias_gelu_residual: y = gelu(x + bias) + residual",
            f"x, residual, y: [{rows}, {cols}] {dtype}.  bias: [{cols}] {dtype}.",
        ),
    )


def softmax(rows: int, cols: int, dtype: DType, style: str) -> Kernel:
    """y = softmax(x) along each row."""
    row, col = _axes(rows, cols, style)
    at = row.symbol * cols + col.symbol
    b, scope, serial = Body(dtype), _scope(style), style == "serial"
    x = b.load("x", "x", at, "row", "col")
    largest = b.reduce("largest", "max", x, "col", scope)
    phases = [b.phase("col")]
    x = b.load("x", "x", at, "row", "col") if serial else x
    weight = b.let("weight", "exp", b.let("shifted", "sub", x, largest))
    if serial:
        b.store("weights", col.symbol, weight)
    total = b.reduce("total", "sum", weight, "col", scope)
    phases.append(b.phase("col"))
    weight = b.scratch("weight", "weights", col.symbol, "row", "col") if serial else weight
    b.store("y", at, b.let("y", "div", weight, total))
    phases.append(b.phase("col"))
    params = (
        _matrix("x", rows, cols, dtype),
        _matrix("y", rows, cols, dtype, "out"),
        *((Param("weights", b.wide, (cols,), (1,), "scratch"),) if serial else ()),
    )
    return Kernel(
        "softmax",
        params,
        (row, col),
        tuple(phases),
        ("softmax: y = softmax(x) along each row", f"x, y: [{rows}, {cols}] {dtype}."),
        family="row",
        reduction_order="lanes16x4" if serial else "tile",
    )


def add_layer_norm(rows: int, cols: int, dtype: DType, style: str) -> Kernel:
    """s = x + r and y = layer_norm(s) * weight + bias, both stored."""
    row, col = _axes(rows, cols, style)
    at = row.symbol * cols + col.symbol
    b, scope, serial = Body(dtype), _scope(style), style == "serial"
    s = b.let("s", "add", b.load("x", "x", at, "row", "col"), b.load("r", "r", at, "row", "col"))
    b.store("s", at, s)
    if serial:
        b.store("sums", col.symbol, s)
    total = b.reduce("total", "sum", s, "col", scope)
    phases: list[Stmt] = [b.phase("col")]
    mean = b.let("mean", "div", total, b.const("count", float(cols)))
    phases += b.statements
    b.statements = []
    s = b.scratch("s", "sums", col.symbol, "row", "col") if serial else s
    centred = b.let("centred", "sub", s, mean)
    if serial:
        b.store("sums", col.symbol, centred)
    squares = b.reduce("squares", "sum", b.let("square", "mul", centred, centred), "col", scope)
    phases.append(b.phase("col"))
    variance = b.let("variance", "div", squares, b.const("count_again", float(cols)))
    scale = b.let("scale", "rsqrt", b.let("above", "add", variance, b.const("eps", EPS)))
    phases += b.statements
    b.statements = []
    centred = b.scratch("centred", "sums", col.symbol, "row", "col") if serial else centred
    normal = b.let("normal", "mul", centred, scale)
    weighted = b.let("weighted", "mul", normal, b.load("weight", "weight", col.symbol, "col"))
    b.store("y", at, b.let("y", "add", weighted, b.load("bias", "bias", col.symbol, "col")))
    phases.append(b.phase("col"))
    params = (
        _matrix("x", rows, cols, dtype),
        _matrix("r", rows, cols, dtype),
        Param("weight", dtype, (cols,), (1,)),
        Param("bias", dtype, (cols,), (1,)),
        _matrix("s", rows, cols, dtype, "out"),
        _matrix("y", rows, cols, dtype, "out"),
        *((Param("sums", b.wide, (cols,), (1,), "scratch"),) if serial else ()),
    )
    return Kernel(
        "add_layer_norm",
        params,
        (row, col),
        tuple(phases),
        (
            "add_layer_norm: s = x + r and y = layer_norm(s) * weight + bias",
            f"x, r, s, y: [{rows}, {cols}] {dtype}.  weight, bias: [{cols}] {dtype}.",
        ),
        family="row",
        reduction_order="lanes16x4" if serial else "tile",
    )


BUILDERS: dict[str, Callable[[int, int, DType, str], Kernel]] = {
    f.__name__: f for f in (relu_half, bias_gelu_residual, softmax, add_layer_norm)
}
"""Every sample kernel's builder by name."""

Arrays = Sequence[np.ndarray]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _add_layer_norm(x: np.ndarray, r: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
    s = x + r
    c = s - s.mean(-1, keepdims=True)
    return s, c / np.sqrt((c * c).mean(-1, keepdims=True) + EPS) * weight + bias


REFERENCES: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "relu_half": lambda x: (np.maximum(x, 0) * 0.5,),
    "bias_gelu_residual": lambda x, bias, residual: (
        (x + bias) * 0.5 * (1 + _erf((x + bias) * math.sqrt(0.5))) + residual,
    ),
    "softmax": lambda x: (_softmax(x),),
    "add_layer_norm": _add_layer_norm,
}
"""What each kernel computes: float64 arrays of its inputs in, tuple of its outputs in parameter order out."""


def reference(name: str, inputs: Arrays) -> tuple[np.ndarray, ...]:
    """The outputs of the sample kernel `name` in float64, for inputs of any float type."""
    with np.errstate(all="ignore"):
        return REFERENCES[name](*(np.asarray(i).astype(np.float64) for i in inputs))
