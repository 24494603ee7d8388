"""Conversions folded into the accesses that they belong to. In: a Kernel. Out: an equal Kernel with fewer statements.

A load whose only use is a cast becomes a load of the cast's type, a cast that is only stored becomes a store that
converts, and a rounding to a narrow type right before the cast to it goes, since the cast rounds. The kernel computes
what it did before, and its text reads as a person would write it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from interfuse.ir.dtypes import BOOL, DType
from interfuse.lower.kernel import Kernel, Let, Load, Loop, Stmt, Store, Value, operands, renamed, walk


def tidy(kernel: Kernel) -> Kernel:
    """`kernel` with casts folded into loads and stores and with what nobody uses left out."""
    types = {p.name: p.dtype for p in kernel.params}
    for step in (
        _drop_rounds,
        lambda body: _fold_loads(body, types),
        lambda body: _fold_stores(body, types),
        drop_unused,
    ):
        kernel = replace(kernel, body=step(kernel.body))
    return kernel


def _rewrite(body: tuple[Stmt, ...], change: Callable[[Stmt], Stmt | None]) -> tuple[Stmt, ...]:
    """Every statement changed, or dropped where `change` gives None."""
    new = [replace(s, body=_rewrite(s.body, change)) if isinstance(s, Loop) else change(s) for s in body]
    return tuple(s for s in new if s is not None)


def _rename(s: Stmt, to: dict[Value, Value]) -> Stmt:
    return renamed(s, lambda v: to.get(v, v))


def _users(body: tuple[Stmt, ...]) -> dict[Value, set[Stmt]]:
    """The distinct statements that read each value; the same statement in two phases counts once."""
    users: dict[Value, set[Stmt]] = defaultdict(set)
    for s in walk(body):
        for value in operands(s):
            users[value].add(s)
    return users


def _drop_rounds(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """cast(round(x, to=t), t) = cast(x, t)."""
    rounds = {s.out: s for s in walk(body) if isinstance(s, Let) and s.op == "round"}

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Let) and s.op == "cast" and s.args[0] in rounds:
            made = rounds[s.args[0]]
            return replace(s, args=made.args) if dict(made.attrs)["to"] == s.out.dtype.name else s
        return s

    return _rewrite(body, change)


def _fold_loads(body: tuple[Stmt, ...], types: dict[str, DType]) -> tuple[Stmt, ...]:
    """A load that one cast alone reads gives the cast's type; the shorter of the two names stays."""
    users, wider, to = _users(body), dict[Value, Value](), dict[Value, Value]()
    for s in walk(body):
        if isinstance(s, Load) and len(users[s.out]) == 1 and s.out.dtype is types[s.param]:
            (user,) = users[s.out]
            if isinstance(user, Let) and user.op == "cast" and user.out.dtype is not BOOL:
                name = min(s.out.name, user.out.name, key=len)
                wider[s.out] = to[user.out] = Value(name, user.out.dtype, s.out.axes)

    def change(s: Stmt) -> Stmt | None:
        if isinstance(s, Let) and s.out in to:
            return None
        s = _rename(s, to)
        return replace(s, out=wider.get(s.out, s.out)) if isinstance(s, Load) else s

    return _rewrite(body, change)


def _fold_stores(body: tuple[Stmt, ...], types: dict[str, DType]) -> tuple[Stmt, ...]:
    """A cast that only stores to parameters of its type read is left to these stores."""
    users = _users(body)
    to = {
        s.out: s.args[0]
        for s in walk(body)
        if isinstance(s, Let)
        and s.op == "cast"
        and all(isinstance(u, Store) and types[u.param] is s.out.dtype for u in users[s.out])
    }
    return _rewrite(body, lambda s: None if isinstance(s, Let) and s.out in to else _rename(s, to))


def drop_unused(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Values that nothing reads are not made."""
    while True:
        users = _users(body)
        kept = _rewrite(body, lambda s, read=users: s if isinstance(s, Store) or read.get(s.out) else None)  # type: ignore[misc]
        if kept == body:
            return body
        body = kept
