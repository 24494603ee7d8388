"""Random fusable expression graphs. In: Hypothesis. Out: `regions()`: inputs and outputs that one kernel can
compute.

Every value is either full (rows x an extent x what lies inside, mostly nothing) or reduced over that extent, so that
all reductions of a region fit one kernel. Narrow floats are widened on reading and rounded after every operator, as
capture does it. Steps of value (comparisons, casts to bool) only see values that every implementation computes to the
same bits, so that a rounding never turns one over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F16, F32, I32, I64, DType
from interfuse.ir.node import Node, topological
from interfuse.ir.ops import MOVES

ROW_SHAPES = ((), (1,), (3,), (17,), (2, 3), (1, 5), (33,), (4, 1))
INNER_SHAPES = ((), (), (), (5,), (2, 17))
EXTENTS = (1, 3, 8, 17, 33, 64)
STORED = (F32, F32, F16, BF16, I64, I32, BOOL)
KINDS = ("random", "large", "tiny", "constant", "special")


@dataclass(frozen=True)
class _Value:
    """A full value as computed: its node, the type eager would keep it in, and whether its bits are beyond doubt."""

    node: Node
    stored: DType
    exact: bool


def _settled(node: Node, stored: DType, exact: bool) -> _Value:
    """The result of an operator: rounded where eager would have kept it in a narrow type."""
    return _Value(b.rounded(node, stored) if stored.is_narrow else node, stored, exact)


def _const(value: float, like: Node) -> Node:
    return b.broadcast(b.constant(value, like.dtype), like.shape)


def _positive(x: Node) -> Node:
    """Well away from zero: what square roots, logarithms and divisors take."""
    return b.apply("add", b.apply("abs", x), _const(0.5, x))


FLOAT_UNARY = {
    "neg": lambda x: b.apply("neg", x),
    "abs": lambda x: b.apply("abs", x),
    "tanh": lambda x: b.apply("tanh", x),
    "sigmoid": lambda x: b.apply("sigmoid", x),
    "erf": lambda x: b.apply("erf", x),
    "normal_cdf": lambda x: b.apply("normal_cdf", x),
    "exp": lambda x: b.apply("exp", b.apply("tanh", x)),
    "sqrt": lambda x: b.apply("sqrt", _positive(x)),
    "rsqrt": lambda x: b.apply("rsqrt", _positive(x)),
    "log": lambda x: b.apply("log", _positive(x)),
    "half": lambda x: b.apply("mul", x, _const(0.5, x)),
    "relu": lambda x: b.apply("maximum", x, _const(0.0, x)),
}
FLOAT_BINARY = {
    "add": lambda x, y: b.apply("add", x, y),
    "sub": lambda x, y: b.apply("sub", x, y),
    "mul": lambda x, y: b.apply("mul", b.apply("tanh", x), y),
    "div": lambda x, y: b.apply("div", x, _positive(y)),
    "maximum": lambda x, y: b.apply("maximum", x, y),
    "minimum": lambda x, y: b.apply("minimum", x, y),
}
EXACT_FLOAT = frozenset(("neg", "abs", "half", "relu", "maximum", "minimum"))
INT_BINARY, BOOL_BINARY = ("add", "sub", "mul", "maximum", "minimum", "and", "or", "xor"), ("and", "or", "xor")
PLACES = ("argmax", "argmin")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")


class _Builder:
    """Grows one region: `pool` holds the full values so far, `reduced` those over rows alone."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rows: tuple[int, ...] = draw(st.sampled_from(ROW_SHAPES))
        self.extent: int = draw(st.sampled_from(EXTENTS))
        self.inner: tuple[int, ...] = draw(st.sampled_from(INNER_SHAPES))
        self.shape = (*self.rows, self.extent, *self.inner)
        self.reverse: bool = draw(st.sampled_from((False, False, True)))
        self.inputs: list[Node] = []
        self.pool: list[_Value] = []
        self.reduced: list[_Value] = []
        self.scanned = False

    def pick(self, *kinds: str, exact: bool = False) -> _Value | None:
        """A full value whose type is of one of these kinds, late ones as likely as early ones; None where there is
        none.
        """
        fit = [v for v in self.pool if v.node.dtype.kind in kinds and (v.exact or not exact)]
        return self.draw(st.sampled_from(fit)) if fit else None

    def add_input(self) -> None:
        """One more input: full, permuted, in parts, one row, one column or a single number, broadcast to the full
        shape.
        """
        dtype = self.draw(st.sampled_from(STORED))
        form = self.draw(st.sampled_from(("full", "full", "permuted", "parts", "row", "column", "number")))
        if form == "parts":
            self.add_parts(dtype)
            return
        order = tuple(self.draw(st.permutations(range(len(self.shape))))) if form == "permuted" else ()
        shape = {
            "full": self.shape,
            "permuted": tuple(self.shape[order.index(k)] for k in range(len(order))),
            "row": (self.extent, *self.inner),
            "column": (*self.rows, 1, *self.inner),
            "number": (),
        }[form]
        x = b.placeholder(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(x)
        wide = b.cast(x, F32) if dtype.is_narrow else x
        placed = b.permute(wide, order) if order else b.broadcast(wide, self.shape)
        self.pool.append(_Value(placed, dtype, True))

    def add_parts(self, dtype: DType) -> None:
        """One input whose parts are used side by side: halves or every other element of a wider row."""
        step = self.draw(st.sampled_from((1, 2)))
        x = b.placeholder(f"x{len(self.inputs)}", dtype, (*self.rows, 2 * self.extent, *self.inner))
        self.inputs.append(x)
        wide = b.cast(x, F32) if dtype.is_narrow else x
        outer, inner = len(self.rows), len(self.inner)
        for start in (0, self.extent if step == 1 else 1):
            starts, steps = (*(0,) * outer, start, *(0,) * inner), (*(1,) * outer, step, *(1,) * inner)
            part = b.take_slice(wide, starts, self.shape, steps)
            self.pool.append(_Value(part, dtype, True))

    def joined(self, x: _Value, y: _Value) -> tuple[Node, Node, DType]:
        """Both operands in one computing type, and the type eager would keep the result in."""
        if x.node.dtype is y.node.dtype:
            return x.node, y.node, x.stored if x.stored is y.stored else x.node.dtype
        return b.cast(x.node, I64), b.cast(y.node, I64), I64

    def unary(self) -> None:
        if x := self.pick("float"):
            name = self.draw(st.sampled_from(sorted(FLOAT_UNARY)))
            self.pool.append(_settled(FLOAT_UNARY[name](x.node), x.stored, x.exact and name in EXACT_FLOAT))

    def binary(self) -> None:
        x, y = self.pick("float"), self.pick("float")
        if x and y:
            name = self.draw(st.sampled_from(sorted(FLOAT_BINARY)))
            left, right, stored = self.joined(x, y)
            exact = x.exact and y.exact and name in EXACT_FLOAT
            self.pool.append(_settled(FLOAT_BINARY[name](left, right), stored, exact))

    def integers(self) -> None:
        x, y = self.pick("int"), self.pick("int")
        if x and y:
            left, right, stored = self.joined(x, y)
            self.pool.append(_Value(b.apply(self.draw(st.sampled_from(INT_BINARY)), left, right), stored, True))

    def booleans(self) -> None:
        x, y = self.pick("bool"), self.pick("bool")
        if x and y:
            both = b.apply(self.draw(st.sampled_from(BOOL_BINARY)), x.node, y.node)
            self.pool.append(_Value(b.apply("not", both) if self.draw(st.booleans()) else both, BOOL, True))

    def compare(self) -> None:
        kind = self.draw(st.sampled_from(("float", "int")))
        x, y = self.pick(kind, exact=True), self.pick(kind, exact=True)
        if x and y:
            left, right, _ = self.joined(x, y)
            self.pool.append(_Value(b.apply(self.draw(st.sampled_from(COMPARE)), left, right), BOOL, True))

    def choose(self) -> None:
        test, x, y = self.pick("bool"), self.pick("float"), self.pick("float")
        if test and x and y:
            left, right, stored = self.joined(x, y)
            self.pool.append(_Value(b.apply("where", test.node, left, right), stored, x.exact and y.exact))

    def convert(self) -> None:
        x = self.pick("float", "int", "bool", exact=True)
        if x:
            # No floats to integers: out of range it means nothing, and truncation is a step.
            to = self.draw(st.sampled_from((F32, BOOL) if x.node.dtype.is_float else (F32, I64, BOOL)))
            self.pool.append(_Value(b.cast(x.node, to), to, True))

    def join(self) -> None:
        """Parts of two full values side by side along a dimension; or a part with a constant, or itself, around it."""
        x, y = self.pick("float", "int", "bool"), self.pick("float", "int", "bool")
        # What was scanned is there in its own order alone.
        sizes = [k for k, n in enumerate(self.shape) if n > 1 and not (self.scanned and k == len(self.rows))]
        if not x or not y or not sizes:
            return
        axis = self.draw(st.sampled_from(sizes))
        size = self.shape[axis]
        cut = self.draw(st.integers(1, size - 1))
        form = self.draw(st.sampled_from(("concat", "roll", "pad", "flip")))
        first, rest = _part(x.node, axis, 0, cut), _part(x.node, axis, cut, size)
        if form == "concat" and x.node.dtype is y.node.dtype and x.stored is y.stored:
            node, exact = b.concat([first, _part(y.node, axis, cut, size)], axis), x.exact and y.exact
        elif form == "pad":
            before = self.draw(st.integers(0, size - cut))
            lo, hi = ([n if k == axis else 0 for k in range(len(self.shape))] for n in (before, size - cut - before))
            node, exact = b.pad(first, tuple(lo), tuple(hi), self.draw(st.sampled_from((0, 1)))), x.exact
        elif form == "flip":
            node, exact = b.flip(x.node, (axis,)), x.exact
        else:
            node, exact = b.concat([rest, first], axis), x.exact
        self.pool.append(_Value(node, x.stored, exact))

    def reduce(self) -> None:
        """A reduction over the extent; its result joins the full values again, broadcast."""
        x = self.pick("float", "int", "bool")
        if not x:
            return
        last, node, stored = len(self.rows), x.node, x.stored
        if node.dtype is BOOL:
            out = b.reduce(self.draw(st.sampled_from(("any", "all"))), node, (last,), keepdims=True)
        elif node.dtype.kind == "int":
            op = self.draw(st.sampled_from(("sum", "max", "min", *PLACES * (not self.reverse))))
            node, stored = (b.cast(node, I64), I64) if op == "sum" else (node, stored)
            out = b.reduce(op, node, (last,), keepdims=True)
            stored = out.dtype if op in PLACES else stored
        else:
            places = PLACES if x.exact and not self.reverse else ()
            op = self.draw(st.sampled_from(("sum", "max", "min", "mean", "variance", *places)))
            correction = 0 if self.extent == 1 else self.draw(st.sampled_from((0, 1)))
            attrs = {"correction": correction} if op == "variance" else {}
            out = b.reduce(op, node, (last,), keepdims=True, **attrs)
            if op in PLACES:
                self.reduced.append(_Value(out, I64, True))
                self.pool.append(_Value(b.broadcast(out, self.shape), I64, True))
                return
            value = _settled(out, stored, x.exact and op in ("max", "min"))
            self.reduced.append(value)
            self.pool.append(_Value(b.broadcast(value.node, self.shape), stored, value.exact))
            return
        self.reduced.append(_Value(out, stored, True))
        self.pool.append(_Value(b.broadcast(out, self.shape), stored, True))

    def scan(self) -> None:
        """A scan over the extent; all of a region run one way."""
        x = self.pick("float", "int")
        if not x:
            return
        op = self.draw(st.sampled_from(("cumsum", "cumsum", "cummax", "cummin", "cumprod")))
        node, stored = x.node, x.stored
        if op in ("cumsum", "cumprod"):
            node = node if node.dtype.is_float else b.cast(node, I64)
            node = b.apply("tanh", node) if op == "cumprod" and node.dtype.is_float else node
            stored = stored if node.dtype is x.node.dtype else I64
        exact = x.exact and (not node.dtype.is_float or op in ("cummax", "cummin"))
        self.scanned = True
        self.pool.append(_settled(b.scan(op, node, len(self.rows), self.reverse), stored, exact))

    def gather(self) -> None:
        """Elements of one more input, at places that an integer value is bent to: one a row, or one everywhere."""
        x = self.pick("int")
        if not x:
            return
        size, dtype = self.draw(st.sampled_from((1, 3, 40))), self.draw(st.sampled_from(STORED))
        node = b.apply("maximum", b.apply("minimum", x.node, _const(size - 1, x.node)), _const(0, x.node))
        flat = self.draw(st.booleans())
        shape = (size,) if flat else (*self.rows, size, *self.inner)
        source = b.placeholder(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(source)
        if flat:
            picked = b.reshape(b.gather(source, b.reshape(node, (node.size,)), 0), self.shape)
        else:
            picked = b.gather(source, node, len(self.rows))
        self.pool.append(_Value(b.cast(picked, F32) if dtype.is_narrow else picked, dtype, x.exact))

    def output(self) -> Node:
        """A value as it is stored: full, or reduced with or without its dimension of one."""
        made = [
            v for v in self.pool if v.node.op not in ("input", "expand", "permute", "reshape", "slice", "gather")
        ] or self.pool
        value = self.draw(st.sampled_from(made + self.reduced))
        node = b.cast(value.node, value.stored)
        if value.node.shape != self.shape and self.draw(st.booleans()):
            node = b.reshape(node, (*self.rows, *self.inner))
        return _worked_on(value) if node.op in ("input", *MOVES) else node


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    """x from `start` up to `stop` along one axis."""
    starts, shape = [0] * len(x.shape), list(x.shape)
    starts[axis], shape[axis] = start, stop - start
    return b.take_slice(x, tuple(starts), tuple(shape))


def _worked_on(value: _Value) -> Node:
    """Something that takes a kernel to compute, where nothing has been done to an input yet."""
    x = value.node
    node = b.apply("not", x) if x.dtype is BOOL else b.apply("add", x, x)
    return b.cast(_settled(node, value.stored, True).node, value.stored)


STEPS = (
    "unary",
    "unary",
    "binary",
    "binary",
    "integers",
    "booleans",
    "compare",
    "choose",
    "convert",
    "join",
    "reduce",
    "reduce",
    "scan",
    "scan",
    "gather",
    "gather",
)


@st.composite
def regions(
    draw: st.DrawFn, max_inputs: int = 4, max_steps: int = 8, max_outputs: int = 3
) -> tuple[list[Node], list[Node]]:
    """(inputs, outputs): a random fusable region, every input used, every output distinct and none an input."""
    builder = _Builder(draw)
    for _ in range(draw(st.integers(1, max_inputs))):
        builder.add_input()
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=max_steps)):
        getattr(builder, step)()
    outputs = list(dict.fromkeys(builder.output() for _ in range(draw(st.integers(1, max_outputs)))))
    needed = set(topological(outputs))
    return [x for x in builder.inputs if x in needed], outputs


_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0])


def _floats(kind: str, dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(shape)
    if kind == "large":
        return x * (1e2 if dtype is F16 else 1e6)
    if kind == "tiny":
        return x * (1e-4 if dtype is F16 else 1e-18)
    if kind == "constant":
        return np.full(shape, 0.37)
    if kind == "special":
        return np.where(rng.random(shape) < 0.3, rng.choice(_SPECIAL, shape), x)
    return x


def arrays_for(inputs: Sequence[Node], kind: str = "random", seed: int = 0) -> dict[Node, np.ndarray]:
    """An array for each input, of its type and shape: `kind` random, large, tiny, constant or special (NaN, infinities,
    zeros).
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of data {kind!r}; the kinds are {', '.join(KINDS)}")
    rng, out = np.random.default_rng(seed), {}
    for x in inputs:
        shape = tuple(int(d) for d in x.shape)
        if x.dtype is BOOL:
            array = np.full(shape, True) if kind == "constant" else rng.random(shape) < 0.5
        elif x.dtype.is_float:
            array = _floats(kind, x.dtype, shape, rng)
        else:
            top = {"large": 2**30, "tiny": 2}.get(kind, 50)
            array = np.full(shape, 7) if kind == "constant" else rng.integers(-top, top, shape, endpoint=True)
        out[x] = np.asarray(array).astype(x.dtype.numpy)
    return out
