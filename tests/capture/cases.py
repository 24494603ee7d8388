"""One list of calls for each lowered operator. In: a target's short name. Out: CASES, from it to arguments for a type.

A builder takes a torch.dtype and gives [(arguments, keyword arguments)]; the tests skip what eager does not take.
"""

from __future__ import annotations

import math

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int64, torch.int8, torch.uint8, torch.bool)
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    3.0,
    -3.0,
    6.0,
    0.001,
    20.0,
    -20.0,
    80.0,
    -80.0,
    math.inf,
    -math.inf,
    math.nan,
)


def special(dtype, shift=0):
    """Values where operators bend, in an order turned by `shift`."""
    values = SPECIAL[shift:] + SPECIAL[:shift]
    if dtype.is_floating_point:
        return torch.tensor(values, dtype=dtype)
    return torch.tensor([int(v) if math.isfinite(v) else 7 for v in values]).abs().to(dtype)


def plain(dtype, *shape, seed=0):
    """Random values of a shape: about [-3, 3], integers from 0 to 9."""
    g = torch.Generator().manual_seed(seed + len(shape))
    return (
        (torch.randn(shape, generator=g, dtype=torch.float64) * 1.5).to(dtype)
        if dtype.is_floating_point
        else torch.randint(0, 10, shape, generator=g).to(dtype)
    )


def ids(size, *shape, low=0, dtype=torch.int64):
    """A builder of indices of a shape, from `low` up to `size`."""
    return lambda _: torch.randint(low, size, shape, generator=torch.Generator().manual_seed(size)).to(dtype)


def unary(*rest, **named):
    def build(d):
        return [((x, *rest), named) for x in (special(d), plain(d, 2, 3, 4), plain(d), plain(d, 0, 3))]

    return build


def running(axes, **named):
    """Rows with an infinite element before others: eager's running mean is NaN then, and infinite where one ends it."""
    rows = torch.tensor([[math.inf, 1, 2], [3, -math.inf, 4], [math.nan, 1, 2], [1, 2, 4], [-0.0, -0.0, -0.0]])
    return lambda d: [((x, axes), named) for x in (rows.to(d), plain(d, 2, 3, 4))] if d.is_floating_point else []


def finite(*rest, **named):
    """Without infinities and NaN, where eager's own CPU kernels differ between their vector part and its end."""
    return lambda d: (
        [((x, *rest), named) for x in (special(d)[:15] * 0.9, plain(d, 2, 3))] if d.is_floating_point else []
    )


def gradient(*rest, **named):
    """A gradient and a finite operand."""
    return lambda d: (
        [((special(d)[:15], x, *rest), named) for x in (plain(d, 15), special(d, 2)[:13].repeat(2)[:15] * 0.5)]
        if d.is_floating_point
        else []
    )


def binary(*rest, **named):
    def build(d):
        pairs = (
            (special(d), special(d, 5)),
            (plain(d, 2, 3), plain(d, 3, seed=4)),
            (plain(d, 2, 1), plain(d, seed=9)),
            (plain(d, 0, 3), plain(d, 3)),
        )
        return [((a, b, *rest), named) for a, b in pairs]

    return build


def mixed(*rest, **named):
    """Tensors of two types: promotion."""

    def build(d):
        others = (torch.int32, torch.float32, torch.bool)
        return [((plain(d, 2, 3), plain(o, 3, seed=2), *rest), named) for o in others] + [
            ((plain(d, 3), plain(o, seed=2), *rest), named) for o in others
        ]

    return build


def scalar(*values, **named):
    return lambda d: [((x, v), named) for v in values for x in (special(d), plain(d, 2, 3))]


def all_of(*builders):
    return lambda d: [case for b in builders for case in b(d)]


def args(*makers, **named):
    """One case: each maker gives an argument from the type, or is the argument; lists may hold makers too."""

    def made(m, d):
        return [made(part, d) for part in m] if isinstance(m, list) else m(d) if callable(m) else m

    return lambda d: [(tuple(made(m, d) for m in makers), named)]


def of(*shape, seed=0):
    return lambda d: plain(d, *shape, seed=seed)


def several(*shapes):
    """A list of tensors, of special values first."""
    return lambda d: [
        special(d)[: math.prod(s)].reshape(s) if k == 0 else plain(d, *s, seed=k) for k, s in enumerate(shapes)
    ]


def labelled(backward, name):
    """Scores of five classes and labels, 2 of which are ignored, with and without weights, one by one, mean, sum."""
    shape = (3, 5, 2, 4) if "2d" in name else (6, 5)

    def build(d):
        if not d.is_floating_point:
            return []
        scores, label, weight = plain(d, *shape), ids(5, shape[0], *shape[2:])(d), plain(d, 5).abs()
        whole = [(scores, label)] if "2d" in name else [(scores, label), (scores[0], label[0])]
        found = []
        for x, t in whole:
            for rest in ((None, 0, 2), (None, 1, 2), (weight, 1, 2), (weight, 2, -100), (weight, 0, 2)):
                if backward:
                    like, total = getattr(torch.ops.aten, name.replace("backward", "forward"))(x, t, *rest)
                    found.append(((plain(d, *like.shape), x, t, *rest, total), {}))
                else:
                    found.append(((x, t, *rest), {}))
        return found

    return build


def reduced(*forms, **named):
    return lambda d: [((x, *f), named) for f in forms for x in (plain(d, 2, 3, 4), special(d).reshape(2, 3, 3))]


def truth(*shape):
    return lambda d: plain(torch.int64, *shape, seed=3) > 4


def dtyped(*rest, **named):
    return lambda d: [(rest, {**named, "dtype": d})]


UNARY = (
    "abs",
    "neg",
    "sign",
    "sgn",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "trunc",
    "round",
    "frac",
    "reciprocal",
    "isnan",
    "isinf",
    "logical_not",
    "bitwise_not",
    "relu",
    "silu",
    "mish",
    "hardsigmoid",
    "hardswish",
    "log_sigmoid_forward",
    "clone",
    "nan_to_num",
    "alias",
    "detach",
    "lift_fresh_copy",
    "t",
    "any",
    "all",
    "sum",
    "mean",
    "prod",
    "max",
    "min",
    "zeros_like",
    "ones_like",
    "zero",
    "new_zeros",
    "squeeze",
)
BINARY = (
    "atan2",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and.Tensor",
    "bitwise_or.Tensor",
    "bitwise_xor.Tensor",
    "pow.Tensor_Tensor",
    "xlogy.Tensor",
    "silu_backward",
    "sigmoid_backward",
    "tanh_backward",
    "clamp_min.Tensor",
    "clamp_max.Tensor",
    "remainder.Tensor",
    "fmod.Tensor",
    "floor_divide",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
)
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")

CASES = {
    **{name: unary() for name in UNARY},
    "t": args(of(2, 3)),
    "new_zeros": unary([2, 3]),
    "mse_loss": all_of(binary(), binary(0), binary(2)),
    "smooth_l1_loss": all_of(binary(), binary(0, 0.5), binary(2, 0.0)),
    "huber_loss": all_of(binary(), binary(0, 0.5)),
    **{name: all_of(binary(), mixed()) for name in BINARY if name not in ("mse_loss", "smooth_l1_loss", "huber_loss")},
    **{f"{name}.Tensor": all_of(binary(), mixed()) for name in COMPARE},
    **{f"{name}.Scalar": scalar(0.1, 1, True, -2.5) for name in COMPARE},
    "add.Tensor": all_of(binary(), binary(alpha=2), mixed(), scalar(0.1, 2, True)),
    "add.Scalar": scalar(0.1, 2),
    "sub.Tensor": all_of(binary(), binary(alpha=2), mixed(), scalar(0.1, 2)),
    "sub.Scalar": scalar(0.1, 2),
    "rsub.Tensor": binary(),
    "rsub.Scalar": scalar(0.1, 2),
    "mul.Tensor": all_of(binary(), mixed(), scalar(0.1, 2, True)),
    "mul.Scalar": scalar(0.1, 2),
    "div.Tensor": all_of(binary(), mixed(), scalar(0.1, 3)),
    "div.Scalar": scalar(0.1, 3),
    "div.Tensor_mode": all_of(binary(rounding_mode="floor"), binary(rounding_mode="trunc"), binary(rounding_mode=None)),
    "div.Scalar_mode": all_of(scalar(3, 0.7, rounding_mode="floor"), scalar(3, rounding_mode="trunc")),
    "remainder.Scalar": scalar(3, 0.7),
    "fmod.Scalar": scalar(3, 0.7),
    "pow.Tensor_Scalar": all_of(
        scalar(0, 1, 2, 3, -1, -2, 2.5, 5),
        finite(0.5),
        lambda d: [((plain(d, 2, 3).abs() + 1, -0.5), {})] if d.is_floating_point else [],
    ),
    "pow.Scalar": lambda d: [((2.5, special(d)), {}), ((2, plain(d, 3)), {})],
    **{
        f"bitwise_{n}.{k}": (scalar(1, 6) if k == "Scalar" else lambda d: [((6, plain(d, 3)), {})])
        for n in ("and", "or", "xor")
        for k in ("Scalar", "Scalar_Tensor")
    },
    **{
        f"{n}.{k}": scalar(1, 3, 100)
        for n, k in (
            ("bitwise_left_shift", "Tensor_Scalar"),
            ("bitwise_right_shift", "Tensor_Scalar"),
            ("__lshift__", "Scalar"),
            ("__rshift__", "Scalar"),
        )
    },
    "clamp": all_of(unary(-0.7, 0.3), unary(None, 2), unary(1), unary(2, -1)),
    "clamp.Tensor": all_of(binary(), args(of(2, 3), None, of(3, seed=3))),
    "clamp_min": scalar(0.3, 1),
    "clamp_max": scalar(0.3, 1),
    "hardtanh": all_of(unary(), unary(-2, 3)),
    "where.self": all_of(
        args(truth(2, 3), of(2, 3), of(3, seed=2)),
        args(truth(3), of(2, 3), of(seed=2)),
        lambda d: [((plain(torch.bool, 3), plain(d, 3), plain(torch.float32, seed=1)), {})],
    ),
    "masked_fill.Scalar": all_of(
        args(of(2, 3), truth(3), 0.1),
        args(of(2, 3), truth(2, 1), 2),
        lambda d: [((plain(d, 3), plain(torch.bool, 3), -math.inf), {})],
    ),
    "masked_fill.Tensor": args(of(2, 3), truth(3), of()),
    "lerp.Scalar": all_of(binary(0.3), binary(0.8)),
    "lerp.Tensor": all_of(args(of(2, 3), of(3, seed=2), of(2, 3, seed=5)), args(of(3), of(3, seed=2), of(seed=5))),
    "addcmul": all_of(
        args(of(2, 3), of(3, seed=1), of(2, 3, seed=2)), args(of(3), of(3, seed=1), of(2, 3, seed=2), value=2)
    ),
    "addcdiv": all_of(
        args(of(2, 3), of(3, seed=1), of(2, 3, seed=2)), args(of(3), of(3, seed=1), of(2, 3, seed=2), value=0.5)
    ),
    "xlogy.Scalar_Other": scalar(0.5, 0),
    "xlogy.Scalar_Self": lambda d: [((2, special(d)), {}), ((0, special(d)), {})],
    "nan_to_num": all_of(unary(), unary(0.1, 5.0, -5.0)),
    "clone": all_of(unary(), unary(memory_format=torch.contiguous_format)),
    "_to_copy": lambda d: (
        [((plain(d, 2, 3),), {"dtype": o}) for o in (*FLOATS, torch.float8_e5m2, torch.int64, torch.int8, torch.bool)]
        + [((special(d),), {"dtype": o}) for o in FLOATS]
    ),
    "prims.convert_element_type": lambda d: [((plain(d, 2, 3), o), {}) for o in (*FLOATS, torch.int64)],
    "leaky_relu": all_of(unary(), unary(0.3)),
    "_prelu_kernel": binary(),
    "elu": all_of(unary(), unary(1.6, 1.05, 0.7)),
    "gelu": all_of(finite(), finite(approximate="tanh")),
    "softplus": all_of(unary(), unary(2, 5)),
    "hardshrink": all_of(unary(), unary(0.1)),
    "softshrink": all_of(unary(), unary(0.1)),
    "threshold": all_of(unary(0.1, 20.3), unary(1, 2)),
    "glu": args(of(2, 6), -1),
    "hardsigmoid_backward": gradient(),
    "hardswish_backward": gradient(),
    "leaky_relu_backward": binary(0.3, False),
    "elu_backward": lambda d: [((plain(d, 3), 1.6, 1.05, 0.7, r, plain(d, 3, seed=2)), {}) for r in (True, False)],
    "gelu_backward": all_of(binary(), binary(approximate="tanh")),
    "threshold_backward": all_of(binary(0), binary(0.1)),
    "hardtanh_backward": gradient(-0.7, 1.3),
    "softplus_backward": all_of(binary(1, 20), binary(2.0, 5.0)),
    "native_dropout_backward": args(of(2, 3), truth(2, 3), 1.25),
    "log_sigmoid_backward": lambda d: (
        [((plain(d, 3), special(d)[:3], torch.exp(-special(d)[:3].abs())), {})] if d.is_floating_point else []
    ),
    "mse_loss_backward": all_of(
        args(of(), of(2, 3, seed=1), of(2, 3, seed=2), 1), args(of(2, 3), of(2, 3, seed=1), of(2, 3, seed=2), 0)
    ),
    "binary_cross_entropy_with_logits": all_of(
        binary(), binary(None, None, 0), args(of(2, 3), of(2, 3, seed=2), of(3), of(3, seed=4), 2)
    ),
    **{name: labelled(False, name) for name in ("nll_loss_forward", "nll_loss2d_forward")},
    **{name: labelled(True, name) for name in ("nll_loss_backward", "nll_loss2d_backward")},
    # Movement and constants.
    "view": all_of(args(of(2, 3, 4), [6, -1]), args(of(2, 3), [2, 3]), args(of(), [1, 1])),
    "_unsafe_view": args(of(2, 3, 4), [6, 4]),
    "_reshape_alias": args(of(2, 6), [3, 4], [4, 1]),
    "squeeze.dim": args(of(2, 1, 3), 1),
    "squeeze.dims": args(of(2, 1, 1), [1, 2]),
    "squeeze": args(of(1, 2, 1)),
    "unsqueeze": all_of(args(of(2, 3), 1), args(of(), 0), args(of(2), -1)),
    "expand": all_of(args(of(2, 1), [3, 2, 4]), args(of(), [2]), args(of(2, 3), [-1, 3])),
    "permute": args(of(2, 3, 4), [2, 0, -2]),
    "transpose.int": all_of(args(of(2, 3, 4), 0, -1), args(of(2, 1, 4), 0, 1), args(of(), 0, -1)),
    "slice.Tensor": all_of(
        args(of(8, 3), 0, 1, 7, 2),
        args(of(8, 3), 1, -2, 9223372036854775807),
        args(of(4), 0, 3, 2),
        args(of(4), 0, -9, None),
    ),
    "select.int": all_of(args(of(4, 3), 0, -1), args(of(4, 3), 1, 2)),
    "unbind.int": args(of(3, 2), -1),
    "split.Tensor": args(of(7, 2), 3),
    "split_with_sizes": args(of(7, 2), [3, 0, 4]),
    "unsafe_split.Tensor": args(of(7, 2), 3, 0),
    "unsafe_split_with_sizes": args(of(7, 2), [3, 4]),
    "cat": all_of(
        args(several((2, 3), (2, 1), (2, 4)), -1),
        args(several((3, 2), (1, 2)), 0),
        args(several((2, 3), (0,), (2, 0), (2, 2)), 1),
        args(several((0,), (0,))),
        args(several((0, 3), (0, 3))),
        args(several((5,))),
        lambda d: [
            (([special(d)[:4], plain(e, 3)],), {}) for e in (torch.float16, torch.int64, torch.bool, torch.float64)
        ],
        lambda d: [(([plain(d, 4, 3).t(), plain(d, 6, 4)[::2]],), {})],
    ),
    "stack": all_of(*(args(several((2, 3), (2, 3), (2, 3)), dim) for dim in (0, 1, 2, -1, -3)), args(several((), ()))),
    "constant_pad_nd": all_of(
        args(of(3, 4), [1, 2, 0, 1], 2.5),
        args(of(3, 4), [1, -2], 3),
        args(of(3, 4), [-1, 0, -2, 1]),
        args(of(3, 4), [0, 0, 0, 0], 1),
        args(of(0, 4), [1, 1, 2, 0], 1),
        args(of(5), [2, 3], 0.1),
        args(of(5), [1, 1], -math.inf),
        args(of(5), [1, 1], True),
        args(of(2, 3, 4), [-2, 0, 1, 1, 0, 1], 1),
    ),
    "reflection_pad1d": all_of(args(of(2, 3, 7), [2, 6]), args(of(3, 7), [0, 1]), args(of(3, 7), [0, 0])),
    "reflection_pad2d": all_of(args(of(2, 3, 4, 5), [1, 2, 3, 0]), args(of(3, 4, 5), [4, 4, 3, 3])),
    "reflection_pad3d": args(of(1, 2, 3, 4, 5), [1, 2, 0, 1, 2, 1]),
    "replication_pad1d": all_of(args(of(2, 3, 7), [2, 9]), args(of(3, 1), [3, 1])),
    "replication_pad2d": args(of(2, 3, 4, 5), [1, 2, 3, 0]),
    "replication_pad3d": args(of(1, 2, 3, 4, 5), [1, 2, 0, 1, 2, 1]),
    "flip": all_of(*(args(of(2, 3, 4), dims) for dims in ([0], [1, -1], [0, 1, 2], [])), args(of(0, 3), [0, 1])),
    "rot90": all_of(*(args(of(2, 3, 4), k, dims) for k in (0, 1, 2, 3, -1) for dims in ([0, 1], [2, 0]))),
    "roll": all_of(
        args(of(3, 5), [2]),
        args(of(3, 5), [-8]),
        args(of(3, 5), [1, -2], [0, 1]),
        args(of(3, 5), [7, 1], [1, 1]),
        args(of(3, 5), [0], [-1]),
        args(of(0, 5), [1], [0]),
        args(of(), [1]),
    ),
    "repeat": all_of(
        *(args(of(2, 3), times) for times in ([2, 3], [1, 1], [4, 1, 2], [1, 0])), args(of(), [3]), args(of(), [])
    ),
    "slice_scatter": all_of(
        args(of(4, 6), of(4, 2, seed=4), 1, 3, 5),
        args(of(4, 6), of(2, 6, seed=4), 0, -2),
        args(of(4, 6), of(4, 6, seed=4), 0),
        args(of(4, 6), of(0, 6), 0, 2, 1),
        args(of(4, 6), of(4, 3, seed=4), 1, 0, 6, 2),
    ),
    "select_scatter": all_of(args(of(4, 6), of(4, seed=4), 1, -1), args(of(4, 6), of(6, seed=4), 0, 0)),
    "slice_backward": all_of(
        args(of(4, 2), [4, 6], 1, 3, 5, 1),
        args(of(2, 6), [4, 6], 0, -2, 9, 1),
        args(of(0, 6), [4, 6], 0, 3, 3, 1),
        args(of(4, 3), [4, 6], 1, 0, 6, 2),
    ),
    "select_backward": all_of(args(of(4), [4, 6], 1, -1), args(of(6), [4, 6], 0, 0), args(of(), [3], 0, 1)),
    "copy": all_of(args(of(2, 3), of(3, seed=4)), lambda d: [((plain(d, 2, 3), special(torch.float32)[:3]), {})]),
    "full": dtyped([2, 3], 3),
    "full_like": all_of(unary(2), unary(1)),
    "new_full": unary([2], 3),
    "fill.Scalar": unary(3),
    "scalar_tensor": dtyped(3),
    "zeros": dtyped([2, 3]),
    "ones": dtyped([]),
    "new_ones": unary([2]),
    "arange": dtyped(5),
    "arange.start": dtyped(2, 7),
    "arange.start_step": all_of(dtyped(1, 7, 2), dtyped(0.5, 3.0, 0.75)),
    "prims.iota": lambda d: [
        ((5,), {"start": 1, "step": 2, "dtype": d, "device": torch.device("cpu"), "requires_grad": False})
    ],
    "tril": all_of(args(of(4, 5)), args(of(2, 4, 3), -1)),
    "triu": all_of(args(of(4, 5), 1), args(of(2, 3, 3))),
    # Indirect loads.
    "embedding": all_of(
        args(of(5, 3), ids(5, 2, 4)),
        args(of(5, 3), ids(5)),
        args(of(1, 3), ids(1, 2), 0),
        args(of(5, 3), ids(5, 0)),
        args(of(5, 3), ids(5, 7, dtype=torch.int32), -1, True),
    ),
    "index_select": all_of(
        args(of(2, 5, 3), 1, ids(5, 4)), args(of(4, 2), -2, ids(4, 1, dtype=torch.int32)), args(of(), 0, ids(1))
    ),
    "gather": all_of(
        args(of(2, 5, 3), 1, ids(5, 2, 4, 3)),
        args(of(4, 5), -1, ids(5, 3, 2)),
        args(of(4), 0, ids(4)),
        args(of(), 0, ids(1)),
        args(of(), 0, ids(1, 1)),
    ),
    "take": all_of(args(of(2, 5, 3), ids(30, 2, 4, low=-30)), args(of(), ids(1))),
    "index.Tensor": all_of(
        args(of(5, 3), [ids(5, 4, low=-5)]),
        args(of(2, 5, 3), [None, ids(5, 2, 2)]),
        args(of(4, 5, 3), [ids(4, 2, 1, low=-4), ids(5, 3)]),
        args(of(2, 4, 5, 3), [None, ids(4, 6), ids(5, 6, low=-5, dtype=torch.int32)]),
        args(of(4, 5, 3), [ids(4, 2), None, ids(3, 2)]),
        args(of(4, 5, 3), [ids(4, 2), ids(5, 1), ids(3)]),
        args(of(5, 3), [ids(5, 0)]),
    ),
    "_unsafe_index.Tensor": all_of(
        args(of(5, 3), [ids(5, 4)]), args(of(2, 3, 4, 5), [None, None, ids(4, 8, 1), ids(5, 10)])
    ),
    # Reductions and scans.
    "sum.dim_IntList": all_of(reduced(([1],), ([0, -1], True), ([],), (None,)), args(of(), [0]), args(of(0, 3), [0])),
    "mean.dim": reduced(([1],), ([0, -1], True)),
    "prod.dim_int": reduced((1,), (-1, True)),
    "sum": all_of(unary(), lambda d: [((plain(d, 3),), {"dtype": torch.float32})]),
    "amax": reduced(([1],), ([-1, 0], True), ([],)),
    "amin": reduced(([1],), ([-1, 0], True)),
    "max": args(of(2, 3)),
    "min": args(of(2, 3)),
    "any.dim": reduced((1,), (-1, True)),
    "all.dim": reduced((1,), (-1, True)),
    "any.dims": reduced(([0, 1],), ([],)),
    "all.dims": reduced(([0, 1],)),
    "argmax": all_of(reduced((1,), (None,), (-1, True)), args(of(), 0)),
    "argmin": reduced((1,), (None,)),
    "max.dim": reduced((1,), (-1, True)),
    "min.dim": reduced((1,), (-1, True)),
    **{
        f"{n}.correction": all_of(reduced(([1],), ([0, 2],)), reduced(([-1],), correction=0, keepdim=True))
        for n in ("var", "std")
    },
    **{
        f"{n}.correction": all_of(running([1]), running([-1], correction=0, keepdim=True))
        for n in ("var_mean", "std_mean")
    },
    "logsumexp": reduced(([1],), ([-1, 0], True)),
    "linalg_vector_norm": reduced((), (2, [1]), (1, [-1], True), (math.inf, [0]), (-math.inf, [1])),
    "norm.Scalar": reduced((2,), (1,)),
    "norm.ScalarOpt_dim": reduced((2, [1]), (None, [1], True)),
    "norm.ScalarOpt_dim_dtype": args(of(2, 3), 2, [1], False, dtype=torch.float64),
    "cummax": all_of(reduced((1,), (-1,)), args(of(), 0)),
    "cummin": reduced((1,), (-1,)),
    "cumsum": all_of(reduced((1,), (-1,)), args(of(), 0)),
    "cumprod": reduced((1,)),
    "count_nonzero": reduced(()),
    # Norms and linear layers.
    "native_layer_norm": all_of(
        args(of(2, 3, 8), [8], of(8), of(8, seed=3), 1e-5),
        args(of(2, 3, 4), [3, 4], None, None, 1e-6),
        args(of(2, 8), [8], of(8), None, 1e-5),
    ),
    "_softmax": all_of(reduced((1, False), (-1, False)), args(of(), 0, False)),
    "_safe_softmax": lambda d: [((torch.full((2, 3), -math.inf).to(d), -1), {}), ((plain(d, 2, 3), 1), {})],
    "_log_softmax": reduced((1, False), (-1, False)),
    "_softmax_backward_data": lambda d: (
        [((plain(d, 2, 3), torch.softmax(plain(d, 2, 3, seed=1), 1), 1, d), {})] if d.is_floating_point else []
    ),
    "_log_softmax_backward_data": lambda d: (
        [((plain(d, 2, 3), torch.log_softmax(plain(d, 2, 3, seed=1), 1), 1, d), {})] if d.is_floating_point else []
    ),
    "_native_batch_norm_legit_no_training": all_of(
        args(of(2, 3, 4), of(3), of(3, seed=2), of(3, seed=5), lambda d: plain(d, 3).abs(), 0.1, 1e-5),
        args(of(2, 3), None, None, of(3, seed=5), lambda d: plain(d, 3).abs(), 0.1, 1e-5),
    ),
    "_native_batch_norm_legit_functional": all_of(
        args(of(2, 3, 4), of(3), of(3, seed=2), of(3, seed=5), of(3, seed=6), True, 0.1, 1e-5),
        args(of(4, 3), None, None, of(3, seed=5), of(3, seed=6), True, 0.3, 1e-5),
    ),
    "native_batch_norm_backward": args(
        of(2, 3, 4), of(2, 3, 4, seed=1), of(3), of(3), of(3), of(3, seed=2), of(3, seed=3), True, 1e-5, [True] * 3
    ),
    "native_group_norm": all_of(
        args(of(2, 4, 3), of(4), of(4, seed=2), 2, 4, 3, 2, 1e-5), args(of(2, 4, 3), None, None, 2, 4, 3, 4, 1e-5)
    ),
    "linear": all_of(args(of(2, 3, 4), of(5, 4), of(5)), args(of(3, 4), of(5, 4))),
    "mm": args(of(3, 4), of(4, 5)),
    "bmm": all_of(
        args(of(3, 1, 4), of(3, 4, 5)),
        args(of(3, 2, 4), of(3, 4, 1)),
        args(of(2, 1, 4), of(2, 4, 1)),
        args(of(2, 3, 1), of(2, 1, 4)),
    ),
    "addmm": args(of(5), of(3, 4), of(4, 5)),
}
LATER = {"native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"}
"""Targets with a test of their own below."""
ROUGH = {
    "native_layer_norm",
    "native_group_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional",
    "native_batch_norm_backward",
    "binary_cross_entropy_with_logits",
    "cumprod",
    "linalg_vector_norm",
}
SINGLE = {"hardsigmoid_backward"}
"""Targets whose f64 kernel holds a constant in f32."""
"""Targets whose CPU kernels round halves more often than once, or sum them in halves: checked in f32 and f64 only."""
