"""Kernels without their names. In: a Kernel. Out: an equal value for every kernel that compiles to the same code.

Names, notes, and the shapes that parameters are shown with are for readers; the code depends on types, indices and
order. Layers of one model then share one kernel.
"""

from __future__ import annotations

from dataclasses import replace

from interfuse.lower.kernel import Kernel, Load, Loop, Meet, Param, Reduce, Scan, Stmt, Store, Value


def canonical(kernel: Kernel) -> Kernel:
    """`kernel` with parameters and values numbered in order, and without name, doc and notes."""
    buffers: dict[str, str] = {p.name: f"p{k}" for k, p in enumerate(kernel.params)}
    values: dict[str, str] = {}

    def value(v: Value) -> Value:
        return replace(v, name=values.setdefault(v.name, f"v{len(values)}"))

    def statement(s: Stmt) -> Stmt:
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(statement, s.body)))
        if isinstance(s, Store):
            return replace(s, arg=value(s.arg), param=buffers[s.param])
        if isinstance(s, (Reduce, Scan, Meet)):
            return replace(s, arg=value(s.arg), out=value(s.out))
        if isinstance(s, Load):
            picks = tuple(replace(p, value=value(p.value)) for p in s.picks)
            return replace(s, picks=picks, out=value(s.out), param=buffers[s.param])
        return replace(s, args=tuple(map(value, s.args)), out=value(s.out), note="")

    def parameter(p: Param) -> Param:
        return (
            replace(p, name=buffers[p.name]) if p.mode == "scratch" else Param(buffers[p.name], p.dtype, (), (), p.mode)
        )

    return replace(
        kernel, name="", doc=(), params=tuple(map(parameter, kernel.params)), body=tuple(map(statement, kernel.body))
    )
