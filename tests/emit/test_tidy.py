"""Folding of conversions. In: kernels with casts. Out: the statements that are left."""

from __future__ import annotations

from interfuse.emit.tidy import tidy
from interfuse.ir.dtypes import BOOL, F16, F32, DType
from interfuse.lower.kernel import Axis, Kernel, Let, Load, Loop, Param, Role, Stmt, Store, Value, walk

AXIS = Axis("i", 64, Role.GRID, 64)
AT = AXIS.symbol


def value(name: str, dtype: DType = F32) -> Value:
    return Value(name, dtype, ("i",))


def tidied(*body: Stmt, out: DType = F16) -> list[Stmt]:
    params = (Param("x", F16, (64,), (1,)), Param("y", out, (64,), (1,), "out"))
    return walk(tidy(Kernel("k", params, (AXIS,), (Loop("i", body),))).body)


def test_a_cast_joins_its_load_and_the_shorter_name_stays() -> None:
    x, wide, y = value("x", F16), value("x_wide"), value("y")
    done = tidied(Load(x, "x", AT), Let(wide, "cast", (x,)), Let(y, "mul", (wide, wide)), Store("y", AT, y))
    assert done == [Load(value("x"), "x", AT), Let(y, "mul", (value("x"), value("x"))), Store("y", AT, y)]


def test_a_load_with_two_readers_keeps_its_type() -> None:
    x, wide, flag = value("x", F16), value("x_wide"), value("flag", BOOL)
    body = (
        Load(x, "x", AT),
        Let(wide, "cast", (x,)),
        Let(flag, "cast", (x,)),
        Let(value("y"), "where", (flag, wide, wide)),
        Store("y", AT, value("y")),
    )
    assert tidied(*body) == list(body)


def test_a_cast_that_is_only_stored_is_left_to_the_store() -> None:
    x, half = value("x"), value("half", F16)
    assert tidied(Load(x, "x", AT), Let(half, "cast", (x,)), Store("y", AT, half)) == [
        Load(x, "x", AT),
        Store("y", AT, x),
    ]
    kept = (Load(x, "x", AT), Let(half, "cast", (x,)), Store("y", AT, half))
    assert tidied(*kept, out=F32) == list(kept)


def test_rounding_right_before_the_same_cast_goes_and_another_stays() -> None:
    x, rounded, half = value("x"), value("rounded"), value("half", F16)
    same = tidied(
        Load(x, "x", AT),
        Let(rounded, "round", (x,), (("to", "f16"),)),
        Let(half, "cast", (rounded,)),
        Store("y", AT, half),
    )
    assert same == [Load(x, "x", AT), Store("y", AT, x)]
    other = tidied(
        Load(x, "x", AT),
        Let(rounded, "round", (x,), (("to", "bf16"),)),
        Let(half, "cast", (rounded,)),
        Store("y", AT, half),
    )
    assert [type(s) for s in other] == [Load, Let, Store]


def test_what_nobody_reads_goes() -> None:
    x, y, z = value("x"), value("y"), value("z")
    assert tidied(Load(x, "x", AT), Let(y, "neg", (x,)), Let(z, "neg", (y,)), Store("y", AT, x)) == [
        Load(x, "x", AT),
        Store("y", AT, x),
    ]
