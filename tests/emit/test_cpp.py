"""The C++ emitter. In: sample kernels, awkward shapes, corner cases. Out: values, guards, bits and texts."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from interfuse.base.errors import UnsupportedError
from interfuse.base.knobs import current, override
from interfuse.build import compilers
from interfuse.build.cache import Cache, open_cache
from interfuse.build.cpp import build
from interfuse.capture.torch_types import to_torch
from interfuse.emit import cpp_prelude
from interfuse.emit.cpp import emit
from interfuse.ir import build as b
from interfuse.ir.dtypes import BF16, BOOL, F8E4M3, F16, F32, F64, I32, I64, U8, DType
from interfuse.ir.index import sym
from interfuse.ir.layout import contiguous
from interfuse.lower.families import lower
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Param, Reduce, Role, Scope, Store, Value
from interfuse.lower.target import CPU
from interfuse.lower.work import Work
from interfuse.plan.plan import KernelStep
from interfuse.run.cpu import load
from tests import golden, joins, symbolic
from tests.kernels import BUILDERS, reference
from tests.plan.made import planned

LEVELS = [level for level in ("avx512", "avx2", "portable") if compilers.supports(level)]
GUARD = 64
KINDS = ("random", "large", "tiny", "constant", "special")


@lru_cache(maxsize=1)
def _cache() -> Cache:
    return open_cache(current())


def launch(
    kernel: Kernel,
    inputs: list[torch.Tensor],
    level: str = LEVELS[0],
    sizes: tuple[int, ...] = (),
    streaming: frozenset[str] = frozenset(),
) -> list[torch.Tensor]:
    """The kernel's outputs, flat. They start poisoned, and the elements around them must stay so."""
    with override(vector=level) as knobs:
        (artifact,) = build([(kernel.name, emit(kernel, level, streaming))], knobs, _cache())
    values = dict(zip(kernel.symbols, sizes, strict=True))
    outs, room = [], []
    for p in kernel.params:
        if p.mode == "out":
            shape = [d if isinstance(d, int) else values[d.name] for d in p.shape]
            count = int(np.prod(shape))
            whole = torch.full((count + 2 * GUARD,), 77, dtype=to_torch(p.dtype))
            room.append(whole)
            outs.append(whole[GUARD : GUARD + count])
    load(artifact, kernel)([*inputs, *outs], sizes)
    for whole in room:
        poison = torch.full((), 77, dtype=whole.dtype)
        assert (whole[:GUARD] == poison).all() and (whole[-GUARD:] == poison).all(), "wrote beyond an output"
    return outs


def example(kernel: Kernel, kind: str) -> list[torch.Tensor]:
    """Inputs of a sample kernel."""
    rng, made = np.random.default_rng(3), []
    for p in kernel.params:
        if p.mode != "in":
            continue
        x = rng.normal(size=p.shape)
        if kind == "constant":
            x = np.full(p.shape, 0.1)
        elif kind == "special":
            odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, -1e-45, 3e15, 0.0])
            x = np.where(rng.random(p.shape) < 0.02, odd[rng.integers(0, odd.size, p.shape)], x)
        x = x * {"large": 1e4, "tiny": 1e-30}.get(kind, 1.0)
        made.append(torch.from_numpy(x).to(to_torch(p.dtype)))
    return made


def compare(kernel: Kernel, kind: str, level: str) -> None:
    """Outputs against float64 within a few ulp of the row's largest value, with NaN and infinities in their places."""
    inputs = example(kernel, kind)
    outs = launch(kernel, inputs, level)
    wide = [x.double().numpy() for x in inputs]
    params = [q for q in kernel.params if q.mode == "out"]
    for got, exact, p in zip(outs, reference(kernel.name, wide), params, strict=True):
        with np.errstate(all="ignore"):
            nearest = torch.from_numpy(exact).to(to_torch(p.dtype)).double().numpy().ravel()
        got64 = got.double().numpy()
        finite = np.isfinite(nearest)
        assert np.array_equal(np.isfinite(got64), finite)
        assert np.array_equal(np.isnan(got64), np.isnan(nearest))
        usable = finite
        if usable.any():
            scale = np.abs(nearest[usable]).max() + np.finfo(np.float32).tiny
            limit = max(p.dtype.ulp, 8 * F32.ulp) if p.dtype is not F64 else 1e-13
            assert np.abs(got64[usable] - nearest[usable]).max() <= limit * scale


@pytest.mark.parametrize(
    ("level", "cols"),
    [
        *((LEVELS[0], n) for n in (1, 15, 16, 17, 100, 1030, 4095)),
        *((level, n) for level in LEVELS[1:] for n in (3, 75)),
    ],
)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_samples_at_odd_widths(name: str, cols: int, level: str) -> None:
    compare(BUILDERS[name](3, cols, F32, "serial"), "random", level)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_samples_on_every_kind_of_input(name: str, kind: str) -> None:
    compare(BUILDERS[name](7, 100, F32, "serial"), kind, LEVELS[0])


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_samples_in_other_types(name: str, dtype: DType) -> None:
    compare(BUILDERS[name](5, 77, dtype, "serial"), "random", LEVELS[0])


def test_rows_of_minus_infinity_give_nan_as_eager_does() -> None:
    x = torch.randn(4, 40)
    x[1] = -torch.inf
    x[2, 3] = -torch.inf
    (got,) = launch(BUILDERS["softmax"](4, 40, F32, "serial"), [x])
    expected = torch.softmax(x, 1)
    assert got.view(4, 40)[1].isnan().all()
    assert torch.equal(got.view(4, 40).isnan(), expected.isnan())
    assert got.view(4, 40)[2, 3] == 0


def test_constant_rows_sum_without_drift() -> None:
    cols = 40000
    total = Value("total", F32, ("row",))
    row, col = Axis("row", 2, Role.GRID), Axis("col", cols, Role.SERIAL, 16)
    x = Value("x", F32, ("row", "col"))
    params = Param("x", F32, (2, cols), (cols, 1)), Param("y", F32, (2,), (1,), "out")
    kernel = Kernel(
        "row_sum",
        params,
        (row, col),
        (
            Loop("col", (Load(x, "x", row.symbol * cols + col.symbol), Reduce(total, "sum", x, "col", Scope.CARRY))),
            Store("y", row.symbol, total),
        ),
    )
    (got,) = launch(kernel, [torch.full((2, cols), 0.1)])
    assert abs(got[0].double().item() / (float(np.float32(0.1)) * cols) - 1) < 3e-7


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    kernel = BUILDERS["add_layer_norm"](97, 500, F32, "serial")
    inputs, before = example(kernel, "random"), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(launch(kernel, inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_streamed_outputs_are_the_same(dtype: DType) -> None:
    kernel = BUILDERS["bias_gelu_residual"](300, 130, dtype, "serial")
    inputs = example(kernel, "random")
    (plain,) = launch(kernel, inputs)
    (streamed,) = launch(kernel, inputs, streaming=frozenset(("y",)))
    assert torch.equal(plain, streamed)
    assert "finish_streams();" in emit(kernel, LEVELS[0], frozenset(("y",)))


def test_symbolic_sizes_come_as_arguments() -> None:
    rows, cols = sym("rows", 1), sym("cols", 1)
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.GRID, 16)
    at = row.symbol * cols + col.symbol
    x, y = Value("x", F32, ("row", "col")), Value("y", F32, ("row", "col"))
    params = Param("x", F32, (rows, cols), (cols, 1)), Param("y", F32, (rows, cols), (cols, 1), "out")
    kernel = Kernel(
        "negate",
        params,
        (row, col),
        (Load(x, "x", at), Let(y, "neg", (x,)), Store("y", at, y)),
        symbols=("rows", "cols"),
    )
    for shape in ((1, 1), (3, 37), (200, 700)):
        data = torch.randn(shape)
        (got,) = launch(kernel, [data], sizes=shape)
        assert torch.equal(got.view(shape), -data)


def _column_kernel(op: str, rows: int, cols: int, dtype: DType, out: DType) -> Kernel:
    """y[col] = op of x[row, col] over rows: vectors along columns, carried through a loop over rows."""
    col, row = Axis("col", cols, Role.GRID, 16), Axis("row", rows, Role.SERIAL, 1)
    x, y = Value("x", dtype, ("col", "row")), Value("y", out, ("col",))
    return Kernel(
        f"column_{op}",
        (Param("x", dtype, (rows, cols), (cols, 1)), Param("y", out, (cols,), (1,), "out")),
        (col, row),
        (
            Loop("row", (Load(x, "x", row.symbol * cols + col.symbol), Reduce(y, op, x, "row", Scope.CARRY))),
            Store("y", col.symbol, y),
        ),
    )


def _row_kernel(op: str, rows: int, cols: int, dtype: DType, out: DType) -> Kernel:
    """y[row] = op of x[row, col] over columns."""
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, 16)
    x, y = Value("x", dtype, ("row", "col")), Value("y", out, ("row",))
    return Kernel(
        f"row_{op}",
        (Param("x", dtype, (rows, cols), (cols, 1)), Param("y", out, (rows,), (1,), "out")),
        (row, col),
        (
            Loop("col", (Load(x, "x", row.symbol * cols + col.symbol), Reduce(y, op, x, "col", Scope.CARRY))),
            Store("y", row.symbol, y),
        ),
    )


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", [F32, F64, I64, I32, BOOL], ids=str)
def test_reductions_of_every_kind(op: str, dtype: DType) -> None:
    if (op in ("any", "all")) != (dtype is BOOL):
        pytest.skip("any and all are of booleans, the others are not")
    x = torch.randn(70, 83, dtype=torch.float64)
    x = (
        (x > 1.9 if op == "any" else x > -2.2)
        if dtype is BOOL
        else (x * (2 if dtype.is_float else 3)).to(to_torch(dtype))
    )
    for make, axis in ((_column_kernel, 0), (_row_kernel, 1)):
        (got,) = launch(make(op, 70, 83, dtype, dtype), [x])
        expected = getattr(torch, {"max": "amax", "min": "amin"}.get(op, op))(x, axis)
        if dtype in (F32, F64) and op in ("sum", "prod"):
            torch.testing.assert_close(got, expected)
        else:
            assert torch.equal(got, expected.to(got.dtype))


@pytest.mark.parametrize("dtype", (F32, F16, F64, I64, I32, U8), ids=str)
@pytest.mark.parametrize("op", ("argmax", "argmin"))
def test_places_are_those_of_the_first(op: str, dtype: DType) -> None:
    x = torch.randint(0, 9, (70, 83)).to(to_torch(dtype))
    if dtype.is_float:
        x[1, 7], x[1, 60], x[2, 20], x[3] = torch.nan, torch.nan, torch.inf, -torch.inf
    for make, axis in ((_column_kernel, 0), (_row_kernel, 1)):
        (got,) = launch(make(op, 70, 83, dtype, I64), [x])
        assert torch.equal(got, getattr(torch, op)(x, axis))
        (got,) = launch(make(op, 70, 83, dtype, I64), [torch.zeros_like(x)])
        assert not got.any(), "of equal elements the first"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", (64, 150, 3))
def test_columns_side_by_side(cols: int, level: str) -> None:
    x, scale = b.placeholder("x", F32, (2, 90, cols)), b.placeholder("scale", F32, (2, 1, 1))
    y = b.apply("mul", x, b.expand(scale, x.shape))
    top = b.apply("sub", y, b.expand(b.reduce("max", y, (1,), keepdims=True), y.shape))
    e = b.apply("exp", top)
    softmax = b.apply("div", e, b.expand(b.reduce("sum", e, (1,), keepdims=True), e.shape))
    outputs = (
        softmax,
        b.reduce("variance", y, (1,), correction=1),
        b.reduce("argmin", y, (1,)),
        b.scan("cumsum", y, 1),
        b.reduce("sum", y, (1,)),
    )
    layouts = {n: contiguous(n.shape) for n in (x, scale, *outputs)}
    target = replace(CPU, programs=0)
    kernel, reads = lower("columns", Work(outputs, frozenset((x, scale)), layouts), target)
    source = emit(kernel, level)
    assert all(word in source for word in ("LongSum", "Moments", "ExpSum"))
    assert cols == 3 or "strips<" in source
    given = {x: torch.randn(2, 90, cols), scale: torch.rand(2, 1, 1)}
    got = launch(kernel, [given[n] for n in reads], level=level)
    z = given[x] * given[scale]
    for mine, wanted in zip(got, (z.softmax(1), z.var(1), z.argmin(1), z.cumsum(1), z.sum(1)), strict=True):
        torch.testing.assert_close(mine.view(wanted.shape), wanted)


def _scan_kernel(op: str, axis: int, shape: tuple[int, int], dtype: DType) -> Kernel:
    """y = scan of x along the rows (1) or down the columns (0) of x[shape]."""
    x = b.placeholder("x", dtype, shape)
    y = b.scan(op, x, axis)
    layouts = {n: contiguous(shape) for n in (x, y)}
    return lower(f"scan_{op}", Work((y,), frozenset((x,)), layouts), CPU)[0]


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("dtype", (F32, F64, I64, I32), ids=str)
@pytest.mark.parametrize("op", ("cumsum", "cumprod", "cummax", "cummin"))
def test_scans_of_every_kind(op: str, dtype: DType, axis: int) -> None:
    x = torch.randint(-2, 3, (21, 83)).to(to_torch(dtype))
    if dtype.is_float:
        x = torch.randn(21, 83, dtype=to_torch(dtype))
        x[1, 7], x[2, 20], x[3, 5:], x[4] = torch.nan, torch.inf, -torch.inf, -0.0
    expected = getattr(torch, op)(x, axis)
    expected = (expected.values if op in ("cummax", "cummin") else expected).to(to_torch(dtype))
    for level in LEVELS:
        (got,) = launch(_scan_kernel(op, axis, (21, 83), dtype), [x], level=level)
        torch.testing.assert_close(got.view(21, 83), expected, equal_nan=True)


@pytest.mark.parametrize("axis", (0, 1))
def test_long_running_sums_are_carried_in_double(axis: int) -> None:
    shape = (3, 50000) if axis else (50000, 20)
    x = torch.rand(shape)
    (got,) = launch(_scan_kernel("cumsum", axis, shape, F32), [x])
    exact, eager = x.double().cumsum(axis), x.cumsum(axis)
    worst = (got.view(shape) - exact).abs().max()
    assert worst <= 2 * (eager - exact).abs().max() + 1e-7 * exact.max()


def test_running_products_pass_no_limit_that_doubles_keep() -> None:
    x = torch.full((2, 64), 1e5)
    x[:, 1::2] = 1e-5
    x[:, 0] = 1e-30
    (got,) = launch(_scan_kernel("cumprod", 1, (2, 64), F32), [x])
    torch.testing.assert_close(got.view(2, 64), x.cumprod(1))


def test_extremes_keep_nan_and_infinities() -> None:
    x = torch.randn(5, 50)
    x[1, 7], x[2, 20], x[3] = torch.nan, torch.inf, -torch.inf
    for op, eager in (("max", torch.amax), ("min", torch.amin)):
        (got,) = launch(_row_kernel(op, 5, 50, F32, F32), [x])
        assert torch.equal(got.nan_to_num(9e9), eager(x, 1).nan_to_num(9e9))


def test_long_columns_are_carried_in_double() -> None:
    kernel = _column_kernel("sum", 5000, 20, F32, F32)
    assert "LongSum" in emit(kernel, LEVELS[0])
    (got,) = launch(kernel, [torch.full((5000, 20), 0.1)])
    assert (got.double() / (float(np.float32(0.1)) * 5000) - 1).abs().max() < 2e-7


def _transposed(rows: int, cols: int) -> Kernel:
    """y[row, 2 col] = x[col, row] + (3 row + col // 4): read with a stride, written lane by lane."""
    row, col = Axis("row", rows, Role.GRID), Axis("col", cols, Role.SERIAL, 16)
    x, i, y = (Value(n, t, ("row", "col")) for n, t in (("x", F32), ("i", I64), ("y", F32)))
    place = Value("place", F32, ("row", "col"))
    return Kernel(
        "strided",
        (Param("x", F32, (cols, rows), (rows, 1)), Param("y", F32, (rows, 2 * cols), (2 * cols, 1), "out")),
        (row, col),
        (
            Loop(
                "col",
                (
                    Load(x, "x", col.symbol * rows + row.symbol),
                    Let(i, "index", (), (("expr", row.symbol * 3 + col.symbol // 4),)),
                    Let(place, "cast", (i,)),
                    Let(y, "add", (x, place)),
                    Store("y", row.symbol * (2 * cols) + col.symbol * 2, y),
                ),
            ),
        ),
    )


def test_strided_reads_writes_and_index_values() -> None:
    x = torch.randn(21, 5)
    (got,) = launch(_transposed(5, 21), [x])
    got = got.view(5, 42)
    expected = x.t() + (torch.arange(5)[:, None] * 3 + torch.arange(21) // 4)
    assert torch.equal(got[:, ::2], expected)
    assert (got[:, 1::2] == 77).all()


def test_masks_mix_with_scalars_and_wide_types() -> None:
    n = 50
    i = Axis("i", n, Role.GRID, 16)
    names = (("x", F32), ("m", BOOL), ("w", I64), ("big", BOOL), ("both", BOOL), ("y", F32), ("z", I64), ("n", BOOL))
    x, m, w, big, both, y, z, none = (Value(name, t, ("i",)) for name, t in names)
    zero, one, yes = Value("zero", F32), Value("one", I64), Value("yes", BOOL)
    body = (
        Load(x, "x", i.symbol),
        Load(m, "m", i.symbol),
        Load(w, "w", i.symbol),
        Let(zero, "const", (), (("value", -0.0),)),
        Let(one, "const", (), (("value", 1),)),
        Let(yes, "const", (), (("value", True),)),
        Let(big, "gt", (w, one)),
        Let(both, "and", (big, m)),
        Let(none, "xor", (both, yes)),
        Let(y, "where", (both, x, zero)),
        Let(z, "where", (none, one, w)),
        Store("y", i.symbol, y),
        Store("z", i.symbol, z),
        Store("n", i.symbol, none),
    )
    params = (
        *(Param(name, t, (n,), (1,)) for name, t in names[:3]),
        *(Param(name, t, (n,), (1,), "out") for name, t in (("y", F32), ("z", I64), ("n", BOOL))),
    )
    data = torch.randn(n), torch.rand(n) > 0.5, torch.randint(-3, 4, (n,))
    got = launch(Kernel("masks", params, (i,), body), [*data])
    mask = (data[2] > 1) & data[1]
    assert torch.equal(got[0], torch.where(mask, data[0], -0.0)) and torch.signbit(got[0][~mask]).all()
    assert torch.equal(got[1], torch.where(mask, data[2], 1))
    assert torch.equal(got[2], ~mask)


@pytest.mark.parametrize("change", ["tile", "two lane axes", "fp8", "crossing", "scratch", "negative division"])
def test_what_has_no_form_is_refused_with_a_reason(change: str) -> None:
    kernel = BUILDERS["softmax"](2, 20, F32, "serial")
    x = replace(kernel.params[0], dtype=F8E4M3)
    i = Axis("i", 9, Role.GRID, 16)
    v = Value("v", F32, ("i",))
    cases = {
        "tile": (BUILDERS["softmax"](2, 20, F32, "tile"), "no tile axes"),
        "two lane axes": (replace(kernel, axes=(replace(kernel.axes[0], block=16), kernel.axes[1])), "one lane axis"),
        "fp8": (replace(kernel, params=(x, *kernel.params[1:])), "f8e4m3"),
        "crossing": (
            replace(kernel, body=(*kernel.body[:2], Loop("col", kernel.body[2].body[1:]))),
            "scratch has to keep it",
        ),
        "scratch": (BUILDERS["softmax"](2, 1 << 20, F32, "serial"), "more than"),
        "negative division": (
            Kernel(
                "d",
                (Param("x", F32, (9,), (1,)), Param("y", F32, (9,), (1,), "out")),
                (i,),
                (Load(v, "x", (i.symbol * -1 + 3) // 2 + 6), Store("y", i.symbol, v)),
            ),
            "negative",
        ),
    }
    broken, reason = cases[change]
    with pytest.raises(UnsupportedError, match=reason):
        emit(broken, "portable")


def test_names_that_mean_something_in_cpp_are_changed() -> None:
    i = Axis("for", 20, Role.GRID, 16)
    double, load_ = Value("double", F32, ("for",)), Value("load", F32, ("for",))
    kernel = Kernel(
        "named",
        (Param("class", F32, (20,), (1,)), Param("store", F32, (20,), (1,), "out")),
        (i,),
        (Load(double, "class", i.symbol), Let(load_, "neg", (double,)), Store("store", i.symbol, load_)),
    )
    x = torch.randn(20)
    (got,) = launch(kernel, [x])
    assert torch.equal(got, -x)


@pytest.mark.parametrize("name", ["bias_gelu_residual", "softmax", "add_layer_norm"])
def test_text(name: str) -> None:
    golden.check(f"emit/cpp/{name}", emit(BUILDERS[name](2048, 4096, F32, "serial"), "avx512"))


@pytest.mark.parametrize(("level", "lanes"), [(level, n) for level in LEVELS for n in (16, 8, 4)])
def test_the_whole_prelude_stands_alone_without_warnings(level: str, lanes: int, tmp_path: Path) -> None:
    source = tmp_path / "prelude.cpp"
    source.write_text(f"#define LANES {lanes}\nnamespace {{\n{cpp_prelude.all_text()}\n}}\n")
    _strict(source, level)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_a_generated_file_compiles_alone_without_warnings(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.cpp"
    source.write_text(emit(BUILDERS[name](20, 50, BF16, "serial"), LEVELS[0], frozenset(("y",))))
    assert "#include" not in source.read_text()
    _strict(source, LEVELS[0])


def _strict(source: Path, level: str) -> None:
    with override(vector=level) as knobs:
        compiler = compilers.find(knobs)
        library = source.with_suffix(".so")
        command = [compiler.path, *compilers.flags(knobs), "-Wall", "-Werror", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_second_phase_asks_for_the_next_row() -> None:
    code = emit(BUILDERS["softmax"](2048, 4096, BF16, "serial"), "portable").split('extern "C"')[1]
    phases = code.split("_vectors(")[1:]
    assert ["prefetch(" in phase for phase in phases] == [False, True, False]
    assert "prefetch(x_ptr + (row + 1) * " in code
    assert "prefetch(" not in emit(BUILDERS["softmax"](6, 64, BF16, "serial"), "portable")  # lies in caches
    assert "prefetch(" not in emit(BUILDERS["bias_gelu_residual"](2048, 4096, F32, "serial"), "portable")


def test_one_phase_asks_far_ahead_where_memory_would_wait_for_arithmetic() -> None:
    def asks(name: str, dtype: DType, streamed: bool = True, rows: int = 2048) -> int:
        kernel = BUILDERS[name](rows, 4096, dtype, "serial")
        outs = frozenset(p.name for p in kernel.params if p.mode == "out") if streamed else frozenset()
        code = emit(kernel, "avx512", outs).split('extern "C"')[1]
        assert code.count("prefetch<2>(") == code.count("prefetch("), "each line in two steps"
        return code.count("prefetch(")

    assert asks("bias_gelu_residual", F32) == 2, "the bias stays in the caches"
    assert asks("bias_gelu_residual", F32, streamed=False) == 0
    assert asks("bias_gelu_residual", F32, rows=16) == 0
    assert asks("bias_gelu_residual", BF16) == 0, "a vector is half as many bytes"


def test_a_scan_asks_far_ahead() -> None:
    for dtype, asks in ((torch.float32, 1), (torch.bfloat16, 0)):
        made, _ = planned(lambda x: x.cumsum(-1), torch.zeros(2048, 4096, dtype=dtype))
        step = next(s for c in made.regions[0].candidates for s in c.steps if isinstance(s, KernelStep))
        code = emit(step.kernel, "avx512", frozenset(p.name for p in step.kernel.params if p.mode == "out"))
        assert code.split('extern "C"')[1].count("prefetch(") == asks


def test_a_reduction_in_one_phase_asks_far_ahead() -> None:
    for rows, asks in ((2048, 1), (16, 0)):
        made, _ = planned(lambda x: x.amax(-1), torch.zeros(rows, 4096))
        step = next(s for c in made.regions[0].candidates for s in c.steps if isinstance(s, KernelStep))
        code = emit(step.kernel, "avx512").split('extern "C"')[1]
        assert (code.count("prefetch("), code.count("prefetch<2>(")) == (asks, 0), "nothing else waits for the caches"


def test_rows_whose_lanes_are_read_one_by_one_are_not_written_out_many_times() -> None:
    """A compiler takes seconds for several rows of loops over lanes, or of functions that are long themselves."""
    target = replace(CPU, programs=2)
    kernel, _ = symbolic.lowered(joins.kept_and_multiplied(33), target)
    assert "each_row(" in emit(kernel, "avx512")
    x = b.placeholder("x", F32, (2, 16, 33))
    plain, _ = symbolic.lowered(([x], [b.reduce("sum", x, (1,))]), target)
    assert "few_rows(" in emit(plain, "avx512")
    dear, _ = symbolic.lowered(([x], [b.reduce("sum", b.apply("pow", b.apply("sin", x), x), (1,))]), target)
    assert "each_row(" in emit(dear, "avx512")
